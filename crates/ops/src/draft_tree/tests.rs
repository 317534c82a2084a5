use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::*;
use crate::limits::DEPTH_MAX;
use crate::testing::{Segment, batch, slots};

/// Depth tables of the worked example of the specification.
const TOKENS: [u32; 9] = [11, 12, 13, 21, 22, 23, 31, 32, 33];
const PROBABILITIES: [f32; 9] = [0.6, 0.3, 0.1, 0.7, 0.2, 0.1, 0.55, 0.35, 0.1];

fn logs(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln()).collect()
}

/// Ranks of a node as a tuple, from its digits.
fn tuple(node: &Node) -> Vec<usize> {
    let digits = format!("{:016x}", node.ranks);
    let ranks = digits.chars().map(|c| c.to_digit(16).unwrap() as usize);
    let ranks: Vec<usize> = ranks.take_while(|&rank| rank > 0).collect();
    assert_eq!(digits.trim_end_matches('0').len(), ranks.len());
    ranks
}

fn tuples(nodes: &[Node]) -> Vec<Vec<usize>> {
    nodes.iter().map(tuple).collect()
}

fn best(logprobs: &[f32], k: usize, depth_max: usize, count: usize) -> Vec<Node> {
    let ids: Vec<u32> = (0..logprobs.len() as u32).collect();
    let candidates = Candidates::new(&ids, logprobs, k, depth_max);
    candidates.best_first().take(count).collect()
}

/// All tuples with their scores, sorted by the normative order.
fn brute_force(logprobs: &[f32], k: usize, depths: usize) -> Vec<(Vec<usize>, f32)> {
    let mut all = Vec::new();
    let mut level = vec![(Vec::new(), 0.0_f32)];
    for depth in 0..depths {
        let mut next = Vec::new();
        for (ranks, score) in &level {
            for rank in 1..=k {
                let lp = logprobs[depth * k + rank - 1];
                if lp == f32::NEG_INFINITY {
                    break;
                }
                let mut extended: Vec<usize> = ranks.clone();
                extended.push(rank);
                next.push((extended, score + lp));
            }
        }
        all.extend(next.iter().cloned());
        level = next;
    }
    all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
    all
}

/// A descending row of log-probabilities. Quantised ones make exact ties between different paths.
fn random_row(rng: &mut Pcg64, k: usize, quantised: bool) -> Vec<f32> {
    let mut row: Vec<f32> = (0..k)
        .map(|_| match quantised {
            true => -0.5 * rng.random_range(0..6) as f32,
            false => -5.0 * rng.random::<f32>(),
        })
        .collect();
    row.sort_by(|a, b| b.total_cmp(a));
    if rng.random_range(0..6) == 0 {
        let end = rng.random_range(0..=k);
        row[end..].fill(f32::NEG_INFINITY);
    }
    row
}

#[test]
fn worked_example_is_chosen_in_order() {
    let logprobs = logs(&PROBABILITIES);
    let candidates = Candidates::new(&TOKENS, &logprobs, 3, 3);
    let mut search = candidates.best_first();
    // Ranks, token, probability, and how many nodes are in the frontier afterwards.
    let expected: [(&[usize], u32, f32, usize); 6] = [
        (&[1], 11, 0.6, 2),
        (&[1, 1], 21, 0.42, 3),
        (&[2], 12, 0.3, 4),
        (&[1, 1, 1], 31, 0.231, 4),
        (&[2, 1], 21, 0.21, 5),
        (&[1, 1, 2], 32, 0.147, 5),
    ];
    let mut nodes = Vec::new();
    for (ranks, token, probability, frontier) in expected {
        let node = search.next().unwrap();
        assert_eq!(tuple(&node), ranks);
        assert_eq!(candidates.token(&node), token);
        assert_eq!(node.depth, ranks.len());
        assert!((node.score - probability.ln()).abs() < 1e-6);
        assert_eq!(search.frontier.len(), frontier);
        nodes.push(node);
    }
    let mut left: Vec<_> = search
        .frontier
        .iter()
        .map(|open| tuple(&open.node))
        .collect();
    left.sort();
    assert_eq!(
        left,
        [
            vec![1, 1, 3],
            vec![1, 2],
            vec![2, 1, 1],
            vec![2, 2],
            vec![3]
        ]
    );
    // Layout by score: parents by order of choice, 0 = root.
    let parents: Vec<usize> = nodes.iter().map(|node| node.parent).collect();
    assert_eq!(parents, [0, 1, 0, 2, 3, 2]);
    let phi: f32 = nodes.iter().map(|node| node.score.exp()).sum();
    assert!((phi - 1.908).abs() < 1e-5);
}

