use proptest::prelude::*;

use super::*;
use crate::answer::Message;
use crate::testing::byte_vocabulary;

fn options(split: Split) -> TextOptions {
    TextOptions {
        split,
        tools: None,
        stops: Vec::new(),
        include_stop: false,
        end_ids: vec![crate::testing::END_OF_TURN],
        stop_ids: Vec::new(),
        skip_special: true,
        min_tokens: 0,
    }
}

fn token(id: u32) -> TokenUpdate {
    TokenUpdate {
        id,
        logprob: Some(TokenLogprob {
            logprob: -1.0,
            top: Vec::new(),
        }),
    }
}

struct Run {
    reasoning: String,
    content: String,
    deltas: Vec<Delta>,
    lines: Vec<u32>,
    matched: Option<Matched>,
    kept: usize,
    reasoning_tokens: usize,
}

/// Feeds ids one by one, as any split into steps does.
fn run(ids: &[u32], options: TextOptions) -> Run {
    let mut stream = TextStream::new(Arc::new(byte_vocabulary()), options);
    let mut deltas = Vec::new();
    let mut matched = None;
    for &id in ids {
        let mut step = Vec::new();
        matched = stream.push(token(id), &mut step);
        deltas.extend(step);
        if matched.is_some() {
            break;
        }
    }
    let mut step = Vec::new();
    let rest = stream.finish(&mut step);
    deltas.extend(step);
    let message = Message::of(deltas.iter().map(|delta| &delta.event));
    let lines = deltas
        .iter()
        .flat_map(|d| &d.lines)
        .chain(&rest)
        .map(|line| line.id)
        .collect();
    Run {
        reasoning: message.reasoning,
        content: message.content,
        lines,
        matched,
        kept: stream.kept(),
        reasoning_tokens: stream.reasoning_tokens(),
        deltas,
    }
}

/// One id per byte, so that marks and characters are cut everywhere.
fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

fn ids(text: &str) -> Vec<u32> {
    byte_vocabulary().encode(text).unwrap()
}

#[test]
fn characters_are_never_cut() {
    let result = run(&bytes("a🦀é"), options(Split::Off));
    let texts: Vec<_> = result.deltas.iter().map(|d| d.event.text()).collect();
    assert_eq!(texts, ["a", "🦀", "é"]);
    let lines: Vec<_> = result.deltas.iter().map(|d| d.lines.len()).collect();
    assert_eq!(lines, [1, 4, 2]);
}

#[test]
fn bytes_that_never_complete_become_replacement_characters() {
    let mut cut = bytes("ok🦀");
    cut.truncate(4);
    assert_eq!(run(&cut, options(Split::Off)).content, "ok\u{fffd}");
    let mut broken = bytes("🦀");
    broken.truncate(2);
    broken.extend(bytes("x"));
    assert_eq!(run(&broken, options(Split::Off)).content, "\u{fffd}x");
}

#[test]
fn a_stop_string_may_span_tokens() {
    let mut with_stop = options(Split::Off);
    with_stop.stops = vec!["STOP".into()];
    let result = run(&bytes("ab STOP cd"), with_stop.clone());
    assert_eq!(result.content, "ab ");
    assert_eq!(result.matched, Some(Matched::Text("STOP".into())));
    assert_eq!(result.kept, 7);
    assert_eq!(result.lines.len(), 3);
    with_stop.include_stop = true;
    let result = run(&bytes("ab STOP cd"), with_stop);
    assert_eq!(result.content, "ab STOP");
    assert_eq!(result.lines.len(), 7);
}

#[test]
fn text_that_is_no_stop_string_after_all_is_delivered() {
    let mut with_stop = options(Split::Off);
    with_stop.stops = vec!["aabaac".into(), "zz".into()];
    let result = run(&bytes("aabaabaac!"), with_stop.clone());
    assert_eq!((result.content.as_str(), result.kept), ("aab", 9));
    let result = run(&bytes("aabaaz"), with_stop);
    assert_eq!((result.content.as_str(), result.matched), ("aabaaz", None));
}

