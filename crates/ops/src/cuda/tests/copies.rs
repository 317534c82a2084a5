//! What tests make on the host, brought to a backend, and back.

use crate::{Backend, Batch, Cpu, Element, Slots, TreeTables, TreeTablesFrom, Walk};

/// `values` in a buffer.
pub(super) fn put<B: Backend, T: Element>(backend: &B, values: &[T]) -> B::Buf<T> {
    let mut buf = backend.alloc(values.len()).unwrap();
    backend.upload(values, &mut buf, 0).unwrap();
    buf
}

/// All values of a buffer.
pub(super) fn get<B: Backend, T: Element>(backend: &B, buf: &B::Buf<T>) -> Vec<T> {
    let mut values = vec![T::zeroed(); backend.len(buf)];
    backend.download(buf, 0, &mut values).unwrap();
    values
}

/// The same tables.
pub(super) fn put_batch<B: Backend>(backend: &B, batch: &Batch<Cpu>) -> Batch<B> {
    let mut copy = Batch::new(backend, batch.rows_max, batch.sequence_slot.len()).unwrap();
    copy.cover(batch.sequences_max);
    copy.live = put(backend, &batch.live);
    copy.row_sequence = put(backend, &batch.row_sequence);
    copy.token = put(backend, &batch.token);
    copy.parent = put(backend, &batch.parent);
    copy.depth = put(backend, &batch.depth);
    copy.sequence_slot = put(backend, &batch.sequence_slot);
    copy.sequence_start = put(backend, &batch.sequence_start);
    copy.sequence_rows = put(backend, &batch.sequence_rows);
    copy
}

/// The same tables.
pub(super) fn put_slots<B: Backend>(backend: &B, slots: &Slots<Cpu>) -> Slots<B> {
    Slots {
        count: slots.count,
        pages_max: slots.pages_max,
        vocab_rows: slots.vocab_rows,
        vocab_used: slots.vocab_used,
        length: put(backend, &slots.length),
        root: put(backend, &slots.root),
        emitted: put(backend, &slots.emitted),
        pending: put(backend, &slots.pending),
        block_table: put(backend, &slots.block_table),
        sampling: put(backend, &slots.sampling),
        stop_ids: put(backend, &slots.stop_ids),
        bias_ids: put(backend, &slots.bias_ids),
        bias_values: put(backend, &slots.bias_values),
        prompt_seen: put(backend, &slots.prompt_seen),
        generated: put(backend, &slots.generated),
    }
}

/// The tables that the CPU derives for a batch without padding nodes.
pub(super) fn tree_tables_of(batch: &Batch<Cpu>) -> TreeTables<Cpu> {
    let cpu = Cpu::default();
    let mut tables = TreeTables::new(&cpu, batch.rows_max).unwrap();
    let from = TreeTablesFrom {
        batch,
        padding: None,
        tables: &mut tables,
    };
    cpu.tree_tables(from).unwrap();
    tables
}

/// The same tables.
pub(super) fn put_tree<B: Backend>(backend: &B, tree: &TreeTables<Cpu>) -> TreeTables<B> {
    TreeTables {
        rows_max: tree.rows_max,
        ancestors: put(backend, &tree.ancestors),
        first_child: put(backend, &tree.first_child),
        next_sibling: put(backend, &tree.next_sibling),
        conv_source: put(backend, &tree.conv_source),
        scan_order: put(backend, &tree.scan_order),
        scan_restore: put(backend, &tree.scan_restore),
        scan_save: put(backend, &tree.scan_save),
    }
}

/// The same walk.
pub(super) fn put_walk<B: Backend>(backend: &B, walk: &Walk<Cpu>) -> Walk<B> {
    Walk {
        sequences_max: walk.sequences_max,
        path_rows: put(backend, &walk.path_rows),
        path: put(backend, &walk.path),
        emitted: put(backend, &walk.emitted),
        tokens: put(backend, &walk.tokens),
        reason: put(backend, &walk.reason),
    }
}
