//! Constrained sequences: their tokens are legal, and the same in every shape and beside whatever
//! sequences. `SPINNEY_TEST_DEVICE=cuda` runs them on the first GPU too.

use std::rc::Rc;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::super::{Constraint, Emitted, StepSequence};
use super::*;

/// Which tokens may follow a text.
#[derive(Clone, Debug)]
pub(super) enum Law {
    /// Ids that leave the same rest as their position in the output.
    Position(u32),
    /// Ids whose rest follows from that of the token before.
    Follow(u32),
    /// These tokens in order, then any.
    Forced(Vec<u32>),
    /// Any but these.
    Without(Vec<u32>),
}

impl Law {
    fn allows(&self, text: &[u32], id: u32) -> bool {
        match self {
            Law::Position(n) => id % n == text.len() as u32 % n,
            Law::Follow(n) => text.last().is_none_or(|last| id % n == (last * 3 + 1) % n),
            Law::Forced(tokens) => tokens.get(text.len()).is_none_or(|&forced| forced == id),
            Law::Without(banned) => !banned.contains(&id),
        }
    }
}

/// A law and the output so far.
pub(super) struct Toy {
    law: Law,
    pub(super) text: Vec<u32>,
    masks: usize,
}

impl Toy {
    pub(super) fn new(law: &Law, text: &[u32]) -> Self {
        Toy {
            law: law.clone(),
            text: text.to_vec(),
            masks: 0,
        }
    }
}

impl Constraint for Toy {
    fn mask(&mut self, words: &mut [u32]) {
        assert!(words.iter().all(|&word| word == 0), "words come zeroed");
        for (word, first) in words.iter_mut().zip((0..).step_by(32)) {
            for bit in 0..32 {
                *word |= u32::from(self.law.allows(&self.text, first + bit)) << bit;
            }
        }
        self.masks += 1;
    }

    fn accept(&mut self, token: u32) {
        assert!(self.law.allows(&self.text, token), "{token} is illegal");
        self.text.push(token);
    }

    fn rollback(&mut self, tokens: usize) {
        self.text.truncate(self.text.len() - tokens);
    }
}

fn as_constraints(toys: &mut [Option<Toy>]) -> Vec<Option<&mut dyn Constraint>> {
    toys.iter_mut()
        .map(|toy| toy.as_mut().map(|toy| toy as &mut dyn Constraint))
        .collect()
}

/// Output of every sequence with its log-probabilities, and how many drafts were accepted.
#[derive(Debug, PartialEq)]
struct Decoded {
    outputs: Vec<Vec<Emitted>>,
    accepted: Vec<usize>,
}

/// Decodes `count` tokens behind each prompt, all in one batch; `laws[s]` binds sequence s.
fn decode<B: Backend>(
    runner: &mut Runner<B>,
    (prompts, laws): (&[Vec<u32>], &[Option<Law>]),
    params: &SamplingParams,
    count: usize,
    shape: impl Fn(usize, usize) -> Shape,
) -> Decoded {
    decode_steps(runner, (prompts, laws), params, count, |slot, round| {
        own(slot, shape(slot, round))
    })
}

fn decode_steps<B: Backend>(
    runner: &mut Runner<B>,
    (prompts, laws): (&[Vec<u32>], &[Option<Law>]),
    params: &SamplingParams,
    count: usize,
    step: impl Fn(usize, usize) -> SequenceStep,
) -> Decoded {
    let mut toys: Vec<Option<Toy>> = (laws.iter())
        .map(|law| law.as_ref().map(|law| Toy::new(law, &[])))
        .collect();
    for (slot, prompt) in prompts.iter().enumerate() {
        start(runner, slot, prompt, params);
    }
    let chunks: Vec<Chunk<'_>> = (prompts.iter().enumerate())
        .map(|(slot, tokens)| Chunk {
            slot,
            start: 0,
            tokens,
            last: true,
            prompt_logprobs: None,
        })
        .collect();
    let firsts = runner.prefill_constrained(&chunks, &mut as_constraints(&mut toys));
    let mut decoded = Decoded {
        outputs: vec![Vec::new(); prompts.len()],
        accepted: vec![0; prompts.len()],
    };
    for first in firsts.expect("the prefill runs") {
        let token = first.first.expect("the prompt ended");
        emit(
            &mut toys[first.slot],
            &mut decoded.outputs[first.slot],
            vec![token],
        );
    }
    for round in 0.. {
        let running = |slot: &usize| decoded.outputs[*slot].len() < count;
        let sequences: Vec<SequenceStep> = (0..prompts.len())
            .filter(running)
            .map(|slot| step(slot, round))
            .collect();
        if sequences.is_empty() {
            break;
        }
        let mut constraints = as_constraints(&mut toys);
        let mut slot = 0;
        constraints.retain(|_| {
            slot += 1;
            running(&(slot - 1))
        });
        let step = runner.step_constrained(&sequences, &mut constraints);
        for sequence in step.expect("the step runs").sequences {
            let slot = sequence.slot;
            assert_eq!(sequence.accepted + 1, sequence.tokens.len());
            decoded.accepted[slot] += sequence.accepted;
            emit(&mut toys[slot], &mut decoded.outputs[slot], sequence.tokens);
        }
    }
    for output in &mut decoded.outputs {
        output.truncate(count);
    }
    decoded
}

