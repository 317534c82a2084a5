use std::collections::BTreeSet;

use super::*;
use crate::field_rules::{HONOURED, IGNORED, REFUSED};

fn limits() -> BodyLimits {
    BodyLimits {
        choices: 4,
        stops: 4,
        vocabulary: 100,
        priority: true,
        strict: false,
    }
}

fn names(schema: &Value) -> BTreeSet<String> {
    schema["properties"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect()
}

/// A field that readers know and the document does not, or the other way round, is a mistake.
#[test]
fn the_document_has_the_fields_that_readers_know() {
    let schemas = bodies::all(&limits());
    let mut described = BTreeSet::new();
    for name in ["ChatRequest", "CompletionRequest", "GenerateRequest"] {
        described.extend(names(&schemas[name]));
    }
    let known: BTreeSet<String> = [HONOURED, IGNORED, REFUSED]
        .concat()
        .into_iter()
        .map(str::to_owned)
        .collect();
    let missing: Vec<_> = known.difference(&described).collect();
    assert!(
        missing.is_empty(),
        "describe {missing:?} in openapi/bodies.rs"
    );
    let extra: Vec<_> = described.difference(&known).collect();
    assert!(
        extra.is_empty(),
        "{extra:?} are in no list of field_rules.rs"
    );
}

#[test]
fn parameters_of_sampling_are_all_described() {
    let schemas = bodies::all(&limits());
    let params = &schemas["GenerateRequest"]["properties"]["sampling_params"];
    for (name, schema) in params["properties"].as_object().unwrap() {
        assert!(!schema.is_null(), "{name}");
    }
}

#[test]
fn references_lead_somewhere() {
    let schemas = bodies::all(&limits());
    let text = Value::Object(schemas.clone()).to_string();
    let mut count = 0;
    for rest in text.split("#/components/schemas/").skip(1) {
        let name = rest.split('"').next().unwrap();
        assert!(schemas.contains_key(name), "{name}");
        count += 1;
    }
    assert!(count > 2);
}
