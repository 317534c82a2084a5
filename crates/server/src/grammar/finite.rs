//! Which JSON schemas have values at all.
//!
//! An object that must have a property of its own kind has no finite value. A text of such a schema
//! can be begun and never ended, so a parser of texts does not see it.

use std::cell::Cell;
use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Map, Value};

/// Types of JSON values as bits; numbers are one.
type Types = u8;

const ARRAY: Types = 1;
const OBJECT: Types = 2;
const ALL: Types = 0x3f;

fn type_named(name: &str) -> Types {
    match name {
        "array" => ARRAY,
        "object" => OBJECT,
        "string" => 4,
        "number" | "integer" => 8,
        "boolean" => 16,
        "null" => 32,
        _ => ALL,
    }
}

fn type_of(value: &Value) -> Types {
    type_named(match value {
        Value::Array(_) => "array",
        Value::Object(_) => "object",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "boolean",
        Value::Null => "null",
    })
}

/// Entries of schemas that are looked at, one that is looked at again included: some tens of
/// milliseconds.
const WORK_MAX: usize = 1_000_000;

/// Whether a finite value may fit a schema. `false` is certain; of keywords that are not understood
/// the best is assumed, as of a schema that takes too long.
pub(crate) fn has_finite_value(schema: &Value) -> bool {
    let mut search = Search {
        root: schema,
        targets: HashMap::new(),
        work: Cell::new(0),
    };
    search.collect(schema);
    search.settle();
    search.types(schema) != 0 || search.is_tired()
}

/// The schemas that references lead to, and the types that values of them are known to have: the
/// least sets that agree with each other.
struct Search<'a> {
    root: &'a Value,
    targets: HashMap<&'a str, Target<'a>>,
    work: Cell<usize>,
}

struct Target<'a> {
    /// `None`: somewhere else, or nowhere.
    schema: Option<&'a Value>,
    types: Types,
    /// References whose targets have to be looked at again when this one grows.
    users: HashSet<&'a str>,
}

impl<'a> Search<'a> {
    /// Notes every reference that can be reached.
    fn collect(&mut self, schema: &'a Value) {
        let mut found = Vec::new();
        references(schema, &mut found, &self.work);
        let mut left: Vec<(&'a str, Option<&'a str>)> = Vec::new();
        left.extend(found.drain(..).map(|name| (name, None)));
        while let (false, Some((name, user))) = (self.is_tired(), left.pop()) {
            if let Some(target) = self.targets.get_mut(name) {
                target.users.extend(user);
                continue;
            }
            let schema = resolve(self.root, name);
            let target = Target {
                schema,
                types: if schema.is_some() { 0 } else { ALL },
                users: user.into_iter().collect(),
            };
            self.targets.insert(name, target);
            if let Some(schema) = schema {
                references(schema, &mut found, &self.work);
                left.extend(found.drain(..).map(|own| (own, Some(name))));
            }
        }
    }

    /// Lets the sets grow until they agree.
    fn settle(&mut self) {
        let mut left: VecDeque<&'a str> = self.targets.keys().copied().collect();
        let mut queued: HashSet<&'a str> = left.iter().copied().collect();
        while let (false, Some(name)) = (self.is_tired(), left.pop_front()) {
            queued.remove(name);
            let target = &self.targets[name];
            let Some(schema) = target.schema else {
                continue;
            };
            let types = self.types(schema);
            if types != target.types {
                left.extend(target.users.iter().filter(|user| queued.insert(user)));
                if let Some(target) = self.targets.get_mut(name) {
                    target.types = types;
                }
            }
        }
    }

    fn is_tired(&self) -> bool {
        self.work.get() > WORK_MAX
    }

    /// Types of the values of a schema, as far as the targets are known.
    fn types(&self, schema: &Value) -> Types {
        let object = match schema {
            Value::Bool(false) => return 0,
            Value::Object(object) => object,
            _ => return ALL,
        };
        if self.is_tired() {
            return ALL;
        }
        let entries = object.values().map(|value| match value {
            Value::Array(values) => 1 + values.len(),
            _ => 1,
        });
        self.work.set(self.work.get() + 1 + entries.sum::<usize>());
        let mut types = declared(object);
        if let Some(Value::String(name)) = object.get("$ref") {
            types &= self.targets.get(name.as_str()).map_or(ALL, |t| t.types);
        }
        let parts = |name: &str| object.get(name).and_then(Value::as_array);
        for part in parts("allOf").into_iter().flatten() {
            types &= self.types(part);
        }
        for name in ["anyOf", "oneOf"] {
            if let Some(parts) = parts(name) {
                types &= parts.iter().fold(0, |any, part| any | self.types(part));
            }
        }
        if types & OBJECT != 0 && !self.has_object(object) {
            types &= !OBJECT;
        }
        if types & ARRAY != 0 && !self.has_array(object) {
            types &= !ARRAY;
        }
        types
    }