/// Moves a constraint on, from where it was left, by legal tokens.
fn emit(toy: &mut Option<Toy>, output: &mut Vec<Emitted>, tokens: Vec<Emitted>) {
    if let Some(toy) = toy {
        let text: Vec<u32> = output.iter().map(|token| token.id).collect();
        assert_eq!(toy.text, text, "a step takes back what it accepted");
        tokens.iter().for_each(|token| toy.accept(token.id));
    }
    output.extend(tokens);
}

fn prompts(seed: u64, vocab: usize, lengths: [usize; 3]) -> Vec<Vec<u32>> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    lengths
        .map(|len| {
            (0..len)
                .map(|_| rng.random_range(0..vocab as u32 - 1))
                .collect()
        })
        .into()
}

fn seeded() -> SamplingParams {
    SamplingParams {
        temperature: 0.9,
        top_p: 0.95,
        top_k: 40,
        frequency_penalty: 0.2,
        logit_bias: vec![(3, 4.0), (9, f32::NEG_INFINITY)],
        seed: 1 << 40 | 5,
        ..SamplingParams::default()
    }
}

/// Sequence 0 under `law`, 1 free, 2 under another law, in every shape and mix. Returns the drafts
/// of sequence 0 that trees accepted.
fn every_shape<B: Backend>(
    runner: &mut Runner<B>,
    prompts: &[Vec<u32>],
    law: &Law,
    params: &SamplingParams,
    count: usize,
) -> usize {
    let laws = [Some(law.clone()), None, Some(Law::Position(5))];
    let input = (prompts, &laws[..]);
    let plain = decode(runner, input, params, count, |_, _| Shape::Plain);
    let free = decode(
        runner,
        (prompts, &[None, None, None]),
        params,
        count,
        |_, _| Shape::Plain,
    );
    assert_eq!(
        plain.outputs[1], free.outputs[1],
        "beside a constrained one"
    );
    assert_ne!(plain.outputs[0], free.outputs[0], "{law:?} binds nothing");
    let mut accepted = 0;
    for shape in [Shape::Chain(7), Shape::Tree(15), Shape::Tree(63)] {
        let other = decode(runner, input, params, count, |_, _| shape);
        assert_eq!(plain.outputs, other.outputs, "{law:?}, {shape:?}");
        accepted += other.accepted[0];
    }
    let mixed = decode(runner, input, params, count, |slot, round| {
        [Shape::Plain, Shape::Tree(31), Shape::Chain(3)][(slot + round) % 3]
    });
    assert_eq!(plain.outputs, mixed.outputs, "{law:?}, mixed");
    for shape in [Shape::Chain(3), Shape::Tree(12)] {
        let shared = |slot, _| sharing(slot, shape);
        let shared = decode_steps(runner, input, params, count, shared);
        assert_eq!(plain.outputs, shared.outputs, "{law:?}, {shape:?} shared");
    }
    let alone = (&prompts[..1], &laws[..1]);
    let alone = decode(runner, alone, params, count, |_, _| Shape::Tree(15));
    assert_eq!(plain.outputs[0], alone.outputs[0], "{law:?}, alone");
    accepted
}

