//! Outputs and what they mean.

use super::*;

struct Case {
    text: String,
    thinking: bool,
    reasoning: &'static str,
    content: &'static str,
    calls: Vec<(&'static str, String)>,
}

/// An output without reasoning.
fn case(text: impl Into<String>, content: &'static str, calls: &[(&'static str, &str)]) -> Case {
    Case {
        text: text.into(),
        thinking: false,
        reasoning: "",
        content,
        calls: calls
            .iter()
            .map(|(name, arguments)| (*name, (*arguments).to_owned()))
            .collect(),
    }
}

/// A call of `f` with one parameter, spelled as the model was taught.
fn call(key: &str, value: &str) -> String {
    format!(
        "<tool_call>\n<function=f>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n</tool_call>"
    )
}

/// A call with `a`.
fn a(value: &str, expected: &str) -> Case {
    let json = format!("{{\"a\": {}}}", Value::from(expected));
    case(call("a", value), "", &[("f", &json)])
}

const EXAMPLE: &str =
    "<tool_call>\n<function=search>\n<parameter=q>\nword\n</parameter>\n</function>\n</tool_call>";

fn shapes() -> Vec<Case> {
    let one = call("a", "x");
    let x = r#"{"a": "x"}"#;
    vec![
        case(
            format!("Let me look.\n\n{one}"),
            "Let me look.",
            &[("f", x)],
        ),
        case(format!("{one}\n{one}"), "", &[("f", x), ("f", x)]),
        case(format!("{one}{one}\n"), "", &[("f", x), ("f", x)]),
        // Without the outer mark, first and after text.
        case(
            "<function=f>\n<parameter=a>\nx\n</parameter>\n</function>",
            "",
            &[("f", x)],
        ),
        case(
            "So:\n<function=g>\n</function>\n</tool_call>",
            "So:",
            &[("g", "{}")],
        ),
        // Marks that are not finished.
        case(
            "<tool_call>\n<function=f</function>\n</tool_call>",
            "",
            &[("f", "{}")],
        ),
        case(
            "<tool_call>\n<function=f\n</function>\n</tool_call>",
            "",
            &[("f", "{}")],
        ),
        case(
            "<tool_call><function=\"f\"><parameter='a'>x</parameter></function></tool_call>",
            "",
            &[("f", x)],
        ),
        case(
            "<tool_call>\n<function=f>\n<parameter=a\nx\n</parameter>\n</function>\n</tool_call>",
            "",
            &[("f", x)],
        ),
        case(
            "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</tool_call>",
            "",
            &[("f", x)],
        ),
        // Text behind it.
        case(format!("Wait. {one}\nDone."), "Wait.Done.", &[("f", x)]),
        case(format!("{one}\n\nAnd{one}"), "And", &[("f", x), ("f", x)]),
        // A name nobody offered.
        case(
            "<tool_call>\n<function=zzz>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>",
            "",
            &[("zzz", x)],
        ),
        // Words where only parameters belong.
        case(
            "<tool_call>\n<function=f> so <b> \n<parameter=a>x</parameter>\n</function>\n</tool_call>",
            "",
            &[("f", x)],
        ),
    ]
}

/// Left open at the end of the turn.
fn unfinished() -> Vec<Case> {
    let x = r#"{"a": "x"}"#;
    vec![
        case(
            "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>",
            "",
            &[("f", x)],
        ),
        case(
            "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>",
            "",
            &[("f", x)],
        ),
        case(
            "<tool_call>\n<function=f>\n<parameter=a>\nx\n",
            "",
            &[("f", x)],
        ),
        case(
            "<tool_call>\n<function=f>\n<parameter=a>\nx\n</function>\n</tool_call>",
            "",
            &[("f", x)],
        ),
        case("<tool_call>\n<function=f>\n<param", "", &[("f", "{}")]),
        case("<tool_call>\n<function=f", "<tool_call>\n<function=f", &[]),
        case("Well\n<tool_call>", "Well\n<tool_call>", &[]),
    ]
}

fn no_calls() -> Vec<Case> {
    vec![
        case("<tool_call></tool_call>", "", &[]),
        case("a\n<tool_call>\n</tool_call>\n", "a", &[]),
        case("Use <tool_call> for it. ", "Use <tool_call> for it. ", &[]),
        case(
            "<tool_call>\n<function=>x",
            "<tool_call>\n<function=>x",
            &[],
        ),
        case("a <function=f> b", "a <function=f> b", &[]),
    ]
}