#[test]
fn the_earliest_stop_string_wins_then_the_longest() {
    let the = ids("the")[0];
    assert_eq!(byte_vocabulary().bytes(the), b"the");
    let mut with_stops = options(Split::Off);
    with_stops.stops = vec!["e".into(), "he".into(), "h".into()];
    let result = run(&[the], with_stops);
    assert_eq!(result.content, "t");
    assert_eq!(result.matched, Some(Matched::Text("he".into())));
    assert_eq!(result.lines, [the], "a token shown in part is reported");
}

#[test]
fn a_stop_string_inside_a_character_sequence() {
    let mut with_stop = options(Split::Off);
    with_stop.stops = vec!["\u{200d}👩".into()];
    let result = run(&bytes("x👩\u{200d}👩\u{200d}👧"), with_stop);
    assert_eq!(result.content, "x👩");
    assert_eq!(result.kept, 1 + 4 + 3 + 4);
}

#[test]
fn ends_and_chosen_stop_tokens() {
    let end = crate::testing::END_OF_TURN;
    let mut chosen = options(Split::Off);
    chosen.stop_ids = vec![u32::from(b'!')];
    let result = run(&bytes("hi!"), chosen.clone());
    assert_eq!((result.content.as_str(), result.kept), ("hi", 3));
    assert_eq!(result.matched, Some(Matched::Token(u32::from(b'!'))));
    assert_eq!(result.lines.len(), 2, "the stop token is not reported");
    chosen.include_stop = true;
    assert_eq!(run(&bytes("hi!"), chosen).content, "hi!");

    let ended = [bytes("hi"), vec![end]].concat();
    let mut shown = options(Split::Off);
    assert_eq!(run(&ended, shown.clone()).content, "hi");
    assert_eq!(run(&ended, shown.clone()).matched, Some(Matched::EndOfTurn));
    shown.skip_special = false;
    assert_eq!(run(&ended, shown).content, "hi<|im_end|>");
}

#[test]
fn reasoning_and_content_are_separate() {
    let text = "\n\nLet me\n\nsee\n\n</think>\n\nYes.\n";
    for ids in [bytes(text), ids(text)] {
        let result = run(&ids, options(Split::StartsInReasoning));
        assert_eq!(result.reasoning, "Let me\n\nsee");
        assert_eq!(result.content, "Yes.\n");
        assert_eq!(
            result.lines.len(),
            ids.len(),
            "every token is reported once"
        );
    }
    let close = ids(text).len() - ids("\n\nYes.\n").len();
    assert_eq!(
        run(&ids(text), options(Split::StartsInReasoning)).reasoning_tokens,
        close
    );
}

#[test]
fn repeated_marks_are_swallowed() {
    let result = run(
        &bytes("\n<think>\nhm</think></think>\nok</think>"),
        options(Split::StartsInReasoning),
    );
    assert_eq!(
        (result.reasoning.as_str(), result.content.as_str()),
        ("hm", "ok</think>")
    );
    let result = run(
        &bytes("hm</think>\n\n</think>ok"),
        options(Split::StartsInReasoning),
    );
    assert_eq!(
        (result.reasoning.as_str(), result.content.as_str()),
        ("hm", "ok")
    );
}

#[test]
fn an_opening_mark_first_in_the_content_opens_reasoning() {
    let result = run(
        &bytes(" \n<think>\nhm\n</think>\nok <think>"),
        options(Split::StartsInContent),
    );
    assert_eq!(
        (result.reasoning.as_str(), result.content.as_str()),
        ("hm", "ok <think>")
    );
    let result = run(&bytes("\n\n<th"), options(Split::StartsInContent));
    assert_eq!(
        (result.reasoning.as_str(), result.content.as_str()),
        ("", "\n\n<th")
    );
}

#[test]
fn cut_inside_the_reasoning_everything_is_reasoning() {
    let result = run(&bytes("thinking\n</thi"), options(Split::StartsInReasoning));
    assert_eq!(
        (result.reasoning.as_str(), result.content.as_str()),
        ("thinking\n</thi", "")
    );
    assert_eq!(result.reasoning_tokens, 14);
}

