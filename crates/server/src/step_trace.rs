//! `return_step_trace`: what every step drafted, verified and kept.

use engine::{Shape, StepTrace};
use serde_json::{Value, json};

use crate::logprobs::finite;
use crate::vocabulary::Vocabulary;

/// The object of one step.
pub(crate) fn object(vocabulary: &Vocabulary, trace: &StepTrace) -> Value {
    let (mode, rows) = match trace.shape {
        Shape::Plain => ("plain", 1),
        Shape::Chain(_) => ("chain", trace.shape.rows()),
        Shape::Tree(_) => ("tree", trace.shape.rows()),
    };
    let text = |id: u32| vocabulary.decode(&[id], false);
    let nodes = trace.tree.nodes.iter().map(|node| {
        json!({
            "id": node.token,
            "text": text(node.token),
            "parent": node.parent,
            "depth": node.depth,
            "rank": node.draft.map(|draft| draft.rank),
            "logprob": node.draft.map(|draft| finite(draft.logprob)),
        })
    });
    json!({
        "mode": mode,
        "budget": rows - 1,
        "rows": rows,
        "nodes": nodes.collect::<Vec<_>>(),
        "path": trace.tree.path,
        "bonus": trace.bonus.map(|id| json!({"id": id, "text": text(id)})),
        "tokens": trace.count(),
        "ms": trace.ms,
    })
}

/// Lets only the first `kept` tokens of an output count. Its first token comes from no step.
pub(crate) fn trim(traces: &mut Vec<StepTrace>, kept: usize) {
    let mut left = kept.saturating_sub(1);
    traces.retain_mut(|trace| {
        let whole = trace.count();
        trace.trim(left);
        left = left.saturating_sub(whole);
        trace.count() > 0
    });
}

#[cfg(test)]
mod tests {
    use engine::{DraftRank, StepNode, StepTree};

    use super::*;
    use crate::testing::byte_vocabulary;

    /// Two of three drafts were accepted.
    fn trace() -> StepTrace {
        let node = |token, parent: Option<usize>, depth, rank| StepNode {
            token,
            parent,
            depth,
            draft: parent.map(|_| DraftRank {
                rank,
                logprob: -0.5,
            }),
        };
        StepTrace {
            shape: Shape::Tree(3),
            tree: StepTree {
                nodes: vec![
                    node(65, None, 0, 0),
                    node(66, Some(0), 1, 0),
                    node(257, Some(1), 2, 0),
                    node(67, Some(0), 1, 1),
                ],
                path: vec![1, 2],
            },
            bonus: Some(68),
            ms: 2.5,
        }
    }

    #[test]
    fn the_object_has_the_documented_shape() {
        let object = object(&byte_vocabulary(), &trace());
        let expected = json!({"mode": "tree", "budget": 3, "rows": 4, "nodes": [
            {"id": 65, "text": "A", "parent": null, "depth": 0, "rank": null, "logprob": null},
            {"id": 66, "text": "B", "parent": 0, "depth": 1, "rank": 0, "logprob": -0.5},
            {"id": 257, "text": "the", "parent": 1, "depth": 2, "rank": 0, "logprob": -0.5},
            {"id": 67, "text": "C", "parent": 0, "depth": 1, "rank": 1, "logprob": -0.5}],
            "path": [1, 2], "bonus": {"id": 68, "text": "D"}, "tokens": 3, "ms": 2.5});
        assert_eq!(object, expected);
    }

    #[test]
    fn steps_behind_the_end_are_none() {
        for (kept, counts) in [
            (7, &[3, 3][..]),
            (6, &[3, 2]),
            (4, &[3]),
            (2, &[1]),
            (1, &[]),
            (0, &[]),
        ] {
            let mut traces = vec![trace(), trace()];
            trim(&mut traces, kept);
            let left: Vec<usize> = traces.iter().map(StepTrace::count).collect();
            assert_eq!(left, counts, "{kept} tokens");
        }
    }
}
