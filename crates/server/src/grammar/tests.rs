use std::time::Instant;

use engine::ConstraintState;
use serde_json::{Value, json};

use super::*;
use crate::testing::{END_OF_TURN, byte_vocabulary};
use crate::text_stream::Split;
use crate::tool_calls::ToolSet;

pub(super) fn bundled() -> Arc<Vocabulary> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let json = std::fs::read(folder.join("spinney-tiny/tokenizer.json")).unwrap();
    Arc::new(Vocabulary::read(&json, "tokenizer.json").unwrap())
}

pub(super) fn grammars(vocabulary: &Arc<Vocabulary>, timeout: Duration) -> Grammars {
    let end = vocabulary.encode("<|im_end|>").unwrap();
    let config = GrammarConfig {
        timeout,
        ..GrammarConfig::default()
    };
    Grammars::new(config, vocabulary, &end)
}

fn schema(schema: Value, strict: bool) -> JsonSchema {
    JsonSchema::new(schema.as_object().unwrap().clone(), strict)
}

pub(super) fn json_form(value: Value, in_reasoning: bool, tools: bool) -> Form {
    Form {
        wanted: Wanted::Json {
            schema: schema(value, true),
            tools,
        },
        in_reasoning,
    }
}

/// Makes a constraint, whatever thread it takes.
pub(super) fn make_beside(
    grammars: &Grammars,
    form: Option<Form>,
    (text, banned): (&TextOptions, &[u32]),
) -> Result<Option<Box<dyn OutputConstraint>>, ApiError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let metrics = Metrics::new("m", &crate::metrics::MetricsConfig::default());
    let made = grammars.constraint(form, (text, banned), "req", &metrics);
    runtime.block_on(made)
}

/// Makes the constraint of a form where nothing else is asked for.
fn make(grammars: &Grammars, form: Form) -> Result<Box<dyn OutputConstraint>, ApiError> {
    let made = make_beside(grammars, Some(form), (&text_options(None), &[]));
    made.map(Option::unwrap)
}

/// Of a text in which calls of these tools may be made, if any.
pub(super) fn text_options(tools: Option<ToolSet>) -> TextOptions {
    TextOptions {
        split: Split::StartsInContent,
        tools: tools.map(Arc::new),
        stops: Vec::new(),
        include_stop: false,
        end_ids: Vec::new(),
        stop_ids: Vec::new(),
        skip_special: true,
        min_tokens: 0,
    }
}

pub(super) fn mask(
    constraint: &mut Box<dyn OutputConstraint>,
    vocabulary: &Vocabulary,
) -> Vec<u32> {
    let mut words = vec![0; vocabulary.len().div_ceil(32)];
    constraint.mask(&mut words);
    let ids = 0..u32::try_from(vocabulary.len()).unwrap();
    ids.filter(|&id| words[id as usize / 32] >> (id % 32) & 1 == 1)
        .collect()
}

/// A small generator of the linear congruential kind, as `rand` is no dependency here.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }
}

/// Nested, with everything the documentation names.
pub(super) fn nested() -> Value {
    json!({
        "type": "object",
        "properties": {
            "kind": {"enum": ["small", "large"]},
            "count": {"type": "integer", "minimum": 0, "maximum": 99},
            "name": {"type": "string", "maxLength": 8},
            "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
            "where": {
                "type": "object",
                "properties": {"x": {"type": "number"}, "y": {"type": ["integer", "null"]}},
                "required": ["x", "y"],
                "additionalProperties": false
            }
        },
        "required": ["kind", "count", "name", "tags", "where"],
        "additionalProperties": false
    })
}

fn check_nested(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e} in {text:?}"));
    let keys: Vec<_> = value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(keys, ["kind", "count", "name", "tags", "where"], "{text}");
    assert!(["small", "large"].contains(&value["kind"].as_str().unwrap()));
    assert!(
        (0..=99).contains(&value["count"].as_i64().unwrap()),
        "{text}"
    );
    assert!(
        value["name"].as_str().unwrap().chars().count() <= 8,
        "{text}"
    );
    let tags = value["tags"].as_array().unwrap();
    assert!(
        tags.len() <= 3 && tags.iter().all(Value::is_boolean),
        "{text}"
    );
    let place = value["where"].as_object().unwrap();
    assert!(place["x"].is_number() && (place["y"].is_i64() || place["y"].is_null()));
    assert_eq!(place.len(), 2);
    let spaces = text.split(|c: char| !c.is_ascii_whitespace());
    assert!(spaces.map(str::len).max().unwrap_or(0) <= 20, "{text:?}");
}