/// Bans whatever a free run of sequence 0 says.
fn without_favourites<B: Backend>(
    runner: &mut Runner<B>,
    prompts: &[Vec<u32>],
    params: &SamplingParams,
) -> Law {
    let free = decode(runner, (&prompts[..1], &[None]), params, 24, |_, _| {
        Shape::Plain
    });
    Law::Without(free.outputs[0].iter().map(|token| token.id).collect())
}

fn every_law<B: Backend>(runner: &mut Runner<B>, prompts: &[Vec<u32>], count: usize) {
    for params in [SamplingParams::default(), seeded()] {
        let favourites = without_favourites(runner, prompts, &params);
        let mut accepted = every_shape(runner, prompts, &favourites, &params, count);
        for law in [Law::Position(24), Law::Follow(7)] {
            accepted += every_shape(runner, prompts, &law, &params, count);
        }
        assert!(accepted > 0, "no draft was accepted");
        let forced = Law::Forced((0..20).map(|n| 10 + n * 31 % 80).collect());
        every_shape(runner, prompts, &forced, &params, count);
    }
}

/// What a step of `shape` would verify in slot 0: the drafts of a chain.
fn drafted<B: Backend>(runner: &mut Runner<B>, shape: Shape) -> Vec<u32> {
    let step = [own(0, shape)];
    let key = runner.stage_step(&step).expect("tables fit");
    runner.draft(key).expect("the draft runs");
    runner.build(key).expect("the tree is built");
    let mut tokens = vec![0; shape.rows()];
    let batch = &runner.verify.batch;
    let read = runner.backend.download(&batch.token, 0, &mut tokens);
    read.expect("the rows are there");
    tokens.split_off(1)
}

/// Where a constraint wants what the drafter says, whole chains and paths are accepted; where it
/// wants something else from some depth on, exactly what is before.
fn agreement_is_accepted<B: Backend>(runner: &mut Runner<B>, prompt: &[u32], cut: usize) {
    for params in [SamplingParams::default(), seeded()] {
        start(runner, 0, prompt, &params);
        let chunk = Chunk {
            slot: 0,
            start: 0,
            tokens: prompt,
            last: true,
            prompt_logprobs: None,
        };
        let first = runner
            .prefill(&[chunk])
            .expect("the prefill runs")
            .remove(0);
        let mut text = vec![first.first.expect("the prompt ended").id];
        for shape in [Shape::Chain(7), Shape::Tree(40), Shape::Chain(7)] {
            let wanted = drafted(runner, Shape::Chain(7));
            let mut forced = [&text[..], &wanted].concat();
            let at = text.len() + cut;
            forced[at] = (forced[at] + 1) % 90;
            // A bias bans token 9: it cannot be forced.
            forced.iter_mut().for_each(|id| *id += u32::from(*id == 9));
            let same = (0..7)
                .take_while(|&n| forced[text.len() + n] == wanted[n])
                .count();
            let mut toy = Toy::new(&Law::Forced(forced.clone()), &text);
            let step = [own(0, shape)];
            let step = runner.step_constrained(&step, &mut [Some(&mut toy)]);
            let sequence = step.expect("the step runs").sequences.remove(0);
            let emitted: Vec<u32> = sequence.tokens.iter().map(|token| token.id).collect();
            if shape == Shape::Chain(7) {
                assert_eq!(sequence.accepted, same);
                assert_eq!(toy.masks, same + 1, "the rest cannot be chosen");
            }
            assert!(toy.masks > sequence.accepted);
            let legal = &forced[text.len()..];
            let compared = legal.len().min(emitted.len());
            assert_eq!(emitted[..compared], legal[..compared], "{shape:?}");
            text.extend(emitted);
        }
    }
}

#[test]
fn every_shape_emits_the_same_legal_tokens() {
    let mut runner = runner(config());
    every_law(&mut runner, &prompts(23, VOCAB, [5, 64, 117]), 32);
}

#[test]
fn a_draft_that_the_constraint_agrees_with_is_accepted() {
    let mut runner = runner(config());
    for cut in [0, 3, 6] {
        agreement_is_accepted(&mut runner, &prompts(29, VOCAB, [40, 1, 1])[0], cut);
    }
}

