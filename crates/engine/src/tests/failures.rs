//! Errors and panics of the runner, and hosts that go away.

use std::time::Duration;

use model::{ModelError, Shape, StepKey};

use super::harness::{Harness, Setup, request, settings, wait_until};
use super::stub_runner::{Fault, StubRunner};
use crate::shape::Drafting;
use crate::{Engine, Finish, FinishReason, Phase, SubmitError};

#[test]
fn a_fault_ends_every_request_once_and_stops_the_engine() {
    let faults = [
        (Fault::StartError(3), "not finite"),
        (Fault::PrefillError(2), "not finite"),
        (Fault::PrefillPanic(4), "stub prefill panic"),
        (Fault::StepError(5), "not finite"),
        (Fault::StepPanic(3), "stub step panic"),
    ];
    for (fault, word) in faults {
        let setup = Setup {
            fault,
            ..Setup::default()
        };
        let mut harness = Harness::start(&setup);
        harness.gate.close();
        for seed in 0..9 {
            harness.submit(request(200, 60, seed));
        }
        harness.gate.open();
        while harness.receive() {}
        let status = harness.handle().status();
        assert_eq!(status.phase, Phase::Failed);
        let error = status.error.expect("a failed engine says why");
        assert!(error.contains(word), "{error}");
        let ends: Vec<_> = harness
            .news
            .values()
            .map(|news| news.finish.clone())
            .collect();
        assert_eq!(ends.len(), 9);
        let failed = ends.iter().flatten().filter(
            |finish| matches!(&finish.reason, FinishReason::Error(text) if text.contains(word)),
        );
        assert!(failed.count() >= 5, "what waits fails too");
        let refused = harness.handle().submit(request(3, 5, 1)).unwrap_err();
        assert!(matches!(refused, SubmitError::Unavailable(text) if text.contains(word)));
        harness.check_all();
    }
}

#[test]
fn numbers_that_are_not_finite_are_found_by_the_warm_up() {
    for fault in [
        Fault::StepError(2),
        Fault::PrefillError(1),
        Fault::StepPanic(7),
    ] {
        let setup = Setup {
            fault,
            skip_warmup: false,
            drafting: Drafting::Auto,
            ..Setup::default()
        };
        let mut harness = Harness::launch(&setup);
        assert!(!harness.receive(), "the channel closes without a message");
        let status = harness.handle().status();
        assert_eq!(status.phase, Phase::Failed);
        assert!(status.error.is_some());
        let refused = harness.handle().submit(request(3, 5, 1)).unwrap_err();
        assert!(matches!(refused, SubmitError::Unavailable(_)));
    }
}

#[test]
fn a_load_that_fails_or_panics_is_a_failed_engine() {
    let (settings, info) = settings(&Setup::default());
    let loads: [fn() -> Result<StubRunner, ModelError>; 2] = [
        || Err(ModelError::Mismatch("17 layers".into())),
        || panic!("17 layers"),
    ];
    for load in loads {
        let engine = Engine::spawn(settings.clone(), info.clone(), move |_| load()).unwrap();
        assert!(engine.outputs.recv().is_err());
        let status = engine.handle.status();
        assert_eq!(status.phase, Phase::Failed);
        assert!(status.error.unwrap().contains("17 layers"));
    }
}

#[test]
fn the_warm_up_times_every_shape_and_leaves_nothing_behind() {
    let setup = Setup {
        skip_warmup: false,
        drafting: Drafting::Auto,
        ..Setup::default()
    };
    let harness = Harness::start(&setup);
    let times = harness.handle().status().step_times_ms;
    let names: Vec<&str> = times.iter().map(|line| &*line.0).collect();
    assert_eq!(names[..3], ["plain", "chain-3", "chain-7"]);
    assert_eq!(names[7..9], ["tree-63", "plain x4"]);
    assert_eq!(names.len(), 16);
    assert!(times.iter().all(|line| line.1 > 0.0));
    assert_eq!(
        harness.handle().stats().drafts,
        0,
        "scratch steps are not counted"
    );
    harness.close();
}

#[test]
fn the_warm_up_times_larger_batches_as_far_as_a_step_holds_them() {
    let setup = Setup {
        skip_warmup: false,
        drafting: Drafting::Auto,
        running_max: 24,
        pages: 24 * 4,
        draft_batch_max: 20,
        ..Setup::default()
    };
    let harness = Harness::start(&setup);
    let times = harness.handle().status().step_times_ms;
    let names: Vec<&str> = times.iter().map(|line| &*line.0).collect();
    let has = |name: &str| names.contains(&name);
    assert!(
        has("plain x4") && has("plain x16") && has("plain x24"),
        "{names:?}"
    );
    assert!(
        has("tree-15 x16") && has("tree-15 x20") && !has("tree-15 x24"),
        "{names:?}"
    );
    assert!(
        has("tree-63 x8") && !has("tree-63 x16"),
        "512 rows are 8 x 64: {names:?}"
    );
    harness.close();
}