#[test]
fn any_walk_through_the_masks_is_valid_json_and_excursions_leave_no_trace() {
    let vocabulary = bundled();
    let grammars = grammars(&vocabulary, Duration::from_secs(60));
    for seed in 0..12 {
        let mut random = Random(seed);
        let mut constraint = make(&grammars, json_form(nested(), false, false)).unwrap();
        let mut ids = Vec::new();
        while constraint.state() == ConstraintState::Open {
            let allowed = mask(&mut constraint, &vocabulary);
            assert!(
                !allowed.is_empty(),
                "stuck behind {:?}",
                vocabulary.decode(&ids, false)
            );
            let mut depth = 0;
            for _ in 0..random.below(16) {
                if constraint.state() != ConstraintState::Open {
                    break;
                }
                let ahead = mask(&mut constraint, &vocabulary);
                constraint.accept(ahead[random.below(ahead.len())]);
                depth += 1;
            }
            constraint.rollback(depth);
            assert_eq!(
                mask(&mut constraint, &vocabulary),
                allowed,
                "{depth} tokens back"
            );
            let id = allowed[random.below(allowed.len())];
            constraint.accept(id);
            ids.push(id);
            assert!(ids.len() < 4_000, "the walk does not end");
        }
        assert_eq!(constraint.state(), ConstraintState::Complete);
        assert!(mask(&mut constraint, &vocabulary).is_empty());
        check_nested(&vocabulary.decode(&ids, false));
        // The last step of a tree may look beyond the end.
        constraint.rollback(1);
        assert_eq!(constraint.state(), ConstraintState::Open);
    }
}

#[test]
fn marks_are_no_json_and_an_end_may_come_where_the_text_may_end() {
    let vocabulary = Arc::new(byte_vocabulary());
    let grammars = grammars(&vocabulary, Duration::from_secs(60));
    let mut text = make(
        &grammars,
        json_form(json!({"type": "string"}), false, false),
    )
    .unwrap();
    text.accept(u32::from(b'"'));
    let allowed = mask(&mut text, &vocabulary);
    assert!(allowed.contains(&257), "`the` is text");
    assert!(allowed.iter().all(|&id| id < 260), "marks are none");
    let mut number = make(
        &grammars,
        json_form(json!({"type": "integer"}), false, false),
    )
    .unwrap();
    number.accept(u32::from(b'7'));
    assert_eq!(number.state(), ConstraintState::Open);
    assert!(mask(&mut number, &vocabulary).contains(&END_OF_TURN));
    number.accept(END_OF_TURN);
    assert_eq!(number.state(), ConstraintState::Complete);
    number.rollback(1);
    number.accept(u32::from(b'1'));
    assert_eq!(number.state(), ConstraintState::Open);
    number.accept(u32::from(b'x'));
    number.accept(u32::from(b'1'));
    let blocked = |whole| ConstraintState::Blocked { whole };
    assert_eq!(number.state(), blocked(true), "a number may end anywhere");
    number.rollback(1);
    assert_eq!(number.state(), blocked(true));
    number.rollback(3);
    assert_eq!(number.state(), ConstraintState::Open);
    number.accept(u32::from(b'-'));
    number.accept(u32::from(b'x'));
    assert_eq!(number.state(), blocked(false), "but not behind its sign");
    number.rollback(1);
    number.accept(u32::from(b'8'));
    assert_eq!(number.state(), ConstraintState::Open);
}

#[test]
fn white_space_comes_in_short_runs_between_tokens() {
    let vocabulary = Arc::new(byte_vocabulary());
    let grammars = grammars(&vocabulary, Duration::from_secs(60));
    let mut object = make(
        &grammars,
        json_form(json!({"type": "object"}), false, false),
    )
    .unwrap();
    let space = u32::from(b' ');
    assert!(
        !mask(&mut object, &vocabulary).contains(&space),
        "none in front"
    );
    object.accept(u32::from(b'{'));
    for count in 0..20 {
        assert!(mask(&mut object, &vocabulary).contains(&space), "{count}");
        object.accept(space);
    }
    assert!(!mask(&mut object, &vocabulary).contains(&space));
    object.accept(u32::from(b'}'));
    assert_eq!(object.state(), ConstraintState::Complete, "none behind");
}

