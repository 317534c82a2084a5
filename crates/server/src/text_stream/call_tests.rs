use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::answer::Message;
use crate::testing::byte_vocabulary;
use crate::tool_calls::Tool;

mod golden;

/// Made once: there are tens of thousands of streams here.
fn vocabulary() -> Arc<Vocabulary> {
    static VOCABULARY: LazyLock<Arc<Vocabulary>> = LazyLock::new(|| Arc::new(byte_vocabulary()));
    Arc::clone(&VOCABULARY)
}

/// Two tools with arguments of all kinds.
fn tools() -> ToolSet {
    let parameters = json!({"type": "object", "properties": {
        "a": {"type": "string"}, "b": {"type": "string"}, "n": {"type": "integer"},
        "l": {"type": "array"}, "e": {"enum": ["red", "green"]}}});
    let tool = |name: &str, parameters: &Value| Tool {
        name: name.to_owned(),
        parameters: parameters.clone(),
    };
    ToolSet {
        tools: vec![tool("f", &parameters), tool("g", &Value::Null)],
        callable: None,
        parallel: true,
    }
}

fn options(thinking: bool, tools: Option<ToolSet>) -> TextOptions {
    TextOptions {
        split: match thinking {
            true => Split::StartsInReasoning,
            false => Split::StartsInContent,
        },
        tools: tools.map(Arc::new),
        stops: Vec::new(),
        include_stop: false,
        end_ids: vec![crate::testing::END_OF_TURN],
        stop_ids: Vec::new(),
        skip_special: true,
        min_tokens: 0,
    }
}

/// What an output came to.
#[derive(Clone, Debug, PartialEq)]
struct Run {
    reasoning: String,
    content: String,
    /// Name and arguments.
    calls: Vec<(String, String)>,
    complete: usize,
    matched: Option<Matched>,
    /// Bytes up to the end of the last token that counts.
    kept_bytes: usize,
}

/// Feeds tokens of these bytes, then the end of the turn if it is `ended`.
fn run(tokens: &[&[u8]], ended: bool, options: &TextOptions) -> Run {
    let mut stream = TextStream::new(vocabulary(), options.clone());
    let mut deltas = Vec::new();
    let line = |index: usize| TokenLine {
        id: u32::try_from(index).unwrap(),
        logprob: TokenLogprob {
            logprob: -1.0,
            top: Vec::new(),
        },
    };
    for (index, bytes) in tokens.iter().enumerate() {
        let mut step = Vec::new();
        let matched = stream.take(bytes, Some(line(index)), &mut step);
        deltas.extend(step);
        if matched.is_some() {
            break;
        }
    }
    if ended && stream.matched().is_none() {
        let end = TokenUpdate {
            id: crate::testing::END_OF_TURN,
            logprob: None,
        };
        stream.push(end, &mut deltas);
    }
    let mut lines: Vec<TokenLine> = Vec::new();
    let rest = stream.finish(&mut deltas);
    for delta in &deltas {
        lines.extend_from_slice(&delta.lines);
    }
    lines.extend(rest);
    let ids: Vec<usize> = lines.iter().map(|line| line.id as usize).collect();
    // A stop string may take the tokens that it begins in.
    assert_eq!(
        ids,
        (0..ids.len()).collect::<Vec<_>>(),
        "in order, each once"
    );
    if !matches!(stream.matched(), Some(Matched::Text(_))) {
        assert_eq!(ids.len(), stream.kept().min(tokens.len()));
    }
    let kept = tokens.iter().take(stream.kept());
    let message = Message::of(deltas.iter().map(|delta| &delta.event));
    check_order(&deltas);
    Run {
        reasoning: message.reasoning,
        content: message.content,
        calls: message
            .calls
            .into_iter()
            .map(|call| (call.name, call.arguments))
            .collect(),
        complete: stream.calls(),
        matched: stream.matched().cloned(),
        kept_bytes: kept.map(|bytes| bytes.len()).sum(),
    }
}

/// A call's start, its pieces and its end, one call after the other; no piece is empty.
fn check_order(deltas: &[Delta]) {
    let mut open = None;
    let mut next = 0;
    for delta in deltas {
        match &delta.event {
            Event::Reasoning(text) | Event::Content(text) => {
                assert!(!text.is_empty() && open.is_none());
            }
            Event::CallStart { index, id, .. } => {
                assert!(open.is_none() && id.len() == 29, "{id}");
                assert_eq!(*index, next);
                open = Some(*index);
                next += 1;
            }
            Event::CallArguments { index, text } => {
                assert!(!text.is_empty());
                assert_eq!(Some(*index), open);
            }
            Event::CallEnd { index } => assert_eq!(Some(*index), open.take()),
        }
    }
}

fn whole(text: &str, ended: bool, options: &TextOptions) -> Run {
    run(&[text.as_bytes()], ended, options)
}

