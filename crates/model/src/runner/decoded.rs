//! Snapshots of states that decoding passes: a step may end behind a multiple of 64, where nobody
//! has the state any more, but all that it is made of.

use ops::{
    Backend, Batch, DEPTH_MAX, EMIT_MAX, GdnJournal, GdnMode, GdnScan, GdnShape, GdnState,
    OpsError, PAGE_TOKENS, Slots, TreeTables, TreeTablesFrom,
};

use super::snapshots::{DeviceLayer, conv_len};
use super::{Runner, Verified};
use crate::{ModelConfig, ModelError, RunnerConfig};

/// Scans of one row of one sequence, apart from all slots.
pub(super) struct RowScan<B: Backend> {
    /// One slot.
    state: GdnState<B>,
    /// One row.
    journal: GdnJournal<B>,
    batch: Batch<B>,
    tree: TreeTables<B>,
    slots: Slots<B>,
    out: B::Buf<B::Act>,
}

/// Ids that the slots' tables of a [`RowScan`] are made for; nothing is sampled with them.
pub(crate) const ROW_SCAN_VOCAB: usize = 32;

/// A snapshot that waits for the next forward of its sequence.
#[derive(Clone, Copy)]
pub(super) struct Begun {
    slot: usize,
    /// Committed tokens before.
    length: usize,
    /// [`Verified::count`] before.
    count: u64,
}

/// The rows of a forward that lead to a state.
struct Rows {
    slot: usize,
    /// Rows of the batch, the root's first.
    rows: Vec<usize>,
}

impl<B: Backend> RowScan<B> {
    /// One for a runner that takes snapshots.
    pub(super) fn of(
        backend: &B,
        sizes: &ModelConfig,
        config: &RunnerConfig,
    ) -> Result<Option<Self>, OpsError> {
        match config.snapshots {
            0 => Ok(None),
            _ => Self::new(backend, sizes.gdn).map(Some),
        }
    }

    fn new(backend: &B, shape: GdnShape) -> Result<Self, OpsError> {
        let mut batch = Batch::new(backend, 1, 1)?;
        // Every other entry is 0.
        backend.upload(&[1, 1], &mut batch.live, 0)?;
        backend.upload(&[-1], &mut batch.parent, 0)?;
        backend.upload(&[1], &mut batch.sequence_rows, 0)?;
        let mut tree = TreeTables::new(backend, 1)?;
        backend.tree_tables(TreeTablesFrom {
            batch: &batch,
            padding: None,
            tables: &mut tree,
        })?;
        Ok(RowScan {
            state: GdnState::new(backend, shape, 1)?,
            journal: GdnJournal::new(backend, shape, 1)?,
            slots: Slots::new(backend, 1, 1, ROW_SCAN_VOCAB, ROW_SCAN_VOCAB)?,
            out: backend.alloc(shape.value_width())?,
            batch,
            tree,
        })
    }

    /// Keeps the history and the state behind `to.rows` of one layer. `layer` has the history
    /// before them.
    fn keep(
        &mut self,
        backend: &B,
        (from, journal): (&GdnState<B>, &GdnJournal<B>),
        to: &Rows,
        (layer, place): (&mut DeviceLayer<B>, usize),
    ) -> Result<(), OpsError> {
        self.roll_history(backend, journal, &to.rows, (layer, place))?;
        let len = from.shape.state_len();
        let (at, target) = (to.slot * len, place * len);
        // Row 0 is in the state, those behind it are pending.
        let [_, replayed @ .., last] = &to.rows[..] else {
            return backend.copy(&from.state, at, &mut layer.state, target, len);
        };
        backend.copy(&from.state, at, &mut self.state.state, 0, len)?;
        self.copy_pending(backend, from, to.slot, replayed.len())?;
        self.copy_row(backend, journal, *last)?;
        backend.gdn_scan(GdnScan {
            rows: self.batch.rows(1),
            batch: &self.batch,
            tree: &self.tree,
            slots: &self.slots,
            mode: GdnMode::Verify,
            state: &mut self.state,
            journal: &self.journal,
            out: &mut self.out,
        })?;
        backend.copy(&self.state.state, 0, &mut layer.state, target, len)
    }

    /// The last three of the history and the rows.
    fn roll_history(
        &mut self,
        backend: &B,
        journal: &GdnJournal<B>,
        rows: &[usize],
        (layer, place): (&mut DeviceLayer<B>, usize),
    ) -> Result<(), OpsError> {
        let shape = layer.shape;
        let (channels, len) = (shape.channels(), conv_len(shape));
        let before = &mut self.state.conv;
        backend.copy(&layer.conv, place * len, before, 0, len)?;
        for column in 0..3 {
            let to = place * len + column * channels;
            let entry = rows.len() + column;
            let conv = &mut layer.conv;
            match entry.checked_sub(3) {
                None => backend.copy(before, entry * channels, conv, to, channels)?,
                Some(row) => {
                    let from = rows[row] * shape.mixed_stride();
                    backend.copy(&journal.mixed, from, conv, to, channels)?;
                }
            }
        }
        Ok(())
    }

