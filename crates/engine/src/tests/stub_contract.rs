//! The stub sees what a runner could not: whose rows a page holds, and whose state a snapshot is.

use model::{Chunk, Dtype, Replay, Resume, RunnerConfig, SamplingParams, SequenceStart};
use model::{SequenceStep, Shape};

use super::harness::VOCAB;
use super::stub_runner::{Fault, Gate, StubRunner};
use crate::step_runner::StepRunner;

fn stub() -> StubRunner {
    let config = RunnerConfig {
        sequences_max: 2,
        context_max: 512,
        kv_pages: 16,
        prefill_rows_max: 128,
        step_rows_max: 64,
        tree_rows_max: 8,
        topk: 4,
        weight_dtype: Dtype::F32,
        kv_dtype: Dtype::F32,
        vocab_used: VOCAB,
        graphs: false,
        snapshots: 2,
        host_snapshots: 1,
    };
    StubRunner::new(config, Gate::default(), Fault::None)
}

fn prompt() -> Vec<u32> {
    (0..150).map(|i| i * 7 % 60).collect()
}

fn start(stub: &mut StubRunner, slot: usize, pages: &[u32], resume: Option<Resume>, had: &[u32]) {
    let started = stub.start(&SequenceStart {
        slot,
        prompt: &prompt(),
        pages,
        sampling: &SamplingParams::default(),
        stop_ids: &[],
        tokens_min: 0,
        tokens_max: 200,
        logprobs: None,
        resume,
        emitted: had,
    });
    started.expect("started");
}

/// Tokens `from .. to` of the prompt; the first output token, if `last`.
fn prefill(stub: &mut StubRunner, slot: usize, from: usize, to: usize, last: bool) -> Option<u32> {
    let outputs = stub.prefill(&[Chunk {
        slot,
        start: from,
        tokens: &prompt()[from..to],
        last,
        prompt_logprobs: None,
    }]);
    let first = outputs.expect("prefilled").remove(0).first;
    first.map(|token| token.id)
}

fn step(stub: &mut StubRunner, slot: usize) -> Vec<u32> {
    let shape = Shape::Chain(7);
    let output = stub.step(&[SequenceStep {
        slot,
        shape,
        rows_max: None,
    }]);
    let tokens = output.expect("stepped").sequences.remove(0).tokens;
    tokens.iter().map(|token| token.id).collect()
}

fn replay(stub: &mut StubRunner, slot: usize, tokens: &[u32]) {
    stub.replay(&[Replay { slot, tokens }]).expect("replayed");
}

/// Saves at 128 in place 1; the output of some steps.
fn first(stub: &mut StubRunner) -> Vec<u32> {
    start(stub, 0, &[4, 5, 6], None, &[]);
    prefill(stub, 0, 0, 128, false);
    stub.save_snapshot(0, 1).expect("saved");
    let mut output: Vec<u32> = prefill(stub, 0, 128, 150, true).into_iter().collect();
    while output.len() < 20 {
        output.extend(step(stub, 0));
    }
    output
}

const AT_128: Option<Resume> = Some(Resume {
    snapshot: 1,
    length: 128,
});

#[test]
fn resumed_and_replayed_sequences_say_the_same() {
    let mut stub = stub();
    let output = first(&mut stub);
    stub.extend_pages(0, 3, &[9, 10, 11]).expect("given");
    stub.offload_snapshot(1, 0).expect("copied");
    stub.fetch_snapshot(0, 0).expect("copied");
    for snapshot in [0, 1] {
        let resume = Some(Resume {
            snapshot,
            length: 128,
        });
        start(&mut stub, 1, &[4, 5, 7], resume, &[]);
        let mut other: Vec<u32> = prefill(&mut stub, 1, 128, 150, true).into_iter().collect();
        while other.len() < 20 {
            other.extend(step(&mut stub, 1));
            step(&mut stub, 0);
        }
        assert_eq!(output[..20], other[..20]);

        start(&mut stub, 1, &[4, 5], resume, &output[..10]);
        stub.extend_pages(1, 2, &[8]).expect("given");
        assert_eq!(prefill(&mut stub, 1, 128, 150, false), None);
        replay(&mut stub, 1, &output[..3]);
        replay(&mut stub, 1, &output[3..9]);
        let more = step(&mut stub, 1);
        assert_eq!(output[10..10 + more.len()], more);
    }
}