/// Tokens of these sizes, over and over.
fn cut<'a>(text: &'a str, sizes: &[usize]) -> Vec<&'a [u8]> {
    let mut rest = text.as_bytes();
    let mut tokens = Vec::new();
    for &size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (token, after) = rest.split_at(size.min(rest.len()));
        tokens.push(token);
        rest = after;
    }
    tokens
}

/// Arguments so far are the beginning of a JSON object and, in a complete call, all of it.
fn check_arguments(run: &Run) {
    for (index, (name, arguments)) in run.calls.iter().enumerate() {
        let is_object =
            |text: &str| serde_json::from_str::<Value>(text).is_ok_and(|v| v.is_object());
        let ends: &[&str] = match index < run.complete {
            true => &[""],
            false => &["", "}", "\"}", "{}"],
        };
        assert!(
            ends.iter()
                .any(|end| is_object(&format!("{arguments}{end}"))),
            "{name} {arguments}"
        );
    }
}

/// Every way to cut gives what one piece gives.
fn check_cuts(text: &str, ended: bool, options: &TextOptions, sizes: &[usize]) -> Run {
    let expected = whole(text, ended, options);
    check_arguments(&expected);
    let mut same = expected.clone();
    // One piece has no token to end in front of.
    let compare = |run: Run, how: &dyn Fn() -> String| {
        check_arguments(&run);
        let kept = run.kept_bytes;
        assert_eq!(
            Run {
                kept_bytes: expected.kept_bytes,
                ..run
            },
            expected,
            "{}",
            how()
        );
        kept
    };
    let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
    let exact = compare(run(&bytes, ended, options), &|| {
        format!("bytes of {text:?}")
    });
    same.kept_bytes = exact;
    let at_least = |run: &Run| assert!(run.kept_bytes >= exact);
    let sized = run(&cut(text, sizes), ended, options);
    at_least(&sized);
    compare(sized, &|| format!("{sizes:?} of {text:?}"));
    same
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// Whatever is written, and however it is cut, the outcome is that of one piece, and complete
    /// arguments are JSON.
    #[test]
    fn outcomes_do_not_depend_on_cuts(
        parts in proptest::collection::vec(part(), 0..14),
        sizes in proptest::collection::vec(1_usize..17, 1..8),
        thinking in any::<bool>(),
        ended in any::<bool>(),
        parallel in any::<bool>(),
        only_g in any::<bool>(),
        stop in "(|x\n|<tool|\n\n|e <|</para)",
    ) {
        let text = parts.concat();
        let mut set = tools();
        set.parallel = parallel;
        set.callable = only_g.then(|| vec!["g".to_owned()]);
        let mut options = options(thinking, Some(set));
        if !stop.is_empty() {
            options.stops = vec![stop];
        }
        let run = check_cuts(&text, ended, &options, &sizes);
        prop_assert!(parallel || run.calls.len() <= 1);
        prop_assert!(!only_g || run.calls.iter().all(|(name, _)| name == "g"));
    }
}

/// Pieces of calls, of what looks like them, and of text.
fn part() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(vec![
        "<tool_call>",
        "</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=a>\n",
        "\n</parameter>\n</function>\n</tool_call>",
        "<function=f>",
        "\n<function=g>",
        "<function=",
        "</function>",
        "<parameter=a>",
        "\n<parameter=b>\n",
        "<parameter=n>",
        "</parameter>",
        "\n</parameter>",
        "</think>",
        "<think>",
        "\n",
        " ",
        "x",
        "é",
        "🦀\"",
        "<",
        ">",
        "f",
        "12",
        "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
        "\\",
    ])
}

