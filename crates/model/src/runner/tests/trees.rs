//! What is read back of a step's trees.

use super::super::{StepNode, StepSequence, StepTree};
use super::*;

fn started() -> Runner<Cpu> {
    let mut runner = runner(config());
    for slot in 0..3 {
        let prompt: Vec<u32> = (0..20 + 17 * slot as u32).map(|i| i * 7 % 90).collect();
        start(&mut runner, slot, &prompt, &SamplingParams::default());
        prefill_pieces(&mut runner, slot, &prompt, &[], true);
    }
    runner
}

/// A node's siblings from the likeliest down have every rank from 0 on without a gap, as a
/// best-first tree has.
fn check(tree: &StepTree, shape: Shape, result: &StepSequence) {
    assert_eq!(tree.nodes.len(), 1 + result.drafted);
    assert_eq!(tree.path.len(), result.accepted);
    for (index, node) in tree.nodes.iter().enumerate() {
        let children = |child: &&StepNode| child.parent == Some(index);
        let mut drafts: Vec<_> = (tree.nodes.iter().filter(children))
            .map(|child| child.draft.expect("a draft"))
            .collect();
        drafts.sort_by_key(|draft| draft.rank);
        for (rank, draft) in drafts.iter().enumerate() {
            assert_eq!(draft.rank, rank, "children of {node:?}");
        }
        assert!(drafts.is_sorted_by(|a, b| a.logprob >= b.logprob));
        assert!(matches!(shape, Shape::Tree(_)) || drafts.len() <= 1);
    }
    let path = tree.path.iter().map(|&node| tree.nodes[node].token);
    let emitted = result.tokens.iter().map(|token| token.id);
    assert!(path.eq(emitted.take(result.accepted)));
}

#[test]
fn trees_are_those_that_were_walked() {
    let mut runner = started();
    let mixes = [
        [Shape::Tree(15), Shape::Plain, Shape::Chain(4)],
        [Shape::Plain, Shape::Tree(30), Shape::Tree(2)],
        [Shape::Chain(7), Shape::Tree(3), Shape::Tree(63)],
    ];
    let mut accepted = 0;
    let mut last: [Option<u32>; 3] = [None; 3];
    for round in 0..30 {
        let shapes = mixes[round % mixes.len()];
        let step = if round % 4 < 2 { own } else { sharing };
        let steps: Vec<SequenceStep> = (shapes.iter().enumerate())
            .map(|(slot, &shape)| step(slot, shape))
            .collect();
        let results = runner.step(&steps).expect("the step runs").sequences;
        let none = runner.step_trees(&steps, &results, &[false; 3]);
        assert_eq!(none.expect("nothing is read"), [None, None, None]);
        let asked = [true, round % 2 == 0, true];
        let trees = runner.step_trees(&steps, &results, &asked);
        for (slot, tree) in trees.expect("tables are read").into_iter().enumerate() {
            assert_eq!(tree.is_some(), asked[slot]);
            if let Some(tree) = tree {
                check(&tree, shapes[slot], &results[slot]);
                assert!(last[slot].is_none_or(|last| tree.nodes[0].token == last));
                accepted += results[slot].accepted;
            }
            last[slot] = results[slot].tokens.last().map(|token| token.id);
        }
    }
    assert!(accepted > 0, "no step accepted anything");
}
