//! Host side of a batch: filled per forward, uploaded where the device holds something else.

use ops::{Backend, Batch, ContextRows, Element, NONE, OpsError};

/// The front of a device table as the host has written it.
#[derive(Default)]
pub(super) struct Held<T> {
    values: Vec<T>,
}

impl<T: Element + PartialEq> Held<T> {
    /// Makes `values` the front of `buf`; uploads nothing where it is already.
    pub(super) fn write<B: Backend>(
        &mut self,
        backend: &B,
        values: &[T],
        buf: &mut B::Buf<T>,
    ) -> Result<(), OpsError> {
        if self.values.get(..values.len()) == Some(values) {
            return Ok(());
        }
        backend.upload(values, buf, 0)?;
        let common = self.values.len().min(values.len());
        self.values[..common].copy_from_slice(&values[..common]);
        self.values.extend_from_slice(&values[common..]);
        Ok(())
    }

    /// The device writes the table itself from now on.
    fn forget(&mut self) {
        self.values.clear();
    }
}

/// What the tables of a [`Batch`] hold. Those that ops write are not tracked, and never staged.
#[derive(Default)]
pub(super) struct HeldBatch {
    live: Held<u32>,
    row_sequence: Held<u32>,
    token: Held<u32>,
    parent: Held<i32>,
    depth: Held<u32>,
    slot: Held<u32>,
    start: Held<u32>,
    rows: Held<u32>,
}

impl HeldBatch {
    /// Ops have written the tokens, parents and depths.
    pub(super) fn forget_rows(&mut self) {
        self.token = Held::default();
        self.parent = Held::default();
        self.depth = Held::default();
    }
}

/// What the tables of a [`ops::DraftPlan`] hold.
#[derive(Default)]
pub(super) struct HeldPlan {
    pub(super) block: Held<u32>,
    pub(super) chain: Held<u32>,
    pub(super) rows: Held<u32>,
    pub(super) rows_max: Held<u32>,
}

/// Segments of one forward, collected on the host. Segments of one forward are all of one kind.
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
        self.block(slot, tokens.len());
        self.token.extend_from_slice(tokens);
    }

    /// Adds a segment whose rows form a chain; its tokens are written on the device.
    pub(super) fn block(&mut self, slot: usize, rows: usize) {
        self.tree(slot, rows);
        self.parent.extend((0..rows).map(|row| row as i32 - 1));
        self.depth.extend(0..rows as u32);
    }

    /// Adds a segment whose tokens, parents and depths are written on the device.
    pub(super) fn tree(&mut self, slot: usize, rows: usize) {
        self.start.push(self.row_sequence.len() as u32);
        self.rows.push(rows as u32);
        let sequence = self.slot.len() as u32;
        self.slot.push(slot as u32);
        self.row_sequence
            .resize(self.row_sequence.len() + rows, sequence);
    }

    /// Brings the tables up to date. All rows behind the live ones become padding, whatever
    /// capacity the ops have.
    pub(super) fn upload<B: Backend>(
        mut self,
        backend: &B,
        batch: &mut Batch<B>,
        held: &mut HeldBatch,
    ) -> Result<(), OpsError> {
        let live = [self.row_count() as u32, self.sequence_count() as u32];
        self.row_sequence.resize(batch.rows_max, NONE);
        held.live.write(backend, &live, &mut batch.live)?;
        held.row_sequence
            .write(backend, &self.row_sequence, &mut batch.row_sequence)?;
        held.token.write(backend, &self.token, &mut batch.token)?;
        held.parent
            .write(backend, &self.parent, &mut batch.parent)?;
        held.depth.write(backend, &self.depth, &mut batch.depth)?;
        held.slot
            .write(backend, &self.slot, &mut batch.sequence_slot)?;
        held.start
            .write(backend, &self.start, &mut batch.sequence_start)?;
        held.rows
            .write(backend, &self.rows, &mut batch.sequence_rows)
    }

    /// [`Staging::upload`] for segments that the step itself cuts: their rows are shared, and what
    /// says which rows they have is written on the device.
    pub(super) fn upload_uncut<B: Backend>(
        self,
        backend: &B,
        batch: &mut Batch<B>,
        held: &mut HeldBatch,
    ) -> Result<(), OpsError> {
        // No step has so many rows: what the device has written there is never taken for the host's.
        let live = [NONE, self.sequence_count() as u32];
        held.live.write(backend, &live, &mut batch.live)?;
        held.slot
            .write(backend, &self.slot, &mut batch.sequence_slot)?;
        for table in [&mut held.row_sequence, &mut held.start, &mut held.rows] {
            table.forget();
        }
        Ok(())
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
