//! Which calls a text may make.

use super::tests::{Random, bundled, grammars, json_form, make_beside, mask, nested, text_options};
use super::*;
use crate::testing::byte_vocabulary;
use crate::text_stream::{Event, Split, TextStream};
use crate::tool_calls::{Tool, ToolSet};
use engine::{ConstraintState, TokenUpdate};
use serde_json::json;

fn tools(callable: Option<&[&str]>) -> ToolSet {
    let tool = |name: &&str| Tool {
        name: (*name).to_owned(),
        parameters: json!({"type": "object", "properties": {"q": {"type": "string"},
            "n": {"type": "integer"}}}),
    };
    ToolSet {
        tools: ["get_weather", "set_timer", "set", "other"]
            .iter()
            .map(tool)
            .collect(),
        callable: callable.map(|names| names.iter().map(|&name| name.to_owned()).collect()),
        parallel: true,
    }
}

const ALLOWED: &[&str] = &["set_timer", "set"];

fn restricted(
    grammars: &Grammars,
    form: Option<Form>,
    callable: &[&str],
    split: Split,
) -> Box<dyn OutputConstraint> {
    let mut text = text_options(Some(tools(Some(callable))));
    text.split = split;
    make_beside(grammars, form, (&text, &[])).unwrap().unwrap()
}

/// Ids that spell a text, cut at random: marks may be spelled out.
fn spell(vocabulary: &Vocabulary, text: &str, random: &mut Random) -> Vec<u32> {
    let (mut rest, mut ids) = (text.as_bytes(), Vec::new());
    while !rest.is_empty() {
        let all = 0..u32::try_from(vocabulary.len()).unwrap();
        let fits = |id: &u32| {
            let bytes = vocabulary.bytes(*id);
            !bytes.is_empty() && rest.starts_with(bytes)
        };
        let fitting: Vec<u32> = all.filter(fits).collect();
        let id = fitting[random.below(fitting.len())];
        rest = &rest[vocabulary.bytes(id).len()..];
        ids.push(id);
    }
    ids
}

/// Names of all calls in a text, whatever they are.
fn called(vocabulary: &Arc<Vocabulary>, ids: &[u32], split: Split) -> Vec<String> {
    let mut options = text_options(Some(tools(None)));
    options.split = split;
    let mut stream = TextStream::new(Arc::clone(vocabulary), options);
    let mut deltas = Vec::new();
    for &id in ids {
        stream.push(TokenUpdate { id, logprob: None }, &mut deltas);
    }
    stream.finish(&mut deltas);
    let names = deltas.into_iter().filter_map(|delta| match delta.event {
        Event::CallStart { name, .. } => Some(name),
        _ => None,
    });
    names.collect()
}

fn call(name: &str, value: &str) -> String {
    format!(
        "<tool_call>\n<function={name}>\n<parameter=q>\n{value}\n</parameter>\n</function>\n\
         </tool_call>"
    )
}

#[test]
fn every_spelling_of_what_is_allowed_may_come() {
    let example = call("get_weather", "x");
    let texts = [
        call("set", "7"),
        format!(
            "Well.\n\n{}\n{}",
            call("set_timer", "a <b> = {"),
            call("set", "")
        ),
        // An example inside a value is data, and so are marks that a call does not follow.
        call(
            "set",
            &format!("Write\n{example}\nlike this <tool_call>\n<function=other>."),
        ),
        "The mark <tool_call> begins a call, `<function=other>` has its name: x = {1}".to_owned(),
        "<tool_call>\n</tool_call><tool_call>\n[1]".to_owned(),
        "a<function=get_weather>\n<fun <tool_cal".to_owned(),
    ];
    for vocabulary in [bundled(), Arc::new(byte_vocabulary())] {
        let grammars = grammars(&vocabulary, Duration::ZERO);
        for (index, text) in texts.iter().enumerate() {
            for seed in 0..6 {
                let ids = spell(&vocabulary, text, &mut Random(seed));
                let mut own = restricted(&grammars, None, ALLOWED, Split::StartsInContent);
                for (at, &id) in ids.iter().enumerate() {
                    let free = own.allows_all();
                    let allowed = mask(&mut own, &vocabulary);
                    assert_eq!(free, allowed.len() == vocabulary.len());
                    assert!(
                        allowed.binary_search(&id).is_ok(),
                        "text {index}: {:?} behind {:?}",
                        vocabulary.decode(&ids[at..=at], false),
                        vocabulary.decode(&ids[..at], false)
                    );
                    own.accept(id);
                    assert_eq!(own.state(), ConstraintState::Open);
                }
            }
        }
    }
}