/// On a GPU: halves that are recorded and launched, masks that kernels apply.
#[test]
fn constrained_steps_of_the_bundled_pair() {
    let Some(gpu) = rows::gpu() else {
        return println!("skipped: SPINNEY_TEST_DEVICE is not cuda");
    };
    let folder = rows::root("crates/server/spinney-tiny");
    let sources = ModelSources {
        drafter: Some(CheckpointSource::Folder(folder.join("drafter"))),
        target: CheckpointSource::Folder(folder),
        format: LoadFormat::Safetensors,
    };
    let mut runner = rows::load(gpu, &sources, 2_000);
    let prompts = prompts(31, 2_000, [40, 64, 117]);
    every_law(&mut runner, &prompts, 64);
    for cut in [0, 3, 6] {
        agreement_is_accepted(&mut runner, &prompts[0], cut);
    }
}

/// Three sequences behind their prompts.
fn started() -> Runner<Cpu> {
    let mut runner = runner(config());
    for (slot, prompt) in prompts(37, VOCAB, [12, 30, 70]).iter().enumerate() {
        start(&mut runner, slot, prompt, &seeded());
        prefill_pieces(&mut runner, slot, prompt, &[], true);
    }
    runner
}

fn steps(shapes: [Shape; 3]) -> Vec<SequenceStep> {
    let slots = shapes.into_iter().enumerate();
    slots.map(|(slot, shape)| own(slot, shape)).collect()
}

/// All that a step says of the free sequences, log-probabilities and predictions too, is what it
/// says without a constrained one; so it is of all where no constraint is given.
#[test]
fn free_sequences_do_not_notice() {
    let mut free = started();
    let (mut beside, mut none) = (started(), started());
    let first = free.slots.root[0];
    let mut toy = Toy::new(&Law::Position(7), &[first]);
    let shapes = [Shape::Tree(31), Shape::Chain(5), Shape::Plain];
    for round in 0..6 {
        let steps = steps([
            shapes[round % 3],
            shapes[(round + 1) % 3],
            shapes[(round + 2) % 3],
        ]);
        let expected = free.step(&steps).expect("the step runs").sequences;
        let same: Vec<StepSequence> = none
            .step_constrained(&steps, &mut [None, None, None])
            .expect("the step runs")
            .sequences;
        assert_eq!(same, expected);
        let found = beside
            .step_constrained(&steps, &mut [Some(&mut toy), None, None])
            .expect("the step runs")
            .sequences;
        assert_eq!(found[1..], expected[1..], "round {round}");
        found[0]
            .tokens
            .iter()
            .for_each(|token| toy.accept(token.id));
    }
    assert!(toy.masks > 6);
    // Masks of a former step do not bind a later one.
    let plain = steps([Shape::Plain; 3]);
    let (a, b) = (free.step(&plain), beside.step(&plain));
    let (a, b) = (a.expect("it runs").sequences, b.expect("it runs").sequences);
    assert_eq!(a[1..], b[1..]);
}

/// The tree is read only where a constrained sequence drafts, and nothing is uploaded but masks.
#[test]
fn a_constrained_step_moves_masks_and_a_tree() {
    let mut runner = started();
    runner.logprobs_top.fill(None);
    let backend = Rc::clone(&runner.backend);
    let (tree, plain) = (Shape::Tree(15), Shape::Plain);
    for (shapes, reads) in [([plain, tree, plain], 1), ([tree, plain, tree], 4)] {
        let steps = steps(shapes);
        let step = |runner: &mut Runner<Cpu>| {
            let (mut a, mut b) = (
                Toy::new(&Law::Position(3), &[]),
                Toy::new(&Law::Position(5), &[]),
            );
            let before = backend.transfers();
            let constraints = &mut [Some(&mut a as &mut dyn Constraint), None, Some(&mut b)];
            let output = runner
                .step_constrained(&steps, constraints)
                .expect("it runs");
            assert!(output.timing.parts.is_some(), "the CPU launches nothing");
            let after = backend.transfers();
            (after.0 - before.0, after.1 - before.1)
        };
        step(&mut runner);
        let (uploads, downloads) = step(&mut runner);
        // One per constrained sequence, and which rows have masks where that has changed.
        assert!((2..=3).contains(&uploads), "{uploads} uploads");
        assert_eq!(downloads, reads);
    }
}

#[test]
#[should_panic(expected = "one entry per sequence")]
fn constraints_are_as_many_as_sequences() {
    let mut runner = started();
    let _ = runner.step_constrained(&steps([Shape::Plain; 3]), &mut [None]);
}