#[test]
fn the_warm_up_records_every_step_that_can_be_uniform() {
    for share_rows in [false, true] {
        let setup = Setup {
            skip_warmup: false,
            graphs: true,
            running_max: 20,
            pages: 20 * 3,
            draft_batch_max: 5,
            share_rows,
            ..Setup::default()
        };
        let harness = Harness::start(&setup);
        let recorded = harness.recorded.lock().unwrap().clone();
        for (shape, most) in [(Shape::Plain, 20), (Shape::Tree(15), 5)] {
            for count in 1..=most {
                let key = StepKey {
                    shared: share_rows && count > 1 && shape != Shape::Plain,
                    ..StepKey::of(std::iter::repeat_n(shape, count), 20)
                };
                let times = recorded.iter().filter(|own| **own == key).count();
                assert_eq!(times, 1, "{count} times {shape:?}");
            }
        }
        assert_eq!(recorded.len(), 6 + 5, "1, 2, 4, 8, 16, 20; 1 to 5");
        harness.close();
    }
}

#[test]
fn a_step_of_broken_logits_ends_its_request_and_no_other() {
    let setup = Setup {
        fault: Fault::StepNotFinite(2),
        ..Setup::default()
    };
    let mut harness = Harness::start(&setup);
    let ids = [3, 4].map(|seed| harness.submit(request(40, 60, seed)));
    let ends = ids.map(|id| harness.await_end(id));
    let is_broken = |end: &&Finish| match &end.reason {
        FinishReason::Error(text) => text.contains("not finite"),
        _ => false,
    };
    assert_eq!(ends.iter().filter(is_broken).count(), 1);
    let whole = ends.iter().find(|end| !is_broken(end)).unwrap();
    assert_eq!(whole.completion_tokens, 60);
    harness.close();
}

#[test]
fn a_context_too_small_for_trees_starts_without_their_timings() {
    let setup = Setup {
        skip_warmup: false,
        drafting: Drafting::Auto,
        context: 40,
        pages: 1,
        ..Setup::default()
    };
    let mut harness = Harness::start(&setup);
    let times = harness.handle().status().step_times_ms;
    let names: Vec<&str> = times.iter().map(|line| &*line.0).collect();
    assert_eq!(
        names,
        [
            "plain", "chain-3", "chain-7", "chain-15", "tree-7", "tree-15", "tree-31"
        ]
    );
    let (tokens, _) = harness.run(request(1, usize::MAX, 3));
    assert_eq!(tokens.len(), 39);
    harness.close();
}

#[test]
fn a_receiver_that_goes_away_ends_the_engine() {
    let mut harness = Harness::start(&Setup::default());
    harness.gate.close();
    harness.submit(request(20, 900, 1));
    harness.submit(request(20, 900, 2));
    harness.gate.await_calls(1);
    let (handle, gate) = (harness.handle().clone(), harness.gate.clone());
    drop(harness);
    gate.open();
    wait_until(|| handle.status().phase == Phase::Stopped);
    let stats = handle.stats();
    assert_eq!((stats.running, stats.waiting, stats.pages_used), (0, 0, 0));
}

#[test]
fn handles_that_go_away_drain_the_engine() {
    let mut harness = Harness::start(&Setup::default());
    let id = harness.submit(request(20, 100, 1));
    let Engine { handle, outputs } = harness.engine;
    drop(handle);
    let mut tokens = 0;
    for output in outputs {
        tokens += output
            .updates
            .iter()
            .map(|update| update.tokens.len())
            .sum::<usize>();
        assert!(output.updates.iter().all(|update| update.id == id));
    }
    assert_eq!(tokens, 100);
}

#[test]
fn the_heart_beats_while_idle_and_stops_while_a_call_hangs() {
    let mut harness = Harness::start(&Setup {
        drafting: Drafting::Fixed(Shape::Chain(3)),
        ..Setup::default()
    });
    std::thread::sleep(Duration::from_millis(2500));
    let idle = harness.handle().status().heartbeat_age;
    assert!(idle < Duration::from_millis(2000), "{idle:?} idle");
    harness.gate.close();
    let id = harness.submit(request(20, 10, 1));
    std::thread::sleep(Duration::from_millis(2500));
    let hung = harness.handle().stats().heartbeat_age;
    assert!(hung > Duration::from_millis(2000), "{hung:?} in a call");
    harness.gate.open();
    harness.await_end(id);
    harness.close();
}
