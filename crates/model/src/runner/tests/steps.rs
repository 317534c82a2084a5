//! What a step is made of: tables, ops with the capacities of its key, one download.

use std::rc::Rc;

use ops::DEPTH_MAX;

use super::super::StepSequence;
use super::super::step::PartClock;
use super::*;
use crate::AcceptanceLaw;

/// Three sequences behind their prompts, nothing drafted yet.
fn started(config: RunnerConfig, logprobs: bool) -> Runner<Cpu> {
    let mut runner = runner(config);
    for slot in 0..3 {
        let prompt: Vec<u32> = (0..20 + 17 * slot as u32).map(|i| i * 7 % 90).collect();
        start(&mut runner, slot, &prompt, &SamplingParams::default());
        prefill_pieces(&mut runner, slot, &prompt, &[], true);
        if !logprobs {
            runner.slots.sampling[slot].logprobs = 0;
            runner.logprobs_top[slot] = None;
        }
    }
    runner
}

fn steps(shapes: &[Shape]) -> Vec<SequenceStep> {
    let slots = shapes.iter().enumerate();
    slots.map(|(slot, &shape)| own(slot, shape)).collect()
}

/// The same where those that draft share their rows.
fn shared(shapes: &[Shape]) -> Vec<SequenceStep> {
    let slots = shapes.iter().enumerate();
    slots.map(|(slot, &shape)| sharing(slot, shape)).collect()
}

/// A step whose ops have the capacities of `key`, as a recorded step has.
fn step_with(runner: &mut Runner<Cpu>, key: StepKey, steps: &[SequenceStep]) -> Vec<StepSequence> {
    let own = runner.stage_step(steps).expect("tables fit");
    assert!(key.covers(own), "{key:?} for {own:?}");
    runner
        .enqueue(key, &mut PartClock::start())
        .expect("the ops run");
    runner.read_step(steps).expect("the result is read")
}

/// A recorded step serves every smaller one: capacities beyond what is live change nothing, and
/// neither does what larger steps have left in the buffers.
#[test]
fn a_larger_key_gives_the_same_result() {
    let mixes = [
        vec![Shape::Tree(7)],
        vec![Shape::Tree(15), Shape::Plain, Shape::Chain(4)],
        vec![Shape::Chain(7), Shape::Tree(3)],
        vec![Shape::Plain, Shape::Tree(30), Shape::Tree(2)],
        vec![Shape::Tree(1)],
    ];
    let (mut exact, mut large) = (started(config(), true), started(config(), true));
    let key = StepKey::of([Shape::Tree(63); 3].into_iter(), 3);
    for round in 0..12 {
        let steps = steps(&mixes[round % mixes.len()]);
        let expected = exact.step(&steps).expect("the step runs").sequences;
        assert_eq!(
            step_with(&mut large, key, &steps),
            expected,
            "round {round}"
        );
    }
    let key = StepKey {
        shared: true,
        ..key
    };
    for round in 0..12 {
        let steps = shared(&mixes[round % mixes.len()]);
        let expected = exact.step(&steps).expect("the step runs").sequences;
        assert_eq!(
            step_with(&mut large, key, &steps),
            expected,
            "round {round}, shared"
        );
    }
    let plain = steps(&[Shape::Plain; 2]);
    let expected = exact.step(&plain).expect("the step runs").sequences;
    let key = StepKey::of([Shape::Plain; 3].into_iter(), 3);
    assert_eq!(step_with(&mut large, key, &plain), expected);
}

/// In steady decoding nothing is uploaded, and one block is downloaded per step.
#[test]
fn a_step_like_the_last_uploads_nothing_and_reads_once() {
    for (logprobs, reads) in [(false, 1), (true, 4)] {
        let mut runner = started(config(), logprobs);
        let backend = Rc::clone(&runner.backend);
        let steps = [
            steps(&[Shape::Tree(15), Shape::Plain, Shape::Tree(15)]),
            steps(&[Shape::Chain(5), Shape::Plain, Shape::Chain(5)]),
            shared(&[Shape::Tree(9), Shape::Plain, Shape::Tree(3)]),
            shared(&[Shape::Chain(4), Shape::Chain(4), Shape::Tree(0)]),
            steps(&[Shape::Plain; 3]),
            shared(&[Shape::Tree(7); 3]),
        ];
        for steps in steps {
            runner.step(&steps).expect("the step runs");
            for _ in 0..3 {
                let before = backend.transfers();
                let key = runner.stage_step(&steps).expect("tables fit");
                runner
                    .enqueue(key, &mut PartClock::start())
                    .expect("the ops run");
                assert_eq!(backend.transfers(), before, "{steps:?}");
                runner.read_step(&steps).expect("the result is read");
                assert_eq!(
                    backend.transfers(),
                    (before.0, before.1 + reads),
                    "{steps:?}"
                );
            }
        }
    }
}