#[test]
fn states_that_steps_pass_are_resumed() {
    let mut stub = stub();
    let mut output = first(&mut stub);
    stub.extend_pages(0, 3, &[9]).expect("given");
    while output.len() < 43 {
        stub.begin_decoded(0, 0).expect("begun");
        output.extend(step(&mut stub, 0));
    }
    stub.save_decoded(0, 192, 0).expect("saved");
    let resume = Some(Resume {
        snapshot: 0,
        length: 192,
    });
    start(&mut stub, 1, &[4, 5, 6, 10], resume, &output[..43]);
    let more = step(&mut stub, 1);
    let common = more.len().min(output.len() - 43);
    assert_eq!(output[43..43 + common], more[..common]);
}

#[test]
#[should_panic(expected = "kept too late")]
fn states_are_kept_at_once() {
    let mut stub = stub();
    first(&mut stub);
    stub.begin_decoded(0, 0).expect("begun");
    step(&mut stub, 0);
    step(&mut stub, 0);
    stub.save_decoded(0, 192, 0).expect("saved");
}

#[test]
#[should_panic(expected = "192 rows were not passed")]
fn states_ahead_are_not_kept() {
    let mut stub = stub();
    first(&mut stub);
    stub.begin_decoded(0, 0).expect("begun");
    step(&mut stub, 0);
    stub.save_decoded(0, 192, 0).expect("saved");
}

#[test]
#[should_panic(expected = "row 128 without a page")]
fn rows_need_pages() {
    let mut stub = stub();
    start(&mut stub, 0, &[4, 5], None, &[]);
    prefill(&mut stub, 0, 0, 128, false);
    prefill(&mut stub, 0, 128, 150, true);
}

#[test]
#[should_panic(expected = "row 192 without a page")]
fn drafts_need_pages() {
    let mut stub = stub();
    first(&mut stub);
    while !step(&mut stub, 0).is_empty() {}
}

#[test]
#[should_panic(expected = "the snapshot is of other tokens")]
fn another_length_was_saved() {
    let mut stub = stub();
    first(&mut stub);
    let resume = Some(Resume {
        snapshot: 1,
        length: 64,
    });
    start(&mut stub, 1, &[4, 5, 7], resume, &[]);
}

#[test]
#[should_panic(expected = "snapshot place 0 holds nothing")]
fn nothing_was_saved() {
    let mut stub = stub();
    first(&mut stub);
    stub.offload_snapshot(0, 0).expect("copied");
}

#[test]
#[should_panic(expected = "row 64 is another sequence's")]
fn a_page_of_the_beginning_was_given_away() {
    let mut stub = stub();
    first(&mut stub);
    start(&mut stub, 1, &[7, 5], None, &[]);
    prefill(&mut stub, 1, 0, 128, false);
    start(&mut stub, 1, &[4, 7, 6], AT_128, &[]);
}

#[test]
#[should_panic(expected = "a step of an ended sequence")]
fn a_page_was_given_to_two() {
    let mut stub = stub();
    first(&mut stub);
    start(&mut stub, 1, &[4, 5, 6], AT_128, &[]);
    step(&mut stub, 0);
}

#[test]
#[should_panic(expected = "a snapshot of 150 rows")]
fn states_between_pages_are_not_saved() {
    let mut stub = stub();
    start(&mut stub, 0, &[4, 5, 6], None, &[]);
    prefill(&mut stub, 0, 0, 128, false);
    prefill(&mut stub, 0, 128, 150, true);
    stub.save_snapshot(0, 0).expect("saved");
}

#[test]
#[should_panic(expected = "other tokens")]
fn other_tokens_were_emitted() {
    let mut stub = stub();
    start(&mut stub, 0, &[4, 5, 6], None, &[1, 2, 3]);
    prefill(&mut stub, 0, 0, 128, false);
    prefill(&mut stub, 0, 128, 150, false);
    replay(&mut stub, 0, &[2]);
}

#[test]
#[should_panic(expected = "or before the replay's")]
fn steps_wait_for_the_replay() {
    let mut stub = stub();
    start(&mut stub, 0, &[4, 5, 6], None, &[1, 2, 3]);
    prefill(&mut stub, 0, 0, 128, false);
    prefill(&mut stub, 0, 128, 150, false);
    replay(&mut stub, 0, &[1]);
    step(&mut stub, 0);
}