/// A model that wants to call what it may not, in the answer and while it thinks.
#[test]
fn no_walk_through_the_masks_calls_anything_else() {
    let wishes = [
        call("get_weather", "x"),
        format!("{}\n{}", call("set", "y"), call("other", "z")),
        "<function=get_weather>\n<parameter=q>\n1\n</parameter>\n</function>".to_owned(),
        "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>".to_owned(),
        call(
            "set",
            &format!(
                "a\n</parameter>\n</function>\n</tool_call>\n{}",
                call("other", "")
            ),
        ),
        "<tool_call>\n<function=set>\n<function=other>\n</function>\n</tool_call>".to_owned(),
        format!("</think>\n\n{}", call("settings", "x")),
    ];
    let mut calls = 0;
    for vocabulary in [bundled(), Arc::new(byte_vocabulary())] {
        let grammars = grammars(&vocabulary, Duration::ZERO);
        for seed in 0..60_u64 {
            let mut random = Random(seed);
            let split = match seed % 3 {
                0 => Split::StartsInReasoning,
                1 => Split::StartsInContent,
                _ => Split::Off,
            };
            let mut own = restricted(&grammars, None, ALLOWED, split);
            let mut ids = Vec::new();
            for _ in 0..4 {
                let wish = &wishes[random.below(wishes.len())];
                for id in spell(&vocabulary, wish, &mut random) {
                    let allowed = mask(&mut own, &vocabulary);
                    let id = match allowed.binary_search(&id) {
                        Ok(_) => id,
                        Err(_) => allowed[random.below(allowed.len())],
                    };
                    // A look ahead as in a tree leaves no trace.
                    for &ahead in [id, allowed[0], 5].iter() {
                        own.accept(ahead);
                    }
                    own.rollback(3);
                    assert_eq!(mask(&mut own, &vocabulary), allowed);
                    own.accept(id);
                    ids.push(id);
                    assert_eq!(own.state(), ConstraintState::Open);
                }
            }
            let names = called(&vocabulary, &ids, split);
            calls += names.len();
            let text = vocabulary.decode(&ids, false);
            assert!(
                names.iter().all(|name| ALLOWED.contains(&&**name)),
                "{seed}: {names:?} in {text:?}"
            );
        }
    }
    assert!(calls > 100, "{calls}");
}

#[test]
fn what_may_not_come_blocks() {
    let vocabulary = bundled();
    let grammars = grammars(&vocabulary, Duration::ZERO);
    let mut own = restricted(&grammars, None, ALLOWED, Split::StartsInContent);
    let ids = vocabulary.encode("<tool_call>\n<function=get").unwrap();
    ids.iter().for_each(|&id| own.accept(id));
    assert_eq!(own.state(), ConstraintState::Blocked { whole: false });
    own.rollback(ids.len() - 1);
    assert_eq!(own.state(), ConstraintState::Open);
    // The end of the turn has no text, and no place within a name.
    let ids = vocabulary.encode("\n<function=set").unwrap();
    ids.iter().for_each(|&id| own.accept(id));
    let end = vocabulary.encode("<|im_end|>").unwrap()[0];
    assert!(!mask(&mut own, &vocabulary).contains(&end));
    own.accept(end);
    assert_eq!(own.state(), ConstraintState::Blocked { whole: false });
}

#[test]
fn without_an_allowed_tool_no_call_is_opened() {
    let vocabulary = bundled();
    let grammars = grammars(&vocabulary, Duration::ZERO);
    let open = vocabulary.encode("<tool_call>").unwrap()[0];
    for split in [Split::StartsInReasoning, Split::StartsInContent] {
        let mut own = restricted(&grammars, None, &[], split);
        let allowed = mask(&mut own, &vocabulary);
        assert!(!allowed.contains(&open) && !own.allows_all());
        assert_eq!(allowed.len(), vocabulary.len() - 1);
    }
    // JSON is the only answer then.
    let form = json_form(nested(), false, true);
    let mut json = restricted(&grammars, Some(form), &[], Split::StartsInContent);
    assert!(!mask(&mut json, &vocabulary).contains(&open));
}

