use super::*;
use crate::testing::{Segment, batch, chain, paged_slots};

/// Slot 2 has a path of three rows and emits 4, 6, 6; slot 0 a path of one row and emits 5.
fn advanced(first: bool) -> (Slots<Cpu>, ContextRows<Cpu>) {
    let parent = chain(8);
    let segments = [2, 0].map(|slot| Segment {
        slot,
        token: &[0; 8],
        parent: &parent,
    });
    let batch = batch(&segments);
    let mut walk = Walk::new(&Cpu::default(), 2).unwrap();
    walk.path_rows.copy_from_slice(&[3, 1]);
    walk.path[..3].copy_from_slice(&[0, 2, 7]);
    walk.emitted.copy_from_slice(&[3, 1]);
    walk.tokens[..3].copy_from_slice(&[4, 6, 6]);
    walk.tokens[EMIT_MAX] = 5;
    let mut slots = paged_slots(&[63, 64, 65], 2);
    slots.emitted.fill(10);
    slots.pending.fill(9);
    let mut context = ContextRows::new(&Cpu::default(), 8).unwrap();
    context.live[0] = 8;
    let op = Advance {
        batch: &batch,
        walk: &walk,
        first,
        slots: &mut slots,
        context: &mut context,
    };
    Cpu::default().advance(op).unwrap();
    (slots, context)
}

#[test]
fn a_step_moves_its_sequences_on_and_lists_their_rows() {
    let (slots, context) = advanced(false);
    assert_eq!(slots.length[..], [64, 64, 68]);
    assert_eq!(slots.pending[..], [0, 9, 2]);
    assert_eq!(slots.emitted[..], [11, 10, 13]);
    assert_eq!((slots.root[0], slots.root[2]), (5, 6));
    assert_eq!(slots.generated[..8], [0, 0, 0, 0, 0, 1, 0, 0]);
    assert_eq!(slots.generated[8..16], [0; 8]);
    assert_eq!(slots.generated[16..], [0, 0, 0, 0, 1, 0, 2, 0]);
    assert_eq!(context.live[0], 4);
    assert_eq!(context.source[..4], [0, 2, 7, 8]);
    assert_eq!(context.slot[..4], [2, 2, 2, 0]);
    assert_eq!(context.position[..4], [65, 66, 67, 63]);
}

#[test]
fn the_first_token_of_a_prompt_moves_no_length() {
    let (slots, context) = advanced(true);
    assert_eq!(slots.length[..], [63, 64, 65]);
    assert_eq!(slots.pending[..], [9, 9, 9]);
    assert_eq!(slots.emitted[..], [11, 10, 13]);
    assert_eq!((slots.root[0], slots.root[2]), (5, 6));
    assert_eq!(context.live[0], 0);
}
