//! One step: draft, build the tree, verify, sample, walk, commit.
//!
//! A step is tables staged by the host, then a fixed list of ops whose capacities are a
//! [`StepKey`], then one download. Between staging and download the host neither reads nor writes
//! the device, so the list can be recorded once per key and launched. Only constrained sequences need
//! the host in between (`constrained`).

use std::time::Instant;

use ops::{
    Backend, BuildTree, CompactKv, DraftBlocks, GdnCommit, GdnMode, NONE, OpsError, TopK,
    TreeTablesFrom,
};

use super::graphs::{GraphKey, GraphPart};
use super::staging::Staging;
use super::{
    Runner, SequenceStep, Shape, Stage, StepKey, StepOutput, StepParts, StepSequence, StepTiming,
};
use crate::ModelError;
use crate::target::{Pass, float};

/// Times the parts of a step whose ops are enqueued one by one.
pub(super) struct PartClock {
    since: Instant,
    pub(super) parts: StepParts,
}

impl PartClock {
    pub(super) fn start() -> Self {
        PartClock {
            since: Instant::now(),
            parts: StepParts::default(),
        }
    }

    /// Counts what passed since the last part to none.
    pub(super) fn skip(&mut self) {
        self.since = Instant::now();
    }

    fn lap(&mut self, part: impl FnOnce(&mut StepParts) -> &mut f64) {
        *part(&mut self.parts) = milliseconds(self.since);
        self.since = Instant::now();
    }
}

pub(super) fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

impl<B: Backend> Runner<B> {
    /// One step of every given sequence: draft, build, verify, sample, walk, commit. The shapes
    /// together have at most [`super::RunnerConfig::step_rows_max`] rows, whether sequences share
    /// them or not. Without a drafter every shape must be plain.
    ///
    /// # Panics
    /// If the shapes exceed the rows the runner was made for.
    pub fn step(&mut self, sequences: &[SequenceStep]) -> Result<StepOutput, ModelError> {
        let began = Instant::now();
        let step = self.stage_step(sequences)?;
        let mut clock = PartClock::start();
        let part = GraphPart::Whole;
        let launched = self.run_graph(GraphKey { part, step }, &mut clock)?;
        let sequences = self.read_step(sequences)?;
        let timing = StepTiming {
            total_ms: milliseconds(began),
            parts: (!launched).then_some(clock.parts),
        };
        Ok(StepOutput { sequences, timing })
    }

    /// Brings segments, blocks and draft plan up to date.
    pub(super) fn stage_step(&mut self, sequences: &[SequenceStep]) -> Result<StepKey, OpsError> {
        let block_size = self.block_size();
        let (mut verify, mut blocks) = (Staging::default(), Staging::default());
        let (mut block, mut chain) = (Vec::new(), Vec::new());
        for sequence in sequences {
            let rows = sequence.shape.rows();
            let most = rows.max(sequence.rows_max.unwrap_or(1));
            assert!(
                most <= self.config.tree_rows_max,
                "{most} rows for one sequence"
            );
            assert_eq!(
                self.progress[sequence.slot].to_replay, 0,
                "a step follows the replay of all emitted tokens"
            );
            verify.tree(sequence.slot, rows);
            if sequence.shape == Shape::Plain {
                block.push(NONE);
            } else {
                assert!(block_size > 1, "a draft needs a drafter");
                block.push(blocks.sequence_count() as u32);
                blocks.block(sequence.slot, block_size);
            }
            chain.push(u32::from(matches!(sequence.shape, Shape::Chain(_))));
        }
        let rows = verify.row_count();
        assert!(
            rows <= self.config.step_rows_max,
            "{rows} rows in a step of {} at most",
            self.config.step_rows_max
        );
        let key = StepKey::of_step(sequences, self.config.sequences_max);
        let backend = &*self.backend;
        let (forward, drafts) = (&mut self.verify, &mut self.drafts);
        let (batch, held) = (&mut forward.batch, &mut forward.held);
        match key.shared {
            true => verify.upload_uncut(backend, batch, held)?,
            false => verify.upload(backend, batch, held)?,
        }
        blocks.upload(backend, &mut drafts.batch, &mut drafts.held)?;
        let (plan, held) = (&mut drafts.plan, &mut drafts.held_plan);
        held.block.write(backend, &block, &mut plan.block)?;
        held.chain.write(backend, &chain, &mut plan.chain)?;
        if key.shared {
            let rows = sequences.iter().map(|step| step.shape.rows() as u32);
            let most = sequences
                .iter()
                .map(|step| step.rows_max.unwrap_or(0) as u32);
            held.rows
                .write(backend, &rows.collect::<Vec<_>>(), &mut plan.rows)?;
            held.rows_max
                .write(backend, &most.collect::<Vec<_>>(), &mut plan.rows_max)?;
        }
        Ok(key)
    }