#[test]
fn the_answer_is_bound_once_the_reasoning_is_closed() {
    let vocabulary = bundled();
    let grammars = grammars(&vocabulary, Duration::from_secs(60));
    let id = |text: &str| {
        let ids = vocabulary.encode(text).unwrap();
        assert_eq!(ids.len(), 1, "{text:?}");
        ids[0]
    };
    let (close, lines, brace) = (id("</think>"), id("\n\n"), id("{"));
    let mut json = make(&grammars, json_form(nested(), true, false)).unwrap();
    for token in vocabulary
        .encode("I think <tool_call> {not JSON} so far")
        .unwrap()
    {
        assert_eq!(mask(&mut json, &vocabulary).len(), vocabulary.len());
        json.accept(token);
    }
    json.accept(close);
    let behind = mask(&mut json, &vocabulary);
    assert!(behind.contains(&lines) && behind.contains(&brace));
    let newline = |id: &u32| vocabulary.bytes(*id).iter().all(|&byte| byte == b'\n');
    let starts = |id: &u32| vocabulary.bytes(*id).starts_with(b"{");
    assert!(
        behind.iter().all(|id| newline(id) || starts(id)),
        "{behind:?}"
    );
    json.accept(lines);
    json.accept(brace);
    assert_eq!(json.state(), ConstraintState::Open);
    let inside = mask(&mut json, &vocabulary);
    assert!(!inside.contains(&close) && !inside.contains(&brace));
    // Back into the reasoning and out again, as in a tree.
    json.rollback(3);
    assert_eq!(mask(&mut json, &vocabulary).len(), vocabulary.len());
    json.accept(close);
    json.accept(brace);
    assert_eq!(mask(&mut json, &vocabulary), inside);
    // Spelled out, the mark closes too, and no token runs beyond it.
    json.rollback(2);
    for text in ["</", "think"] {
        vocabulary
            .encode(text)
            .unwrap()
            .into_iter()
            .for_each(|id| json.accept(id));
    }
    let ahead = mask(&mut json, &vocabulary);
    let beyond = |id: &&u32| {
        let bytes = vocabulary.bytes(**id);
        bytes[0] == b'>' && bytes[1..].iter().any(|&byte| byte != b'\n')
    };
    let all: Vec<u32> = (0..u32::try_from(vocabulary.len()).unwrap()).collect();
    let named = |id: &&u32| !vocabulary.bytes(**id).is_empty();
    let overrun = all.iter().filter(named).filter(beyond).count();
    assert_eq!(ahead.len(), all.len() - overrun);
    json.accept(id(">"));
    assert_eq!(mask(&mut json, &vocabulary), behind);
}

#[test]
fn with_tools_a_call_may_stand_for_the_answer() {
    let vocabulary = bundled();
    let grammars = grammars(&vocabulary, Duration::from_secs(60));
    let call = vocabulary.encode("<tool_call>").unwrap()[0];
    for in_reasoning in [false, true] {
        let mut json = make(&grammars, json_form(nested(), in_reasoning, true)).unwrap();
        if in_reasoning {
            json.accept(vocabulary.encode("</think>").unwrap()[0]);
        }
        assert!(mask(&mut json, &vocabulary).contains(&call));
        json.accept(call);
        assert_eq!(json.state(), ConstraintState::Released);
        assert_eq!(mask(&mut json, &vocabulary).len(), vocabulary.len());
        json.rollback(1);
        json.accept(vocabulary.encode("{").unwrap()[0]);
        assert!(!mask(&mut json, &vocabulary).contains(&call));
    }
}

#[test]
fn forced_calls_leave_the_choice_of_the_name() {
    let vocabulary = bundled();
    let grammars = grammars(&vocabulary, Duration::ZERO);
    let names = ["get", "get_weather", "set:alarm"];
    let text = |name: &str| format!("<tool_call>\n<function={name}>\n");
    for name in names {
        let form = |in_reasoning| Form {
            wanted: Wanted::Call(names.map(str::to_owned).to_vec()),
            in_reasoning,
        };
        let mut call = make(&grammars, form(false)).unwrap();
        let mut choices = 0;
        for token in vocabulary.encode(&text(name)).unwrap() {
            assert_eq!(call.state(), ConstraintState::Open);
            let allowed = mask(&mut call, &vocabulary);
            assert!(allowed.contains(&token), "{name}");
            choices += allowed.len() - 1;
            call.accept(token);
        }
        assert!(
            (1..=3).contains(&choices),
            "{name}: {choices} ways to leave it"
        );
        assert_eq!(call.state(), ConstraintState::Released);
        call.accept(5);
        call.rollback(2);
        assert_eq!(call.state(), ConstraintState::Open);
        call.accept(0);
        assert_eq!(call.state(), ConstraintState::Blocked { whole: false });
        // The reasoning may break off with the call.
        let mut call = make(&grammars, form(true)).unwrap();
        call.accept(vocabulary.encode("well").unwrap()[0]);
        assert_eq!(mask(&mut call, &vocabulary).len(), vocabulary.len());
        let ids = vocabulary.encode(&text(name)).unwrap();
        call.accept(ids[0]);
        assert_eq!(mask(&mut call, &vocabulary), [ids[1]]);
    }
}

