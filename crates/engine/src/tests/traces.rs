//! What steps report of themselves is what they did, and asking changes nothing.

use std::collections::BTreeMap;

use model::Shape;

use super::fixture_pair::{auto, chain, plain, requests, spec, start, tree};
use super::harness::Harness;
use crate::{EngineConfig, RequestId, RequestUpdate, StepTrace};

/// Every update of every request, in order.
fn updates(config: EngineConfig, asks: impl Fn(usize) -> bool) -> Vec<Vec<RequestUpdate>> {
    let harness: Harness = start(spec(), config);
    let mut ids: BTreeMap<RequestId, usize> = BTreeMap::new();
    for (index, mut request) in requests().into_iter().enumerate() {
        request.trace = asks(index);
        let id = harness.handle().submit(request);
        ids.insert(id.expect("the request is valid"), index);
    }
    harness.handle().drain();
    let mut updates = vec![Vec::new(); ids.len()];
    for output in &harness.engine.outputs {
        for update in output.updates {
            updates[ids[&update.id]].push(update);
        }
    }
    updates
}

fn check(trace: &StepTrace, last: Option<u32>, tokens: &[u32]) {
    let nodes = &trace.tree.nodes;
    assert!(nodes.len() <= trace.shape.rows(), "{trace:?}");
    assert_eq!(Some(nodes[0].token), last, "the root is the last token");
    assert_eq!((nodes[0].parent, nodes[0].draft), (None, None));
    for (index, node) in nodes.iter().enumerate().skip(1) {
        let parent = node.parent.expect("only the root has no parent");
        assert!(parent < index && node.depth == nodes[parent].depth + 1);
        let draft = node.draft.expect("every draft was a candidate");
        assert!(draft.logprob <= 0.0 && draft.rank < 15, "{draft:?}");
        match trace.shape {
            Shape::Plain => panic!("a plain step has no drafts"),
            Shape::Chain(_) => assert_eq!((parent, draft.rank), (index - 1, 0)),
            Shape::Tree(_) => {}
        }
    }
    let mut at = 0;
    for &node in &trace.tree.path {
        assert_eq!(nodes[node].parent, Some(at), "the path goes down");
        at = node;
    }
    let said: Vec<u32> = trace.tokens().collect();
    assert_eq!(said, tokens, "{trace:?}");
    assert!(trace.ms >= 0.0);
}

#[test]
fn traces_say_what_steps_did() {
    let (mut accepted, mut branched) = (0, 0);
    for mode in [plain(), chain(7), tree(15), tree(63), auto()] {
        let what = format!("{mode:?}");
        let without = updates(mode.clone(), |_| false);
        let with = updates(mode, |index| index % 3 != 2);
        for (index, (without, with)) in without.iter().zip(&with).enumerate() {
            assert!(without.iter().all(|update| update.trace.is_none()));
            let all = |updates: &[RequestUpdate]| -> Vec<u32> {
                let tokens = updates.iter().flat_map(|update| &update.tokens);
                tokens.map(|token| token.id).collect()
            };
            assert_eq!(all(without), all(with), "request {index}, {what}");
            let (mut last, mut counted) = (None, 0);
            for update in with {
                let tokens: Vec<u32> = update.tokens.iter().map(|token| token.id).collect();
                assert!(index % 3 != 2 || update.trace.is_none(), "nobody asked");
                if let Some(trace) = &update.trace {
                    check(trace, last, &tokens);
                    counted += trace.count();
                    accepted += trace.tree.path.len();
                    branched +=
                        usize::from(trace.tree.nodes.iter().enumerate().any(|(node, links)| {
                            links.parent.is_some_and(|parent| parent + 1 != node)
                        }));
                }
                last = tokens.last().copied().or(last);
            }
            if index % 3 != 2 {
                let finish = with.last().and_then(|update| update.finish.as_ref());
                let tokens = finish.expect("a terminal update").completion_tokens;
                assert_eq!(counted, tokens.saturating_sub(1), "request {index}, {what}");
            }
        }
    }
    assert!(accepted > 10 && branched > 10, "{accepted}, {branched}");
}