#[test]
fn ties_go_to_the_smaller_tuple() {
    let halves = logs(&[0.5, 0.5, 0.5, 0.5]);
    assert_eq!(
        tuples(&best(&halves, 2, 2, 5)),
        [vec![1], vec![2], vec![1, 1], vec![1, 2], vec![2, 1]]
    );
    let quarters = logs(&[0.5, 0.25, 0.25, 0.5, 0.25, 0.25]);
    assert_eq!(
        tuples(&best(&quarters, 3, 2, 7)),
        [
            vec![1],
            vec![1, 1],
            vec![2],
            vec![3],
            vec![1, 2],
            vec![1, 3],
            vec![2, 1]
        ]
    );
}

#[test]
fn equals_brute_force_order_included() {
    let mut rng = Pcg64::seed_from_u64(1);
    let mut ties = 0;
    for instance in 0..3000 {
        let (depths, k) = (rng.random_range(1..=5), rng.random_range(1..=5));
        let rows: Vec<Vec<f32>> = (0..depths)
            .map(|_| random_row(&mut rng, k, instance % 2 == 0))
            .collect();
        let logprobs = rows.concat();
        let depth_max = rng.random_range(0..=depths);
        let count = rng.random_range(0..=63);
        let mut expected = brute_force(&logprobs, k, depth_max);
        expected.truncate(count);
        ties += expected
            .windows(2)
            .filter(|pair| pair[0].1 == pair[1].1)
            .count();
        let nodes = best(&logprobs, k, depth_max, count);
        let scored: Vec<_> = nodes.iter().map(|node| (tuple(node), node.score)).collect();
        assert_eq!(scored, expected, "instance {instance}: {logprobs:?}");
        for node in &nodes {
            let prefix = &tuple(node)[..node.depth - 1];
            let parent = match node.parent {
                0 => Vec::new(),
                number => tuple(&nodes[number - 1]),
            };
            assert_eq!(parent, prefix);
        }
    }
    assert!(ties > 5000, "only {ties} exact ties were tried");
}

#[test]
fn widest_and_deepest_ranks_fit() {
    // Every rank is likely at the first depth and at the last, and only the first in between: 15
    // chains of 14 nodes, each with 15 leaves.
    let logprobs: Vec<f32> = (0..DEPTH_MAX * 15)
        .map(|i| match i / 15 {
            0 | 14 => -1e-4 * (i % 15) as f32,
            _ => -10.0 * (i % 15) as f32,
        })
        .collect();
    let nodes = best(&logprobs, 15, DEPTH_MAX, 15 * 14 + 15 * 15);
    assert!(nodes.iter().any(|node| tuple(node) == [1; DEPTH_MAX]));
    assert!(nodes.iter().any(|node| tuple(node) == [15]));
    let mut deep = vec![1; DEPTH_MAX];
    deep[DEPTH_MAX - 1] = 15;
    assert!(nodes.iter().any(|node| tuple(node) == deep));
}

#[test]
fn a_nan_ends_the_depth_wherever_it_stands() {
    for place in 0..3 {
        let mut logprobs = logs(&PROBABILITIES);
        logprobs[3 + place] = f32::NAN;
        let nodes = best(&logprobs, 3, 3, 63);
        assert_eq!(tuples(&nodes), [vec![1], vec![2], vec![3]]);
    }
}