#[test]
fn only_what_may_become_a_mark_is_held_back() {
    let options = options(false, Some(tools()));
    let shown = |text: &str| {
        let mut stream = TextStream::new(vocabulary(), options.clone());
        let mut deltas = Vec::new();
        stream.take(text.as_bytes(), None, &mut deltas);
        let message = Message::of(deltas.iter().map(|delta| &delta.event));
        let arguments = message.calls.first().map(|call| call.arguments.clone());
        (message.content, arguments.unwrap_or_default())
    };
    for (text, content) in [
        ("ab ", "ab"),
        ("ab \n<tool", "ab"),
        ("ab <toolx", "ab <toolx"),
        ("ab <", "ab"),
        ("a < b", "a < b"),
        ("a <function=f", "a <function=f"),
        ("a\n<function=f", "a"),
        ("a\n<function=fx", "a\n<function=fx"),
        ("a\n<function=zz>", "a\n<function=zz>"),
        ("<tool_call> no", "<tool_call> no"),
        ("<tool_call>\n<function=f", ""),
        ("<tool_call>{\"name\": 1", ""),
        ("<tool_call>{\"name\": 1} ", "<tool_call>{\"name\": 1}"),
        (
            "<tool_call>{\"name\": \"g\"} no",
            "<tool_call>{\"name\": \"g\"} no",
        ),
    ] {
        assert_eq!(shown(text), (content.to_owned(), String::new()), "{text:?}");
    }
    let head = "<tool_call>\n<function=f>\n<parameter=a>\n";
    for (value, arguments) in [
        ("", "{\"a\": \""),
        ("x\n", "{\"a\": \"x"),
        ("x\n\n", "{\"a\": \"x\\n"),
        ("x <para", "{\"a\": \"x "),
        ("x <parx", "{\"a\": \"x <parx"),
        ("x</parameter>", "{\"a\": \"x"),
        ("x</parameter> y", "{\"a\": \"x</parameter> y"),
        ("x\n<parameter=zz", "{\"a\": \"x\\n<parameter=zz"),
        ("x\n<parameter=b", "{\"a\": \"x"),
        ("x</parameter>\n<parameter=n>5", "{\"a\": \"x\""),
        (
            "x</parameter>\n<parameter=n>5</parameter></fun",
            "{\"a\": \"x\"",
        ),
        (
            "x</parameter>\n<parameter=n>5</parameter></function>",
            "{\"a\": \"x\", \"n\": 5}",
        ),
    ] {
        let found = shown(&format!("{head}{value}"));
        assert_eq!(found, (String::new(), arguments.to_owned()), "{value:?}");
    }
}

#[test]
fn one_call_is_enough_where_no_other_is_wanted() {
    let mut set = tools();
    set.parallel = false;
    let call = "<tool_call>\n<function=g>\n</function>\n</tool_call>";
    let text = format!("a {call}\n{call}");
    let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
    let run = run(&bytes, true, &options(false, Some(set.clone())));
    assert_eq!(run.matched, Some(Matched::Call));
    assert_eq!(run.calls, [("g".to_owned(), "{}".to_owned())]);
    assert_eq!(run.kept_bytes, 2 + call.len());
    let bare = "<function=g>\n</function>\n\nmore";
    let bytes: Vec<&[u8]> = bare.as_bytes().chunks(1).collect();
    let run = super::call_tests::run(&bytes, true, &options(false, Some(set)));
    assert_eq!(run.kept_bytes, bare.len() - "\n\nmore".len());
    assert_eq!(run.content, "");
}

#[test]
fn what_else_ends_the_output_is_said() {
    let mut set = tools();
    set.parallel = false;
    let options = options(false, Some(set));
    for text in [
        "<tool_call>\n<function=g>\n</function>",
        "<tool_call>{\"name\": \"g\"}",
        "<tool_call>\n<function=g>",
    ] {
        let turn = check_cuts(text, true, &options, &[4]);
        assert_eq!((turn.matched, turn.complete), (Some(Matched::EndOfTurn), 1));
        assert_eq!(check_cuts(text, false, &options, &[4]).matched, None);
    }
}

#[test]
fn stop_strings_see_the_answer_and_nothing_of_a_call() {
    let call =
        "<tool_call>\n<function=f>\n<parameter=a>\nstop\n</parameter>\n</function>\n</tool_call>";
    let with = |stop: &str| {
        let mut options = options(false, Some(tools()));
        options.stops = vec![stop.to_owned()];
        options
    };
    for stop in ["stop", "<tool_call>", "</", "function"] {
        let run = check_cuts(call, true, &with(stop), &[3, 7]);
        assert_eq!(run.calls.len(), 1, "{stop}");
        assert_eq!(run.matched, Some(Matched::EndOfTurn), "{stop}");
    }
    let run = check_cuts(&format!("{call}\nplain stop it"), true, &with("stop"), &[5]);
    assert_eq!((run.content.as_str(), run.calls.len()), ("plain ", 1));
    // It might have been a call: found late, but what was said meanwhile is taken back.
    for ended in [false, true] {
        let run = check_cuts("a <tool_call>\n<funky", ended, &with("call>"), &[4]);
        assert_eq!(run.content, "a <tool_");
        assert_eq!(run.kept_bytes, "a <tool_call>".len());
        let run = check_cuts("a <tool", ended, &with("<to"), &[2]);
        assert_eq!(run.content, "a ");
        assert_eq!(run.matched, Some(Matched::Text("<to".into())));
        assert_eq!(run.kept_bytes, "a <to".len());
    }
}

#[test]
fn reasoning_ends_at_a_call_and_counts_up_to_it() {
    let text = "Hm.\n\n<tool_call>\n<function=g>\n</function>\n</tool_call>";
    let mut stream = TextStream::new(vocabulary(), options(true, Some(tools())));
    let mut deltas = Vec::new();
    for byte in text.bytes() {
        stream.take(&[byte], None, &mut deltas);
    }
    assert_eq!(stream.reasoning_tokens(), "Hm.\n\n".len());
    assert_eq!(deltas[0].event, Event::Reasoning("Hm.".to_owned()));
}