#[test]
fn calls_behind_a_forced_one_and_instead_of_json_are_restricted_too() {
    let vocabulary = bundled();
    let grammars = grammars(&vocabulary, Duration::from_secs(60));
    let forced = || Form {
        wanted: Wanted::Call(ALLOWED.iter().map(|&name| name.to_owned()).collect()),
        in_reasoning: false,
    };
    let id = |text: &str| vocabulary.encode(text).unwrap();
    for (form, before) in [
        (forced(), call("set", "1")),
        (json_form(nested(), false, true), call("set_timer", "1")),
    ] {
        let split = Split::StartsInContent;
        let mut own = restricted(&grammars, Some(form.clone()), ALLOWED, split);
        let mut free = {
            let text = text_options(Some(tools(None)));
            make_beside(&grammars, Some(form), (&text, &[]))
                .unwrap()
                .unwrap()
        };
        for token in id(&format!("{before}\n<tool_call>\n<function=")) {
            assert!(mask(&mut own, &vocabulary).contains(&token));
            own.accept(token);
            free.accept(token);
        }
        assert_eq!(own.state(), ConstraintState::Open);
        assert_eq!(free.state(), ConstraintState::Released, "any name will do");
        let (get, set) = (id("get")[0], id("set")[0]);
        let allowed = mask(&mut own, &vocabulary);
        assert!(!own.allows_all() && !allowed.contains(&get) && allowed.contains(&set));
        // The `=` and the beginning of the name may be one token.
        own.rollback(1);
        let allowed = mask(&mut own, &vocabulary);
        assert!(allowed.contains(&id("=")[0]) && !allowed.contains(&id("=get")[0]));
        assert_eq!(id("=get").len(), 1);
        own.rollback(3);
        assert!(own.allows_all(), "outside of a call");
    }
    // Inside of JSON marks are text.
    let schema = json!({"const": "<tool_call><function=other>"});
    let mut json = restricted(
        &grammars,
        Some(json_form(schema, false, true)),
        ALLOWED,
        Split::StartsInContent,
    );
    let mut random = Random(3);
    for token in spell(&vocabulary, "\"<tool_", &mut random) {
        json.accept(token);
    }
    while json.state() == ConstraintState::Open {
        let allowed = mask(&mut json, &vocabulary);
        json.accept(allowed[random.below(allowed.len())]);
    }
    assert_eq!(json.state(), ConstraintState::Complete);
}

#[test]
fn bans_that_leave_no_beginning_are_refused() {
    let vocabulary = bundled();
    let grammars = grammars(&vocabulary, Duration::from_secs(60));
    let text = text_options(Some(tools(None)));
    let call = |banned: &[u32]| {
        let names = ["set", "get_weather"].map(str::to_owned).to_vec();
        let form = Form {
            wanted: Wanted::Call(names),
            in_reasoning: true,
        };
        make_beside(&grammars, Some(form), (&text, banned))
    };
    let refused = |made: Result<Option<Box<dyn OutputConstraint>>, ApiError>| {
        let error = made.err().unwrap();
        assert_eq!(error.param.as_deref(), Some("logit_bias"), "{error}");
        assert_eq!(error.code, Some("invalid_value"));
    };
    let open = vocabulary.encode("<tool_call>").unwrap()[0];
    let of = |name: &str| {
        vocabulary
            .encode(&format!("<tool_call>\n<function={name}>\n"))
            .unwrap()
    };
    refused(call(&[open]));
    // A name that cannot be spelled any more is left out from its first token on.
    let (set, get) = (of("set"), of("get_weather"));
    let parting = get.iter().zip(&set).position(|(a, b)| a != b).unwrap();
    let last = get.len()
        - 1
        - get
            .iter()
            .rev()
            .zip(set.iter().rev())
            .take_while(|(a, b)| a == b)
            .count();
    let mut own = call(&[get[last]]).unwrap().unwrap();
    set[..parting].iter().for_each(|&id| own.accept(id));
    assert_eq!(mask(&mut own, &vocabulary), [set[parting]]);
    refused(call(&[get[last], set[parting]]));

    let json = |tools: bool, banned: &[u32]| {
        let form = json_form(json!({"type": "object"}), true, tools);
        make_beside(&grammars, Some(form), (&text, banned))
    };
    let all = 0..u32::try_from(vocabulary.len()).unwrap();
    let braces: Vec<u32> = all
        .filter(|&id| vocabulary.bytes(id).starts_with(b"{"))
        .collect();
    refused(json(false, &braces));
    assert!(json(false, &braces[1..]).is_ok());
    assert!(json(true, &braces).is_ok(), "a call is possible");
    refused(json(true, &[&braces[..], &[open]].concat()));
}
