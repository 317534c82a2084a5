use super::*;
use crate::testing::{Segment, batch, chain, slots};

/// Blocks of slots 2 and 0.
fn two_blocks(rows: usize) -> Batch<Cpu> {
    let (token, parent) = (vec![7; rows], chain(rows));
    let segments = [2, 0].map(|slot| Segment {
        slot,
        token: &token,
        parent: &parent,
    });
    batch(&segments)
}

#[test]
fn a_block_is_its_root_and_masks() {
    let mut slots = slots(3, 100);
    slots.root.copy_from_slice(&[10, 11, 12]);
    let mut batch = two_blocks(4);
    batch.token[8..].fill(5);
    let parent = batch.parent.clone();
    let op = DraftBlocks {
        slots: &slots,
        mask_token: 99,
        block_size: 4,
        batch: &mut batch,
    };
    Cpu::default().draft_blocks(op).unwrap();
    assert_eq!(batch.token[..8], [12, 99, 99, 99, 10, 99, 99, 99]);
    assert_eq!(batch.token[8..], [5, 5], "padding rows");
    assert_eq!(batch.parent, parent);
}

#[test]
#[should_panic(expected = "block 0 has 4 rows, not 16")]
fn blocks_have_one_size() {
    let op = DraftBlocks {
        slots: &slots(3, 100),
        mask_token: 99,
        block_size: 16,
        batch: &mut two_blocks(4),
    };
    Cpu::default().draft_blocks(op).unwrap();
}
