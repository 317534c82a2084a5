//! Host side of a batch: filled per forward, uploaded as tables.

use ops::{Backend, Batch, ContextRows, NONE, OpsError};

/// Segments of one forward, collected on the host.
#[derive(Default)]
pub(super) struct Staging {
    row_sequence: Vec<u32>,
    token: Vec<u32>,
    parent: Vec<i32>,
    depth: Vec<u32>,
    slot: Vec<u32>,
    start: Vec<u32>,
    rows: Vec<u32>,
}

impl Staging {
    /// Rows collected so far.
    pub(super) fn row_count(&self) -> usize {
        self.row_sequence.len()
    }

    /// Sequences collected so far.
    pub(super) fn sequence_count(&self) -> usize {
        self.slot.len()
    }

    /// Adds a segment whose rows form a chain over `tokens`.
    pub(super) fn chain(&mut self, slot: usize, tokens: &[u32]) {
        self.segment(slot, tokens.len());
        self.token.extend_from_slice(tokens);
        self.parent
            .extend((0..tokens.len()).map(|row| row as i32 - 1));
        self.depth.extend(0..tokens.len() as u32);
    }

    /// Adds a segment whose rows are written on the device.
    pub(super) fn reserved(&mut self, slot: usize, rows: usize) {
        self.segment(slot, rows);
        self.token.resize(self.row_sequence.len(), 0);
        self.parent.resize(self.row_sequence.len(), -1);
        self.depth.resize(self.row_sequence.len(), 0);
    }

    fn segment(&mut self, slot: usize, rows: usize) {
        self.start.push(self.row_sequence.len() as u32);
        self.rows.push(rows as u32);
        let sequence = self.slot.len() as u32;
        self.slot.push(slot as u32);
        self.row_sequence
            .resize(self.row_sequence.len() + rows, sequence);
    }

    /// Writes the tables; rows from the live ones to `capacity` become padding.
    pub(super) fn upload<B: Backend>(
        mut self,
        backend: &B,
        batch: &mut Batch<B>,
        capacity: usize,
    ) -> Result<(), OpsError> {
        let live = [self.row_count() as u32, self.sequence_count() as u32];
        self.row_sequence.resize(capacity, NONE);
        backend.upload(&live, &mut batch.live, 0)?;
        backend.upload(&self.row_sequence, &mut batch.row_sequence, 0)?;
        backend.upload(&self.token, &mut batch.token, 0)?;
        backend.upload(&self.parent, &mut batch.parent, 0)?;
        backend.upload(&self.depth, &mut batch.depth, 0)?;
        backend.upload(&self.slot, &mut batch.sequence_slot, 0)?;
        backend.upload(&self.start, &mut batch.sequence_start, 0)?;
        backend.upload(&self.rows, &mut batch.sequence_rows, 0)
    }
}

/// Writes a list of rows; slots and positions may be left out where only the rows matter.
pub(super) fn list_rows<B: Backend>(
    backend: &B,
    list: &mut ContextRows<B>,
    source: &[u32],
    slot: &[u32],
    position: &[u32],
) -> Result<(), OpsError> {
    backend.upload(&[source.len() as u32, 0], &mut list.live, 0)?;
    backend.upload(source, &mut list.source, 0)?;
    backend.upload(slot, &mut list.slot, 0)?;
    backend.upload(position, &mut list.position, 0)
}