    fn has_object(&self, schema: &Map<String, Value>) -> bool {
        let properties = schema.get("properties").and_then(Value::as_object);
        let required = schema.get("required").and_then(Value::as_array);
        let mut names = required.into_iter().flatten().filter_map(Value::as_str);
        names.all(|name| {
            let own = properties.and_then(|all| all.get(name));
            let others = match schema.contains_key("patternProperties") {
                true => None,
                false => schema.get("additionalProperties"),
            };
            own.or(others).is_none_or(|value| self.types(value) != 0)
        })
    }

    fn has_array(&self, schema: &Map<String, Value>) -> bool {
        let least = schema.get("minItems").and_then(Value::as_u64).unwrap_or(0);
        let least = usize::try_from(least).unwrap_or(usize::MAX);
        let (first, others) = match (schema.get("prefixItems"), schema.get("items")) {
            (Some(Value::Array(first)), others) => (&first[..], others),
            (_, Some(Value::Array(first))) => (&first[..], schema.get("additionalItems")),
            (_, others) => (&[][..], others),
        };
        let mut first_needed = first.iter().take(least);
        first_needed.all(|item| self.types(item) != 0)
            && (least <= first.len() || others.is_none_or(|item| self.types(item) != 0))
    }
}

/// Types by `type`, `enum` and `const`.
fn declared(schema: &Map<String, Value>) -> Types {
    let mut types = match schema.get("type") {
        Some(Value::String(name)) => type_named(name),
        Some(Value::Array(names)) => {
            let names = names.iter().filter_map(Value::as_str);
            names.fold(0, |any, name| any | type_named(name))
        }
        _ => ALL,
    };
    if let Some(Value::Array(values)) = schema.get("enum") {
        types &= values.iter().fold(0, |any, value| any | type_of(value));
    }
    if let Some(value) = schema.get("const") {
        types &= type_of(value);
    }
    types
}

/// References in a schema and in all that is part of it, those within definitions left out, which
/// only count where something leads to them. `work` counts what is looked at.
fn references<'a>(schema: &'a Value, found: &mut Vec<&'a str>, work: &Cell<usize>) {
    work.set(work.get() + 1);
    let Value::Object(object) = schema else {
        return;
    };
    if work.get() > WORK_MAX {
        return;
    }
    if let Some(Value::String(name)) = object.get("$ref") {
        found.push(name);
    }
    let singles = ["additionalProperties", "items", "additionalItems"];
    let singles = singles.iter().filter_map(|name| object.get(*name));
    let lists = ["allOf", "anyOf", "oneOf", "prefixItems", "items"];
    let lists = lists
        .iter()
        .filter_map(|name| object.get(*name)?.as_array());
    let properties = object.get("properties").and_then(Value::as_object);
    let properties = properties.into_iter().flat_map(Map::values);
    for part in singles.chain(lists.flatten()).chain(properties) {
        references(part, found, work);
    }
}

