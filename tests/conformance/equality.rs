//! Point 3: however an answer is made and sent, it is the same answer.

use serde_json::Value;

use crate::answer::Answer;
use crate::corpus::corpus;
use crate::modes::{Modes, at_once};

/// What the requests have shown, so that nothing is equal only because it is empty.
#[derive(Debug, Default)]
struct Shown {
    content: usize,
    reasoning: usize,
    calls: usize,
    stopped: usize,
    cut: usize,
}

impl Shown {
    fn add(&mut self, answer: &Answer) {
        self.content += usize::from(!answer.content.is_empty());
        self.reasoning += usize::from(!answer.reasoning.is_empty());
        self.calls += answer.calls.len();
        self.stopped += usize::from(answer.matched.is_string());
        self.cut += usize::from(answer.finish == "length");
    }
}

/// Every body, whole and streamed, in every mode: the answers of plain decoding.
fn compare(bodies: &[Value]) -> Shown {
    let modes = Modes::shared();
    let expected = at_once(bodies, |body| Answer::whole(&modes.plain, body).0);
    let mut shown = Shown::default();
    expected.iter().for_each(|answer| shown.add(answer));
    let pairs: Vec<_> = bodies.iter().zip(&expected).collect();
    for (name, server) in modes.all() {
        let accepted = at_once(&pairs, |(body, expected)| {
            let (whole, statistics) = Answer::whole(server, body);
            assert_eq!(&whole, *expected, "{name}: {body}");
            let streamed = Answer::streamed(server, body);
            assert_eq!(&streamed, *expected, "{name}, streamed: {body}");
            statistics["num_accepted_draft_tokens"].as_u64().unwrap()
        });
        let accepted: u64 = accepted.iter().sum();
        assert_eq!(accepted > 0, name != "NONE", "{name}: {accepted} accepted");
    }
    shown
}

#[test]
fn point_03_stream_equals_whole() {
    let bodies: Vec<Value> = corpus().into_iter().step_by(7).collect();
    let shown = compare(&bodies);
    let Shown {
        content,
        reasoning,
        calls,
        stopped,
        cut,
    } = shown;
    assert!(
        content > 10 && reasoning > 2 && calls > 1,
        "{content} {reasoning} {calls}"
    );
    assert!(stopped > 1 && cut > 2, "{stopped} {cut}");
}

#[test]
#[ignore = "1,400 requests take minutes; run it after changes to streams, parsers or the step"]
fn point_03_stream_equals_whole_on_200_prompts() {
    let bodies = corpus();
    assert_eq!(bodies.len(), 200);
    println!("{:?}", compare(&bodies));
}