/// A step of sequences that draft from random candidates.
struct Step {
    depths: usize,
    k: usize,
    /// `[blocks, depths, k]`.
    ids: Box<[u32]>,
    /// `[blocks, depths, k]`.
    logprobs: Box<[f32]>,
    plan: DraftPlan<Cpu>,
    shared: bool,
    /// `[sequences]` deepest node that can still be emitted.
    depth_max: Vec<u32>,
    batch: Batch<Cpu>,
    padding: Box<[u32]>,
    prediction: Box<[f32]>,
}

impl Step {
    /// Sequence s in slot s with root `900 + s` and block s.
    fn new(depths: usize, k: usize, logprobs: &[f32], rows: &[usize]) -> Self {
        let segments: Vec<_> = (rows.iter().enumerate())
            .map(|(slot, &rows)| Segment {
                slot: slot as u32,
                token: &[7; 64][..rows],
                parent: &[-1; 64][..rows],
            })
            .collect();
        let batch = batch(&segments);
        let mut plan = DraftPlan::new(&Cpu::default(), rows.len()).unwrap();
        for sequence in 0..rows.len() {
            plan.block[sequence] = sequence as u32;
        }
        Step {
            depths,
            k,
            ids: (100..100 + logprobs.len() as u32).collect(),
            logprobs: logprobs.into(),
            plan,
            shared: false,
            depth_max: vec![depths as u32; rows.len()],
            padding: vec![9; batch.rows_max].into(),
            batch,
            prediction: vec![-1.0; rows.len() * Prediction::LEN].into(),
        }
    }

    fn run(mut self) -> Self {
        let mut slots = slots(self.plan.block.len(), 10);
        for (slot, root) in slots.root.iter_mut().enumerate() {
            *root = 900 + slot as u32;
        }
        for (slot, &depth) in self.depth_max.iter().enumerate() {
            slots.emitted[slot] = 5;
            slots.sampling[slot].tokens_max = 5 + 1 + depth;
        }
        Cpu::default()
            .build_tree(BuildTree {
                block_size: 1 + self.depths,
                k: self.k,
                ids: &self.with_anchors(&self.ids, 77),
                logprobs: &self.with_anchors(&self.logprobs, 0.0),
                plan: &self.plan,
                shared: self.shared,
                slots: &slots,
                batch: &mut self.batch,
                padding: &mut self.padding,
                prediction: &mut self.prediction,
            })
            .unwrap();
        self
    }

    /// Candidates with a row in front of each block, which must not be read as one.
    fn with_anchors<T: Copy>(&self, candidates: &[T], anchor: T) -> Box<[T]> {
        let blocks = candidates.chunks(self.depths * self.k);
        blocks
            .flat_map(|block| [&vec![anchor; self.k], block].concat())
            .collect()
    }

    /// Tokens, parents, depths, padding of a segment.
    fn segment(&self, sequence: usize) -> (&[u32], &[i32], &[u32], &[u32]) {
        let start = self.batch.sequence_start[sequence] as usize;
        let rows = start..start + self.batch.sequence_rows[sequence] as usize;
        (
            &self.batch.token[rows.clone()],
            &self.batch.parent[rows.clone()],
            &self.batch.depth[rows.clone()],
            &self.padding[rows],
        )
    }

    fn prediction(&self, sequence: usize) -> &[f32] {
        &self.prediction[sequence * Prediction::LEN..][..Prediction::LEN]
    }
}