/// Where a reference within the same schema leads.
fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let pointer = reference.strip_prefix('#')?;
    root.pointer(pointer).filter(|_| !pointer.contains('%'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Definitions that the table below refers to.
    fn with_definitions(mut schema: Value) -> Value {
        schema["$defs"] = json!({
            "endless": {"type": "object", "required": ["x"],
                "properties": {"x": {"$ref": "#/$defs/endless"}}},
            "list": {"type": "object", "required": ["v", "next"], "properties": {
                "v": {"type": "integer"},
                "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/list"}]}}},
            "tree": {"type": "object", "required": ["kids"], "properties": {
                "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}},
            "wide": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/wide"}},
            "a": {"allOf": [{"$ref": "#/$defs/b"}]},
            "b": {"anyOf": [{"$ref": "#/$defs/a"}]},
            "ping": {"type": "object", "required": ["p"], "properties": {
                "p": {"$ref": "#/$defs/pong"}}},
            "pong": {"type": "array", "minItems": 2, "prefixItems": [{"$ref": "#/$defs/ping"}]},
            "q/~": {"type": "null"},
        });
        schema
    }

    fn to(name: &str) -> Value {
        json!({"$ref": format!("#/$defs/{name}")})
    }

    fn check(table: impl IntoIterator<Item = (Value, bool)>) {
        for (schema, expected) in table {
            let schema = with_definitions(schema);
            assert_eq!(has_finite_value(&schema), expected, "{schema}");
        }
    }

    #[test]
    fn references_and_objects_without_a_finite_value() {
        let needs = |schema: Value| {
            json!({"type": "object", "required": ["x"],
            "properties": {"x": schema}})
        };
        check([
            (json!({}), true),
            (json!({"$ref": "#"}), false),
            (to("endless"), false),
            (to("list"), true),
            (to("tree"), true),
            (to("wide"), false),
            (to("a"), false),
            (to("ping"), false),
            (to("pong"), false),
            (to("q~1~0"), true),
            (to("nowhere"), true),
            (json!({"$ref": "other.json#/x"}), true),
            (needs(to("endless")), false),
            (needs(to("list")), true),
            (needs(json!({"$ref": "#"})), false),
            (
                needs(json!({"type": ["object", "null"], "required": ["x"],
                "properties": {"x": {"$ref": "#/properties/x"}}})),
                true,
            ),
            (needs(json!(false)), false),
            (
                json!({"type": "object", "properties": {"x": to("endless")}}),
                true,
            ),
            (
                json!({"properties": {"x": to("endless")}, "required": ["x"]}),
                true,
            ),
            (
                json!({"type": "object", "required": ["x"], "additionalProperties": to("endless")}),
                false,
            ),
            (
                json!({"type": "object", "required": ["x"], "patternProperties": {"x": {}},
                "additionalProperties": to("endless")}),
                true,
            ),
        ]);
    }

    #[test]
    fn choices_and_arrays_without_a_finite_value() {
        check([
            (json!({"anyOf": [to("endless"), {"type": "string"}]}), true),
            (json!({"anyOf": [to("endless"), to("wide")]}), false),
            (json!({"oneOf": [to("endless"), to("list")]}), true),
            (json!({"oneOf": [to("endless"), to("endless")]}), false),
            (json!({"allOf": [to("endless"), {"type": "object"}]}), false),
            (json!({"allOf": [to("list"), {"type": "object"}]}), true),
            (json!({"allOf": [to("list"), {"type": "array"}]}), false),
            (json!({"type": "array", "items": to("endless")}), true),
            (
                json!({"type": "array", "items": to("endless"), "minItems": 1}),
                false,
            ),
            (
                json!({"type": ["array", "null"], "items": to("endless"), "minItems": 1}),
                true,
            ),
            (
                json!({"type": "array", "items": [{}, to("endless")], "minItems": 1}),
                true,
            ),
            (
                json!({"type": "array", "items": [{}, to("endless")], "minItems": 2}),
                false,
            ),
            (
                json!({"type": "array", "prefixItems": [{}], "items": to("wide"), "minItems": 1}),
                true,
            ),
            (
                json!({"type": "array", "prefixItems": [{}], "items": to("wide"), "minItems": 2}),
                false,
            ),
            (
                json!({"type": "array", "items": [{}], "additionalItems": false, "minItems": 2}),
                false,
            ),
            (
                json!({"enum": [{"x": 1}, 2], "type": "object", "required": ["x"],
                "properties": {"x": to("endless")}}),
                false,
            ),
            (json!({"const": [], "type": ["array", "object"]}), true),
            (json!({"type": "strange"}), true),
            (json!({"not": {"$ref": "#"}}), true),
        ]);
        assert!(has_finite_value(&json!(true)) && !has_finite_value(&json!(false)));
    }

    #[test]
    fn long_chains_of_references_take_no_time() {
        let count = 20_000;
        let link = |next: usize| {
            json!({"type": "object", "required": ["x"],
            "properties": {"x": {"$ref": format!("#/$defs/d{next}")}}})
        };
        let chain = |last: Value| {
            let links = (0..count).map(|index| (format!("d{index}"), link(index + 1)));
            let mut all: Map<String, Value> = links.collect();
            all.insert(format!("d{count}"), last);
            json!({"$ref": "#/$defs/d0", "$defs": all})
        };
        assert!(has_finite_value(&chain(json!({"type": "null"}))));
        assert!(!has_finite_value(&chain(link(0))));
    }

    /// Every one of the many references grows in a round of its own.
    #[test]
    fn many_references_of_one_schema_take_no_time() {
        let count = 20_000;
        let same = vec![to("b"); count];
        let schema =
            json!({"anyOf": [to("a")], "$defs": {"a": {"anyOf": same}, "b": {"type": "null"}}});
        assert!(has_finite_value(&schema));
        let link = |index: usize| json!({"allOf": [to(&format!("d{}", index + 1))]});
        let links = (0..count).map(|index| (format!("d{index}"), link(index)));
        let mut all: Map<String, Value> = links.collect();
        all.insert(format!("d{count}"), json!({"type": "null"}));
        let each: Vec<Value> = (0..count).map(|index| to(&format!("d{index}"))).collect();
        all.insert("a".into(), json!({"anyOf": each}));
        assert!(has_finite_value(
            &json!({"$ref": "#/$defs/a", "$defs": all})
        ));
    }
}
