use super::*;
use crate::testing::{Segment, batch, chain};

/// Slot 1 has a path of three rows (0, 2, 3) and a cut on the last, so two tokens; slot 0 one row.
fn packed(finite: [u32; 8], padding: [u32; 8]) -> Vec<SequenceResult> {
    let parent = chain(4);
    let segments = [1, 0].map(|slot| Segment {
        slot,
        token: &[0; 4],
        parent: &parent,
    });
    let batch = batch(&segments);
    let mut walk = Walk::new(&Cpu::default(), 3).unwrap();
    walk.path_rows.copy_from_slice(&[3, 1, 9]);
    walk.path[..3].copy_from_slice(&[0, 2, 3]);
    walk.emitted.copy_from_slice(&[2, 1, 9]);
    walk.tokens[..3].copy_from_slice(&[40, 41, 99]);
    walk.tokens[EMIT_MAX] = 50;
    walk.reason.copy_from_slice(&[CutReason::Stop.code(), 0, 9]);
    let mut prediction = vec![0.0; 3 * Prediction::LEN];
    for (n, value) in prediction.iter_mut().enumerate() {
        *value = n as f32 + 0.5;
    }
    let mut out = vec![777; 3 * RESULT_WORDS].into();
    let op = StepResult {
        batch: &batch,
        walk: &walk,
        padding: &[&padding[..], &[1, 1]].concat().into(),
        prediction: &prediction.into(),
        finite: &[&finite[..], &[0, 0]].concat().into(),
        out: &mut out,
    };
    Cpu::default().step_result(op).unwrap();
    assert_eq!(out[6 + 2], 0, "a token behind the last");
    assert_eq!(out[2 * RESULT_WORDS..], [777; RESULT_WORDS], "not live");
    let words = out.chunks(RESULT_WORDS).take(2);
    words.map(SequenceResult::read).collect()
}

#[test]
fn every_word_is_read_as_it_was_written() {
    let expected = [
        SequenceResult {
            tokens: vec![40, 41],
            reason: Some(CutReason::Stop),
            path_rows: 3,
            rows: 4,
            padded: 1,
            finite: true,
            prediction: Prediction {
                tree: [0.5, 1.5, 2.5, 3.5],
                chain: [4.5, 5.5, 6.5],
            },
        },
        SequenceResult {
            tokens: vec![50],
            reason: None,
            path_rows: 1,
            rows: 4,
            padded: 0,
            finite: true,
            prediction: Prediction {
                tree: [7.5, 8.5, 9.5, 10.5],
                chain: [11.5, 12.5, 13.5],
            },
        },
    ];
    assert_eq!(packed([1; 8], [0, 1, 0, 0, 0, 0, 0, 0]), expected);
}

/// Rows whose logits decided nothing do not count: off the path, or behind the cut.
#[test]
fn only_rows_that_chose_a_token_must_be_finite() {
    let finite = |rows: [u32; 8]| {
        packed(rows, [0; 8])
            .iter()
            .map(|s| s.finite)
            .collect::<Vec<_>>()
    };
    assert_eq!(finite([1, 0, 1, 0, 1, 0, 0, 0]), [true, true]);
    assert_eq!(finite([1, 1, 0, 1, 1, 1, 1, 1]), [false, true]);
    assert_eq!(finite([0, 1, 1, 1, 1, 1, 1, 1]), [false, true]);
    assert_eq!(finite([1, 1, 1, 1, 0, 1, 1, 1]), [true, false]);
}