#[test]
fn schemas_that_cannot_be_compiled_are_refused_by_their_problem() {
    let vocabulary = Arc::new(byte_vocabulary());
    let usual = grammars(&vocabulary, Duration::from_secs(60));
    for (value, word) in [
        (json!({"type": "object", "properties": 5}), "properties"),
        (json!({"type": "strange"}), "strange"),
        (
            json!({"type": "integer", "minimum": 5, "maximum": 2}),
            "minimum",
        ),
        (
            json!({"type": "string", "pattern": "(unclosed"}),
            "unclosed",
        ),
        (json!({"$ref": "#/$defs/nowhere"}), "nowhere"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (
            json!({"oneOf": [{"type": "string"}, {"minLength": 3}]}),
            "oneOf",
        ),
    ] {
        let error = make(&usual, json_form(value.clone(), false, false))
            .err()
            .unwrap();
        assert_eq!(error.code, Some("invalid_json_schema"), "{value}: {error}");
        assert!(error.message.contains(word), "{value}: {error}");
        assert_eq!(
            error.param.as_deref(),
            Some("response_format.json_schema.schema")
        );
    }
    let slow = grammars(&vocabulary, Duration::from_nanos(1));
    let error = make(&slow, json_form(nested(), false, false))
        .err()
        .unwrap();
    assert_eq!(error.code, Some("invalid_json_schema"));
    assert!(error.message.contains("seconds to compile"), "{error}");
    let config = GrammarConfig {
        backend: GrammarBackend::None,
        ..GrammarConfig::default()
    };
    let none = Grammars::new(config, &vocabulary, &[END_OF_TURN]);
    let error = make(&none, json_form(nested(), false, false))
        .err()
        .unwrap();
    assert_eq!(error.code, Some("unsupported_value"));
}

#[test]
fn what_cannot_be_enforced_counts_only_for_strict_schemas() {
    let vocabulary = Arc::new(byte_vocabulary());
    let compiler = Compiler::new(&vocabulary, &[END_OF_TURN], Duration::from_secs(60));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let compile = |value: &Value, strict| {
        let compiled = runtime.block_on(compiler.compile(schema(value.clone(), strict)));
        compiled.map(|compiled| compiled.unenforced)
    };
    let unique = json!({"type": "array", "uniqueItems": true});
    for _ in 0..2 {
        assert_eq!(compile(&unique, false), Ok(1));
        assert!(matches!(compile(&unique, true), Err(Fault::Schema(_))));
        assert_eq!(compile(&json!({"type": "array"}), true), Ok(0));
    }
    // A client cannot set the engine's own options.
    let own = json!({"type": "object", "x-guidance": {"whitespace_flexible": false}});
    assert_eq!(compile(&own, false), Ok(0));
}

/// A figure, not a check: `cargo test -p server --lib grammar -- --nocapture mask_times`.
#[test]
fn mask_times_of_a_tree_of_16_nodes() {
    let vocabulary = bundled();
    let grammars = grammars(&vocabulary, Duration::from_secs(60));
    let mut random = Random(3);
    let (mut trees, mut spent, mut longest) = (0, Duration::ZERO, Duration::ZERO);
    for _ in 0..8 {
        let mut constraint = make(&grammars, json_form(nested(), false, false)).unwrap();
        while constraint.state() == ConstraintState::Open {
            let began = Instant::now();
            let allowed = mask(&mut constraint, &vocabulary);
            let mut depth = 0;
            let mut ahead = allowed.clone();
            for _ in 0..15 {
                constraint.accept(ahead[random.below(ahead.len())]);
                depth += 1;
                if constraint.state() != ConstraintState::Open {
                    break;
                }
                ahead = mask(&mut constraint, &vocabulary);
            }
            constraint.rollback(depth);
            let took = began.elapsed();
            (trees, spent, longest) = (trees + 1, spent + took, longest.max(took));
            constraint.accept(allowed[random.below(allowed.len())]);
        }
    }
    assert!(trees > 8);
    println!(
        "{trees} trees, {:?} each, {longest:?} at most",
        spent / trees
    );
}