    fn copy_pending(
        &mut self,
        backend: &B,
        from: &GdnState<B>,
        slot: usize,
        rows: usize,
    ) -> Result<(), OpsError> {
        let (shape, to) = (from.shape, &mut self.state);
        let first = slot * DEPTH_MAX;
        let kv = shape.key_width() + shape.value_width();
        let (gates, heads) = (2 * shape.value_heads, shape.key_heads);
        backend.copy(
            &from.pending_kv,
            first * kv,
            &mut to.pending_kv,
            0,
            rows * kv,
        )?;
        backend.copy(
            &from.pending_gate,
            first * gates,
            &mut to.pending_gate,
            0,
            rows * gates,
        )?;
        backend.copy(
            &from.pending_scale,
            first * heads,
            &mut to.pending_scale,
            0,
            rows * heads,
        )
    }

    fn copy_row(&mut self, backend: &B, from: &GdnJournal<B>, row: usize) -> Result<(), OpsError> {
        let (shape, to) = (self.state.shape, &mut self.journal);
        let (channels, gates) = (shape.channels(), 2 * shape.value_heads);
        let scales = 3 * shape.key_heads;
        backend.copy(&from.qkv, row * channels, &mut to.qkv, 0, channels)?;
        backend.copy(&from.gate, row * gates, &mut to.gate, 0, gates)?;
        backend.copy(&from.scale, row * scales, &mut to.scale, 0, scales)
    }
}

impl<B: Backend> Runner<B> {
    /// Announces [`Runner::save_decoded`]: the next step or replay of this slot may pass a multiple
    /// of 64. What the snapshot's place held is forgotten; if nothing is passed, it is free.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn begin_decoded(&mut self, slot: usize, snapshot: usize) -> Result<(), ModelError> {
        let begun = Begun {
            slot,
            length: self.progress[slot].length,
            count: self.verified.count,
        };
        let (backend, snapshots) = (&*self.backend, &mut self.snapshots);
        snapshots.begin(snapshot, begun);
        for (layer, from) in snapshots.device.iter_mut().zip(&self.states) {
            let len = conv_len(layer.shape);
            backend.copy(&from.conv, slot * len, &mut layer.conv, snapshot * len, len)?;
        }
        Ok(())
    }

    /// Keeps the state at `length`, a multiple of 64 that the slot's last step or replay passed or
    /// reached, in the place that [`Runner::begin_decoded`] was given right before it. It has the
    /// bits of the state that one-row steps leave there; the slot is not touched. To be called
    /// before any other step or replay, which overwrites what the state is made of.
    ///
    /// # Panics
    /// If the forward did not pass `length`, or was not the one behind `begin_decoded`.
    pub fn save_decoded(
        &mut self,
        slot: usize,
        length: usize,
        snapshot: usize,
    ) -> Result<(), ModelError> {
        let begun = self.snapshots.begun(snapshot);
        let Some(begun) = begun.filter(|begun| begun.slot == slot) else {
            panic!("snapshot {snapshot} was not begun for slot {slot}")
        };
        let passed = begun.length + 1..=self.progress[slot].length;
        assert!(
            length.is_multiple_of(PAGE_TOKENS) && passed.contains(&length),
            "{length} is no multiple of {PAGE_TOKENS} in {passed:?}"
        );
        assert_eq!(
            self.verified.count,
            begun.count + 1,
            "the state is kept right behind the forward that passed it"
        );
        let rows = self.kept_rows(slot, length - begun.length)?;
        let Some(scan) = &mut self.row_scan else {
            panic!("a runner without snapshots keeps none")
        };
        let backend = &*self.backend;
        let replayed = rows.rows.len().saturating_sub(2) as u32;
        backend.upload(&[replayed], &mut scan.slots.pending, 0)?;
        let layers = self.snapshots.device.iter_mut();
        for ((layer, state), journal) in layers.zip(&self.states).zip(&self.journals) {
            scan.keep(backend, (state, journal), &rows, (layer, snapshot))?;
        }
        self.snapshots.set(snapshot, Some(length));
        Ok(())
    }

    /// The first rows that the last forward kept of a slot; waits for it.
    fn kept_rows(&self, slot: usize, count: usize) -> Result<Rows, OpsError> {
        let Verified { segments, .. } = &self.verified;
        let sequence = segments.iter().position(|segment| segment.0 == slot);
        let sequence = sequence.unwrap_or_else(|| panic!("slot {slot} had no part in it"));
        let mut path = vec![0; count];
        let walk = &self.verify.walk;
        self.backend
            .download(&walk.path, sequence * EMIT_MAX, &mut path)?;
        let start = segments[sequence].1;
        let rows = path.iter().map(|&row| start + row as usize).collect();
        Ok(Rows { slot, rows })
    }
}