#[test]
fn a_stop_string_in_joined_reasoning_ends_it() {
    let joined = Split::Joined { in_reasoning: true };
    let stopped = TextOptions {
        stops: vec!["b".into()],
        ..options(joined)
    };
    let result = run(&ids("aab</think>c"), stopped);
    assert_eq!(
        (result.content.as_str(), result.reasoning_tokens),
        ("aa", 3)
    );
    let outside = Split::Joined {
        in_reasoning: false,
    };
    assert_eq!(run(&ids("abc"), options(outside)).reasoning_tokens, 0);
}

#[test]
fn stop_strings_act_on_content_only() {
    let mut with_stop = options(Split::StartsInReasoning);
    with_stop.stops = vec!["x".into()];
    let result = run(&bytes("axb</think>cxd"), with_stop);
    assert_eq!(
        (result.reasoning.as_str(), result.content.as_str()),
        ("axb", "c")
    );
    let mut newline = options(Split::StartsInContent);
    newline.stops = vec!["\n".into()];
    let result = run(&bytes("\nabc"), newline);
    assert_eq!((result.content.as_str(), result.kept), ("", 1));
}

proptest! {
    /// Whatever the cut into tokens, the text is that of a search in the whole text.
    #[test]
    fn equals_a_search_in_the_whole_text(
        text in "[ab<>/\nthinké🦀]{0,40}",
        stop in "[ab\né🦀]{1,3}",
        sizes in proptest::collection::vec(any::<bool>(), 64),
    ) {
        let mut with_stop = options(Split::Off);
        with_stop.stops = vec![stop.clone()];
        let tokens = if sizes[0] { bytes(&text) } else { ids(&text) };
        let result = run(&tokens, with_stop);
        let expected = text.find(&stop).map_or(text.as_str(), |at| &text[..at]);
        prop_assert_eq!(&result.content, expected);
        if let Some(at) = text.find(&stop) {
            // The shortest beginning of the tokens that holds the stop string.
            let vocabulary = byte_vocabulary();
            let mut length = 0;
            let mut kept = 0;
            for &id in &tokens {
                length += vocabulary.bytes(id).len();
                kept += 1;
                if length >= at + stop.len() { break; }
            }
            prop_assert_eq!(result.kept, kept);
        } else {
            prop_assert_eq!(result.kept, tokens.len());
            prop_assert_eq!(result.lines, tokens);
        }
    }

    /// Splitting off the reasoning loses nothing but marks and the newlines around them.
    #[test]
    fn reasoning_split_equals_a_split_of_the_whole_text(
        thought in "[a-d<th\n🦀]{0,12}",
        answer in "[a-d<th\n🦀]{0,12}",
        cut in any::<bool>(),
    ) {
        let whole = format!("{thought}</think>{answer}");
        prop_assume!(!thought.trim_start_matches('\n').starts_with("<think>"));
        prop_assume!(!answer.trim_start_matches('\n').starts_with("</think>"));
        let tokens = if cut { bytes(&whole) } else { ids(&whole) };
        let result = run(&tokens, options(Split::StartsInReasoning));
        prop_assert_eq!(&result.reasoning, thought.trim_matches('\n'));
        prop_assert_eq!(&result.content, answer.trim_start_matches('\n'));
    }

    /// Text that is not split has as much reasoning in it as if it were.
    #[test]
    fn joined_reasoning_is_counted_as_split_reasoning(
        text in "(<think>)?[a-d<th\n🦀]{0,12}(</think>)?[a-d<th\n🦀]{0,12}",
        in_reasoning in any::<bool>(),
        ended in any::<bool>(),
        cut in any::<bool>(),
    ) {
        let mut tokens = if cut { bytes(&text) } else { ids(&text) };
        if ended {
            tokens.push(crate::testing::END_OF_TURN);
        }
        let split = match in_reasoning {
            true => Split::StartsInReasoning,
            false => Split::StartsInContent,
        };
        let (apart, joined) = (
            run(&tokens, options(split)),
            run(&tokens, options(Split::Joined { in_reasoning })),
        );
        prop_assert_eq!(apart.reasoning_tokens, joined.reasoning_tokens);
        prop_assert_eq!(joined.content, text);
        prop_assert!(joined.reasoning.is_empty());
    }
}
