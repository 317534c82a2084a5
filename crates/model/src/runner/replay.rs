//! Replay: a sequence that lost its slot goes on from what it had emitted.

use ops::{Backend, EMIT_MAX, GdnMode, OpsError, TreeTablesFrom};

use super::staging::Staging;
use super::step_key::bucket;
use super::{Replay, Runner};
use crate::ModelError;
use crate::target::Pass;

impl<B: Backend> Runner<B> {
    /// Processes tokens that were emitted before, behind the prompt (or what was resumed) and in
    /// order, several sequences at once. They pass the target as chains that are kept whole, the
    /// rows that they were when they were emitted, so that the state has the same bits. Nothing is
    /// sampled. The caller splits: a call has at most [`super::RunnerConfig::replay_rows_max`]
    /// tokens of one sequence, and [`super::RunnerConfig::verify_rows_max`] in all.
    ///
    /// The last of [`super::SequenceStart::emitted`] is not replayed: the first step processes it.
    ///
    /// # Panics
    /// If a sequence has no tokens, or more than are left to be replayed, or the call is too large.
    pub fn replay(&mut self, replays: &[Replay<'_>]) -> Result<(), ModelError> {
        let mut staging = Staging::default();
        for replay in replays {
            let (slot, rows) = (replay.slot, replay.tokens.len());
            let most = self.config.replay_rows_max();
            let left = self.progress[slot].to_replay;
            assert!(
                (1..=most.min(left)).contains(&rows),
                "{rows} tokens for slot {slot}, which may replay {left}, {most} at once"
            );
            staging.chain(slot, replay.tokens);
        }
        let (rows, sequences) = (staging.row_count(), staging.sequence_count());
        if sequences == 0 {
            return Ok(());
        }
        let forward = &mut self.verify;
        assert!(
            rows <= forward.batch.rows_max,
            "{rows} rows in one replay of at most {}",
            forward.batch.rows_max
        );
        let tokens = |replay: &Replay<'_>| (replay.slot, replay.tokens.len());
        self.verified.next(replays.iter().map(tokens));
        // Steps write these tables on the device.
        forward.held.forget_rows();
        staging.upload(&*self.backend, &mut forward.batch, &mut forward.held)?;
        let covered = bucket(sequences).min(self.config.sequences_max);
        forward.batch.cover(covered);
        self.force_walk(replays)?;
        self.replay_forward(bucket(rows))?;
        // A step that finds its tables in place enqueues no copy, and its first kernels may read the
        // state before those of the replay have ended, unless somebody waits for them.
        self.backend.wait()?;
        for replay in replays {
            let progress = &mut self.progress[replay.slot];
            progress.length += replay.tokens.len();
            progress.pending = replay.tokens.len() - 1;
            progress.to_replay -= replay.tokens.len();
        }
        Ok(())
    }

    /// Keeps every row and emits nothing.
    fn force_walk(&mut self, replays: &[Replay<'_>]) -> Result<(), OpsError> {
        let mut path_rows = Vec::with_capacity(replays.len());
        let mut path = Vec::with_capacity(replays.len() * EMIT_MAX);
        for replay in replays {
            path_rows.push(replay.tokens.len() as u32);
            path.extend(0..EMIT_MAX as u32);
        }
        let (backend, walk) = (&*self.backend, &mut self.verify.walk);
        backend.upload(&path_rows, &mut walk.path_rows, 0)?;
        backend.upload(&path, &mut walk.path, 0)?;
        backend.zero(&mut walk.emitted, 0, replays.len())
    }

    /// What a step does to the rows that it keeps.
    fn replay_forward(&mut self, capacity: usize) -> Result<(), OpsError> {
        let backend = &*self.backend;
        let forward = &mut self.verify;
        backend.tree_tables(TreeTablesFrom {
            batch: &forward.batch,
            padding: None,
            tables: &mut forward.tree,
        })?;
        self.target.forward(&mut Pass {
            backend,
            mode: GdnMode::Verify,
            rows: forward.batch.rows(capacity),
            batch: &forward.batch,
            tree: &forward.tree,
            slots: &self.slots,
            workspace: &mut self.workspace,
            caches: &mut self.caches,
            states: &mut self.states,
            journals: &mut self.journals,
        })?;
        self.keep_path(capacity)
    }
}