/// Shared rows go where the drafts are good, and the result says where.
#[test]
fn rows_are_dealt_by_the_drafts_and_reported() {
    let mut runner = started(config(), false);
    let mut uneven = 0;
    for round in 0..20 {
        let shape = [Shape::Tree(7), Shape::Chain(3)][round % 2];
        let mut steps = shared(&[shape; 3]);
        steps[1].rows_max = Some(5);
        steps[2] = own(2, Shape::Tree(4));
        let step = runner.step(&steps).expect("the step runs").sequences;
        let rows: Vec<usize> = step.iter().map(|sequence| sequence.rows).collect();
        assert!(
            rows[0] + rows[1] <= 2 * shape.rows() && rows[1] <= 5,
            "{rows:?}"
        );
        assert_eq!(rows[2], 5, "it keeps its own");
        for sequence in &step {
            assert!(sequence.accepted <= sequence.drafted);
            assert!(sequence.drafted < sequence.rows);
        }
        assert_eq!(step[0].drafted + 1, rows[0], "no padding among shared rows");
        uneven += usize::from(rows[0] != shape.rows());
    }
    assert!(uneven > 0, "every sequence got as many rows");
}

#[test]
fn every_uniform_step_has_a_key_that_the_buffers_hold() {
    let mut runner = started(config(), false);
    for shape in [Shape::Plain, Shape::Chain(7), Shape::Tree(63)] {
        let keys = StepKey::uniform(shape, runner.config.sequences_max, false);
        assert_eq!(keys.last().map(|key| key.0), Some(3));
        for (count, key) in keys {
            let steps = steps(&vec![shape; count]);
            assert_eq!(runner.stage_step(&steps).expect("tables fit"), key);
            step_with(&mut runner, key, &steps);
            let graphs = runner.record(key).expect("nothing runs");
            assert!(!graphs, "the CPU has no graphs");
            let graphs = runner.record_constrained(key).expect("nothing runs");
            assert!(!graphs, "the CPU has no graphs");
        }
    }
}

/// A row of logits that is not finite is one sequence's fault, and does not reach the others.
#[test]
fn a_step_of_broken_logits_is_told_from_the_others() {
    let (mut clean, mut broken) = (started(config(), true), started(config(), true));
    let steps = steps(&[Shape::Tree(7), Shape::Tree(7), Shape::Plain]);
    let expected = clean.step(&steps).expect("the step runs").sequences;
    // The recurrent state of slot 1 overflows.
    let state = &mut broken.states[0];
    let len = state.shape.state_len();
    state.state[len..2 * len].fill(f32::INFINITY);
    let found = broken.step(&steps).expect("the step runs").sequences;
    assert_eq!((&found[0], &found[2]), (&expected[0], &expected[2]));
    let fault = found[1].not_finite.as_deref().unwrap_or("none");
    assert!(fault.contains("not finite"), "{fault}");
    assert_eq!(expected[1].not_finite, None);
}

#[test]
fn simulated_acceptance_follows_the_law() {
    let mut runner = started(config(), false);
    let steps = steps(&[Shape::Chain(7), Shape::Tree(15), Shape::Plain]);
    let mut law = AcceptanceLaw {
        first: [1.0; DEPTH_MAX],
        later: [0.0; DEPTH_MAX],
        seed: 1,
    };
    law.first[4] = 0.0;
    runner.simulate(Some(law)).expect("the law is uploaded");
    for _ in 0..5 {
        let step = runner.step(&steps).expect("the step runs").sequences;
        let accepted: Vec<usize> = step.iter().map(|s| s.accepted).collect();
        assert!(accepted[0] == 4 && accepted[1] <= 4 && accepted[2] == 0);
        assert_eq!(step[0].tokens.len(), 5);
    }
    law.first = [0.0; DEPTH_MAX];
    runner.simulate(Some(law)).expect("the law is uploaded");
    let step = runner.step(&steps).expect("the step runs").sequences;
    assert!(step.iter().all(|s| s.accepted == 0));
    runner.simulate(None).expect("nothing to upload");
    assert!(runner.simulation.is_none());
}