#[test]
fn worked_example_lies_in_depth_first_order() {
    let mut step = Step::new(3, 3, &logs(&PROBABILITIES), &[7]);
    step.ids = TOKENS.into();
    let step = step.run();
    let (token, parent, depth, padding) = step.segment(0);
    assert_eq!(token, [900, 11, 21, 31, 32, 12, 21]);
    assert_eq!(parent, [-1, 0, 1, 2, 2, 0, 5]);
    assert_eq!(depth, [0, 1, 2, 3, 3, 1, 2]);
    assert_eq!(padding, [0; 7]);
    // The rows behind the live ones keep what they had.
    assert_eq!(step.padding[7..], [9, 9]);
}

#[test]
fn sequences_draft_from_their_own_blocks_and_plans() {
    let halves = logs(&[0.6, 0.4, 0.9, 0.1]);
    let mut step = Step::new(
        2,
        2,
        &[halves.clone(), halves.clone(), halves].concat(),
        &[4; 5],
    );
    step.plan.block.copy_from_slice(&[2, NONE, 0, 1, 0]);
    step.plan.chain.copy_from_slice(&[0, 0, 1, 0, 1]);
    step.depth_max = vec![2, 2, 2, 1, 0];
    let step = step.run();
    let trees = [
        // (1) .6, (1,1) .54, (2) .4
        ([900, 108, 110, 109], [-1, 0, 1, 0], [0, 1, 2, 1], [0; 4]),
        ([901; 4], [-1, 0, 0, 0], [0, 1, 1, 1], [0, 1, 1, 1]),
        (
            [902, 100, 102, 902],
            [-1, 0, 1, 0],
            [0, 1, 2, 1],
            [0, 0, 0, 1],
        ),
        (
            [903, 104, 105, 903],
            [-1, 0, 0, 0],
            [0, 1, 1, 1],
            [0, 0, 0, 1],
        ),
        ([904; 4], [-1, 0, 0, 0], [0, 1, 1, 1], [0, 1, 1, 1]),
    ];
    for (sequence, (token, parent, depth, padding)) in trees.iter().enumerate() {
        assert_eq!(
            step.segment(sequence),
            (&token[..], &parent[..], &depth[..], &padding[..]),
            "sequence {sequence}"
        );
    }
    assert_eq!(step.prediction(1), [0.0; Prediction::LEN]);
    assert_eq!(step.prediction(4), [0.0; Prediction::LEN]);
    // All six nodes: depth 1 has mass 1, depth 2 too. The chain is (1), (1,1).
    let close = |value: f32, expected: f32| assert!((value - expected).abs() < 1e-6);
    for sequence in [0, 2] {
        step.prediction(sequence)[..4]
            .iter()
            .for_each(|&phi| close(phi, 2.0));
        step.prediction(sequence)[4..]
            .iter()
            .for_each(|&phi| close(phi, 1.14));
    }
    step.prediction(3)[..4]
        .iter()
        .for_each(|&phi| close(phi, 1.0));
    step.prediction(3)[4..]
        .iter()
        .for_each(|&phi| close(phi, 0.6));
}

#[test]
fn dead_candidates_leave_padding() {
    let dead = f32::NEG_INFINITY;
    let step = Step::new(
        2,
        2,
        &[-0.5, dead, dead, dead, dead, dead, -0.1, -3.0],
        &[4, 3],
    )
    .run();
    let (token, parent, _, padding) = step.segment(0);
    assert_eq!(
        (token, parent),
        (&[900, 100, 900, 900][..], &[-1, 0, 0, 0][..])
    );
    assert_eq!(padding, [0, 0, 1, 1]);
    let (token, _, depth, padding) = step.segment(1);
    assert_eq!(
        (token, depth, padding),
        (&[901; 3][..], &[0, 1, 1][..], &[0, 1, 1][..])
    );
    assert_eq!(step.prediction(1), [0.0; Prediction::LEN]);
}