    /// Enqueues the ops that a graph of this key holds.
    pub(super) fn enqueue_graph(
        &mut self,
        key: GraphKey,
        clock: &mut PartClock,
    ) -> Result<(), OpsError> {
        match key.part {
            GraphPart::Whole => self.enqueue(key.step, clock),
            GraphPart::Draft => self.draft_tree(key.step, clock),
            GraphPart::MaskedVerify => self.verify_walk(key.step, true, clock),
        }
    }

    /// Enqueues all ops of a step.
    pub(super) fn enqueue(&mut self, key: StepKey, clock: &mut PartClock) -> Result<(), OpsError> {
        self.draft_tree(key, clock)?;
        self.verify_walk(key, false, clock)
    }

    /// The first half: what is to be verified, and where it may be masked.
    fn draft_tree(&mut self, key: StepKey, clock: &mut PartClock) -> Result<(), OpsError> {
        self.draft(key)?;
        clock.lap(|parts| &mut parts.draft_ms);
        self.build(key)?;
        clock.lap(|parts| &mut parts.build_ms);
        Ok(())
    }

    /// The second half: verify, sample, walk, commit.
    fn verify_walk(
        &mut self,
        key: StepKey,
        masked: bool,
        clock: &mut PartClock,
    ) -> Result<(), OpsError> {
        // The first half may have been launched, which covers nothing.
        self.verify.batch.cover(key.sequences);
        self.verify(key)?;
        clock.lap(|parts| &mut parts.verify_ms);
        self.sample_and_walk(key.rows, Stage::Step, masked)?;
        clock.lap(|parts| &mut parts.sample_ms);
        self.commit(key)?;
        clock.lap(|parts| &mut parts.commit_ms);
        Ok(())
    }

    /// Rows of a block; 1 without a drafter.
    pub(super) fn block_size(&self) -> usize {
        let drafter = self.drafter.as_ref();
        drafter.map_or(1, |drafter| drafter.config.block_size)
    }

    /// Runs the drafter over one block per drafting sequence and ranks the candidates of every
    /// row, the anchor's too.
    pub(super) fn draft(&mut self, key: StepKey) -> Result<(), OpsError> {
        let Some(drafter) = &mut self.drafter else {
            return Ok(());
        };
        if key.blocks == 0 {
            return Ok(());
        }
        let backend = &*self.backend;
        let batch = &mut self.drafts.batch;
        batch.cover(key.blocks);
        let block_size = drafter.config.block_size;
        backend.draft_blocks(DraftBlocks {
            slots: &self.slots,
            mask_token: drafter.config.mask_token,
            block_size,
            batch,
        })?;
        let capacity = key.blocks * block_size;
        let ws = &mut self.workspace;
        let weights = &self.target.weights;
        drafter.block(
            backend,
            &weights.embedding,
            batch,
            capacity,
            &self.slots,
            ws,
        )?;
        let rows = batch.rows(capacity);
        backend.linear(float(rows, &ws.h, weights.head(), &mut ws.logits))?;
        backend.topk_logprobs(TopK {
            rows,
            vocab_rows: self.slots.vocab_rows,
            vocab_used: self.slots.vocab_used,
            k: self.config.topk,
            logits: &ws.logits,
            ids: &mut self.drafts.candidate_ids,
            logprobs: &mut self.drafts.candidate_logprobs,
        })
    }