fn json_calls() -> Vec<Case> {
    let one = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</tool_call>";
    let wrong = "<tool_call>\n{\"name\": \"f\", \"arguments\": 5}\n</tool_call>";
    vec![
        case(one, "", &[("f", r#"{"a": 1}"#)]),
        case(
            format!("Hm. {one}\n{one}"),
            "Hm.",
            &[("f", r#"{"a": 1}"#), ("f", r#"{"a": 1}"#)],
        ),
        case("<tool_call>{\"name\": \"g\"}", "", &[("g", "{}")]),
        case(
            "<tool_call>{\"name\": \"g\", \"arguments\": \"{\\\"b\\\": \\\"</tool_call>\\\"}\"}</tool_call>",
            "",
            &[("g", r#"{"b": "</tool_call>"}"#)],
        ),
        case(
            wrong,
            "<tool_call>\n{\"name\": \"f\", \"arguments\": 5}\n</tool_call>",
            &[],
        ),
        case("<tool_call>{\"name\": ", "<tool_call>{\"name\": ", &[]),
        case(
            "<tool_call>{or not}</tool_call>",
            "<tool_call>{or not}</tool_call>",
            &[],
        ),
    ]
}

fn strings() -> Vec<Case> {
    let inside = format!("Write\n{EXAMPLE}\nso.");
    let last = format!("Write\n{EXAMPLE}\nso:\n{EXAMPLE}");
    let mut cases = vec![
        a("if a:\n    b()\n", "if a:\n    b()\n"),
        a("\n  x", "\n  x"),
        a("one </parameter> two", "one </parameter> two"),
        a("one\n</parameter>\ntwo", "one\n</parameter>\ntwo"),
        a(
            "one\n</function>\ntwo </tool_call>",
            "one\n</function>\ntwo </tool_call>",
        ),
        a(&inside, &inside),
        a(&last, &last),
        a(
            "see <parameter= and <parameter=\nx",
            "see <parameter= and <parameter=\nx",
        ),
        a(
            "<parameter=q>\nx\n</parameter>",
            "<parameter=q>\nx\n</parameter>",
        ),
        a(
            "<function=x>\n<parameter=b>\nx",
            "<function=x>\n<parameter=b>\nx",
        ),
        a("a\"b\\c\td\u{2028}e\0f", "a\"b\\c\td\u{2028}e\0f"),
        a("é🦀\u{200d}", "é🦀\u{200d}"),
        a("", ""),
        a("\n", "\n"),
        a("a < b <", "a < b <"),
        a("null", "null"),
    ];
    for empty in ["<parameter=a>\n</parameter>", "<parameter=a></parameter>"] {
        let text = format!("<tool_call>\n<function=f>\n{empty}\n</function>\n</tool_call>");
        cases.push(case(text, "", &[("f", r#"{"a": ""}"#)]));
    }
    cases
}

fn values() -> Vec<Case> {
    let mut cases = Vec::new();
    for (key, value, expected) in [
        ("n", "3", "3"),
        ("n", "\"3\"", r#""\"3\"""#),
        ("n", "three", r#""three""#),
        ("l", "['a', 'b']", r#"["a", "b"]"#),
        (
            "l",
            "[1,\n {\"k\": \"</parameter>\"}]",
            r#"[1, {"k": "</parameter>"}]"#,
        ),
        ("e", " red", r#""red""#),
        ("other", "5", r#""5""#),
    ] {
        let json = format!("{{\"{key}\": {expected}}}");
        cases.push(case(call(key, value), "", &[("f", &json)]));
    }
    // The closing mark is forgotten before the next declared parameter, and before one that is not.
    let two = |second: &str| call("a", &format!("x\n<parameter={second}>\ny"));
    cases.push(case(two("b"), "", &[("f", r#"{"a": "x", "b": "y"}"#)]));
    cases.push(case(
        two("q"),
        "",
        &[("f", r#"{"a": "x\n<parameter=q>\ny"}"#)],
    ));
    cases.push(case(
        two("a"),
        "",
        &[("f", r#"{"a": "x\n<parameter=a>\ny"}"#)],
    ));
    // The first of two values of one key counts.
    let again = call(
        "a",
        "x\n</parameter>\n<parameter=a>\ny\n</parameter>\n<parameter=n>\n7",
    );
    cases.push(case(again, "", &[("f", r#"{"a": "x", "n": 7}"#)]));
    cases
}

fn thoughts() -> Vec<Case> {
    let thought = |text: String, reasoning, content, calls: &[_]| Case {
        thinking: true,
        reasoning,
        ..case(text, content, calls)
    };
    let one = call("a", "x");
    let x = &[("f", r#"{"a": "x"}"#)];
    vec![
        thought(format!("Look.\n</think>\n\n{one}"), "Look.", "", x),
        thought(
            format!("Look.\n</think>\n\nSo:\n\n{one}"),
            "Look.",
            "So:",
            x,
        ),
        thought(format!("Look.\n{one}"), "Look.", "", x),
        thought(one.clone(), "", "", x),
        thought(
            "I write <tool_call> here.\n</think>\n\nok".into(),
            "I write <tool_call> here.",
            "ok",
            &[],
        ),
        thought(
            "First <tool_call>\n</think>\n\nok".into(),
            "First <tool_call>",
            "ok",
            &[],
        ),
        thought(
            "<tool_call></tool_call> hm".into(),
            "<tool_call></tool_call> hm",
            "",
            &[],
        ),
        thought(
            "a\n<function=g>\n</function>".into(),
            "a\n<function=g>\n</function>",
            "",
            &[],
        ),
        thought(
            "Hm <tool_call>\n<function=f".into(),
            "Hm <tool_call>\n<function=f",
            "",
            &[],
        ),
    ]
}

fn all() -> Vec<Case> {
    let mut cases = shapes();
    cases.extend(unfinished());
    cases.extend(no_calls());
    cases.extend(json_calls());
    cases.extend(strings());
    cases.extend(values());
    cases.extend(thoughts());
    cases
}

fn bundled() -> Vocabulary {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let json = std::fs::read(folder.join("spinney-tiny/tokenizer.json")).unwrap();
    Vocabulary::read(&json, "tokenizer.json").unwrap()
}

#[test]
fn outputs_mean_what_they_should() {
    let vocabulary = bundled();
    for case in all() {
        let options = options(case.thinking, Some(tools()));
        let calls: Vec<_> = case
            .calls
            .iter()
            .map(|(n, a)| ((*n).to_owned(), a.clone()))
            .collect();
        let expected = Run {
            reasoning: case.reasoning.to_owned(),
            content: case.content.to_owned(),
            complete: calls.len(),
            calls,
            matched: Some(Matched::EndOfTurn),
            kept_bytes: case.text.len(),
        };
        assert_eq!(
            whole(&case.text, true, &options),
            expected,
            "{:?}",
            case.text
        );
        check_cuts(&case.text, true, &options, &[1, 2, 3, 5, 8, 13]);
        let ids = vocabulary.encode(&case.text).unwrap();
        let tokens: Vec<_> = ids.iter().map(|&id| vocabulary.bytes(id)).collect();
        assert_eq!(run(&tokens, true, &options), expected, "{:?}", case.text);
    }
}

/// A limit may cut anywhere: what has come so far never says more than the whole does, and never
/// pretends to be complete.
#[test]
fn outputs_may_be_cut_anywhere() {
    for case in all() {
        let options = options(case.thinking, Some(tools()));
        for end in 0..=case.text.len() {
            let bytes = &case.text.as_bytes()[..end];
            let one: Vec<&[u8]> = bytes.chunks(1).collect();
            for ended in [false, true] {
                let fed = run(&one, ended, &options);
                check_arguments(&fed);
                assert_eq!(
                    fed,
                    Run {
                        kept_bytes: end,
                        ..run(&[bytes], ended, &options)
                    }
                );
                if ended {
                    assert_eq!(fed.complete, fed.calls.len(), "{:?}", case.text);
                }
            }
        }
    }
}

#[test]
fn half_a_value_stays_open() {
    let text = "<tool_call>\n<function=f>\n<parameter=a>\nlé🦀!";
    let value = |end: usize| {
        let run = run(
            &[&text.as_bytes()[..end]],
            false,
            &options(false, Some(tools())),
        );
        assert_eq!((run.matched, run.complete), (None, 0));
        run.calls[0].1.clone()
    };
    let length = text.len();
    let ends = [0, 1, 2, 3, 4, 5, 6, 7].map(|less| value(length - less));
    let expected = ["lé🦀!", "lé🦀", "lé", "lé", "lé", "lé", "l", "l"];
    assert_eq!(ends, expected.map(|text| format!("{{\"a\": \"{text}")));
    // Not even a value that is there in full is closed, since nobody knows.
    let whole = "<tool_call>\n<function=f>\n<parameter=n>\n5";
    let run = super::whole(whole, false, &options(false, Some(tools())));
    assert_eq!(run.calls, [("f".to_owned(), String::new())]);
}

#[test]
fn without_tools_calls_are_text() {
    for case in all().iter().filter(|case| !case.thinking) {
        let run = check_cuts(&case.text, true, &options(false, None), &[4]);
        assert_eq!(run.content, case.text);
        assert!(run.calls.is_empty());
    }
}