/// Against the sums of the brute-force order, in f64, and whatever the rows are.
#[test]
fn prediction_is_of_the_best_63_nodes_and_of_the_chain() {
    let mut rng = Pcg64::seed_from_u64(2);
    for _ in 0..50 {
        let (depths, k) = (5, 4);
        let rows: Vec<_> = (0..depths)
            .map(|_| random_row(&mut rng, k, false))
            .collect();
        let logprobs = rows.concat();
        let depth_max = rng.random_range(1..=depths);
        let all = brute_force(&logprobs, k, depth_max);
        let mass = |nodes: &mut dyn Iterator<Item = &(Vec<usize>, f32)>, count: usize| -> f64 {
            nodes.take(count).map(|node| f64::from(node.1).exp()).sum()
        };
        let is_chain = |node: &&(Vec<usize>, f32)| node.0.iter().all(|&rank| rank == 1);
        let mut expected: Vec<f64> = vec![];
        expected.extend([7, 15, 31, 63].map(|budget| mass(&mut all.iter(), budget)));
        expected.extend([3, 7, 15].map(|n| mass(&mut all.iter().filter(is_chain), n)));
        let mut step = Step::new(depths, k, &[&logprobs[..]; 3].concat(), &[1, 17, 64]);
        step.plan.chain[1] = 1;
        step.depth_max.fill(depth_max as u32);
        let step = step.run();
        for sequence in 0..3 {
            for (value, expected) in step.prediction(sequence).iter().zip(&expected) {
                assert!((f64::from(*value) - expected).abs() < 1e-4);
            }
        }
    }
}

/// Every subtree is contiguous, siblings ascend in rank, and the likeliest path comes first.
#[test]
fn full_trees_lie_depth_first() {
    let mut rng = Pcg64::seed_from_u64(3);
    for _ in 0..200 {
        let (depths, k) = (15, 8);
        let logprobs: Vec<f32> = (0..depths)
            .flat_map(|_| random_row(&mut rng, k, true))
            .collect();
        let step = Step::new(depths, k, &logprobs, &[64]).run();
        let (token, parent, depth, padding) = step.segment(0);
        let nodes = 64 - padding.iter().sum::<u32>() as usize;
        let expected = best(&logprobs, k, depths, 63);
        assert_eq!(nodes, 1 + expected.len());
        let mut paths: Vec<Vec<usize>> = vec![Vec::new()];
        for row in 1..nodes {
            let mut path = paths[parent[row] as usize].clone();
            assert_eq!(path.len() + 1, depth[row] as usize);
            let offset = token[row] as usize - 100;
            assert_eq!(offset / k, path.len());
            path.push(1 + offset % k);
            assert!(paths[row - 1] < path, "rank tuples ascend");
            paths.push(path);
        }
        let mut sorted = tuples(&expected);
        sorted.sort();
        assert_eq!(paths[1..], sorted);
    }
}

/// Roots that stand so that n more tokens fit, by either limit, get a tree of depth n - 1.
#[test]
fn no_node_is_drafted_that_cannot_be_emitted() {
    let mut slots = slots(1, 10);
    let limits = |slots: &mut Slots<Cpu>, emitted, tokens_max, length, context_max| {
        slots.emitted[0] = emitted;
        slots.length[0] = length;
        slots.sampling[0].tokens_max = tokens_max;
        slots.sampling[0].context_max = context_max;
        useful_depth(slots, 0)
    };
    assert_eq!(limits(&mut slots, 3, 8, 10, 1000), 4);
    assert_eq!(limits(&mut slots, 3, 4, 10, 1000), 0);
    assert_eq!(limits(&mut slots, 4, 4, 10, 1000), 0);
    assert_eq!(
        limits(&mut slots, 3, 800, 10, 16),
        4,
        "root and five tokens"
    );
    assert_eq!(limits(&mut slots, 3, 800, 10, 12), 0);
    assert_eq!(limits(&mut slots, 3, 800, 10, 10), 0);
    assert_eq!(limits(&mut slots, 0, u32::MAX, u32::MAX, u32::MAX), 0);
    assert_eq!(limits(&mut slots, 0, u32::MAX, 0, u32::MAX), u32::MAX - 2);
}

mod shared;