    /// Fills the verify segments and derives their tables.
    pub(super) fn build(&mut self, key: StepKey) -> Result<(), OpsError> {
        let block_size = self.block_size();
        let (forward, drafts) = (&mut self.verify, &self.drafts);
        forward.batch.cover(key.sequences);
        self.backend.build_tree(BuildTree {
            block_size,
            k: self.config.topk,
            ids: &drafts.candidate_ids,
            logprobs: match self.simulation {
                None => &drafts.candidate_logprobs,
                Some(_) => &drafts.law_logprobs,
            },
            plan: &drafts.plan,
            shared: key.shared,
            slots: &self.slots,
            batch: &mut forward.batch,
            padding: &mut self.results.padding,
            prediction: &mut self.results.prediction,
        })?;
        self.backend.tree_tables(TreeTablesFrom {
            batch: &forward.batch,
            padding: Some(&self.results.padding),
            tables: &mut forward.tree,
        })
    }

    /// The target over all rows, and their logits.
    pub(super) fn verify(&mut self, key: StepKey) -> Result<(), OpsError> {
        let forward = &self.verify;
        let rows = forward.batch.rows(key.rows);
        self.target.forward(&mut Pass {
            backend: &*self.backend,
            mode: GdnMode::Verify,
            rows,
            batch: &forward.batch,
            tree: &forward.tree,
            slots: &self.slots,
            workspace: &mut self.workspace,
            caches: &mut self.caches,
            states: &mut self.states,
            journals: &mut self.journals,
        })?;
        let (ws, head) = (&mut self.workspace, self.target.weights.head());
        self.backend
            .linear(float(rows, &ws.h, head, &mut ws.logits))
    }

    /// Keeps the accepted path: keys and values, recurrent state, the drafter's context.
    pub(super) fn commit(&mut self, key: StepKey) -> Result<(), OpsError> {
        let verify = &self.verify;
        self.backend.compact_kv(CompactKv {
            batch: &verify.batch,
            slots: &self.slots,
            walk: &verify.walk,
            layers: &mut self.caches,
        })?;
        self.keep_path(key.context)
    }

    /// Recurrent state and the drafter's context of the rows of the walk, which are `context` at most.
    pub(super) fn keep_path(&mut self, context: usize) -> Result<(), OpsError> {
        let verify = &self.verify;
        self.backend.gdn_commit(GdnCommit {
            batch: &verify.batch,
            walk: &verify.walk,
            journals: &self.journals,
            states: &mut self.states,
        })?;
        self.advance(Stage::Step)?;
        let Some(drafter) = &mut self.drafter else {
            return Ok(());
        };
        drafter.append_context(
            &self.backend,
            &self.verify.context,
            context,
            &self.slots,
            &mut self.workspace,
        )
    }

    /// Waits for the step and reads what it did.
    pub(super) fn read_step(
        &mut self,
        sequences: &[SequenceStep],
    ) -> Result<Vec<StepSequence>, OpsError> {
        let tops: Vec<_> = (sequences.iter())
            .map(|sequence| self.logprobs_top[sequence.slot])
            .collect();
        let read = self.results.read(&self.backend, &tops)?;
        // Where rows are shared only the device knew them.
        let rows = sequences.iter().zip(&read);
        self.verified
            .next(rows.map(|(sequence, read)| (sequence.slot, read.result.rows)));
        let outputs = sequences.iter().zip(read).map(|(sequence, read)| {
            let (slot, shape) = (sequence.slot, sequence.shape);
            let progress = &mut self.progress[slot];
            progress.length += read.result.path_rows;
            progress.pending = read.result.path_rows - 1;
            StepSequence {
                slot,
                rows: read.result.rows,
                drafted: read.result.rows - 1 - read.result.padded,
                accepted: read.result.path_rows - 1,
                ended: read.result.reason,
                not_finite: read.not_finite("of a step"),
                prediction: (shape != Shape::Plain).then_some(read.result.prediction),
                tokens: read.tokens,
            }
        });
        Ok(outputs.collect())
    }
}
