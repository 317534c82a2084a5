//! One step: draft, build the tree, verify, sample, walk, commit.

use std::time::Instant;

use ops::{
    Backend, BuildTree, CompactKv, GatherRows, GdnCommit, GdnMode, NONE, OpsError, PHI_BUDGETS,
    Prediction, TopK, TreeTablesFrom,
};

use super::results::read_one;
use super::staging::{Staging, list_rows};
use super::{Runner, SequenceStep, Shape, StepOutput, StepSequence, StepTiming, bucket};
use crate::ModelError;
use crate::target::{Pass, store};

impl<B: Backend> Runner<B> {
    /// One step of every given sequence: draft, build, verify, sample, walk, commit. The shapes
    /// together have at most 512 rows. Without a drafter every shape must be plain.
    ///
    /// # Panics
    /// If the shapes exceed the rows the runner was made for.
    pub fn step(&mut self, sequences: &[SequenceStep]) -> Result<StepOutput, ModelError> {
        let mut timing = StepTiming::default();
        let mut clock = Instant::now();
        let mut lap = |part: &mut f64| {
            *part = clock.elapsed().as_secs_f64() * 1e3;
            clock = Instant::now();
        };
        let capacity = self.stage_step(sequences)?;
        self.draft(sequences)?;
        lap(&mut timing.draft_ms);
        self.build()?;
        lap(&mut timing.build_ms);
        self.verify(capacity)?;
        lap(&mut timing.verify_ms);
        self.sample_and_walk(capacity, false)?;
        lap(&mut timing.sample_ms);
        self.commit(sequences)?;
        lap(&mut timing.commit_ms);
        let sequences = sequences
            .iter()
            .enumerate()
            .map(|(index, sequence)| self.read_result(index, sequence))
            .collect::<Result<_, _>>()?;
        Ok(StepOutput { sequences, timing })
    }

    /// Uploads segments and draft plan; returns the row bucket.
    fn stage_step(&mut self, sequences: &[SequenceStep]) -> Result<usize, OpsError> {
        let mut staging = Staging::default();
        let (mut block, mut chain, mut depth_max) = (Vec::new(), Vec::new(), Vec::new());
        let mut blocks = 0;
        let depths = self
            .drafter
            .as_ref()
            .map_or(0, |drafter| drafter.config.depths());
        for sequence in sequences {
            let rows = sequence.shape.rows();
            assert!(
                rows <= self.config.tree_rows_max,
                "{rows} rows for one sequence"
            );
            staging.reserved(sequence.slot, rows);
            if sequence.shape == Shape::Plain {
                block.push(NONE);
            } else {
                assert!(depths > 0, "a draft needs a drafter");
                block.push(blocks);
                blocks += 1;
            }
            chain.push(u32::from(matches!(sequence.shape, Shape::Chain(_))));
            depth_max.push(self.useful_depth(sequence.slot)?.min(depths as u32));
        }
        let capacity = bucket(staging.row_count());
        staging.upload(&self.backend, &mut self.verify.batch, capacity)?;
        let plan = &mut self.draft_plan;
        self.backend.upload(&block, &mut plan.block, 0)?;
        self.backend.upload(&chain, &mut plan.chain, 0)?;
        self.backend.upload(&depth_max, &mut plan.depth_max, 0)?;
        Ok(capacity)
    }

    /// Depth of the deepest node that can still be emitted: the target's own token comes after it.
    fn useful_depth(&self, slot: usize) -> Result<u32, OpsError> {
        let mut limits = [ops::SamplingRow::default()];
        self.backend
            .download(&self.slots.sampling, slot, &mut limits)?;
        let emitted = read_one(&self.backend, &self.slots.emitted, slot)?;
        let length = read_one(&self.backend, &self.slots.length, slot)?;
        let to_emit = limits[0].tokens_max.saturating_sub(emitted);
        // The root takes position `length`.
        let to_fill = limits[0].context_max.saturating_sub(length + 1);
        Ok(to_emit.min(to_fill).saturating_sub(1))
    }

    /// Runs the drafter over one block per drafting sequence and ranks the candidates.
    pub(super) fn draft(&mut self, sequences: &[SequenceStep]) -> Result<(), OpsError> {
        let drafting: Vec<usize> = sequences
            .iter()
            .filter(|sequence| sequence.shape != Shape::Plain)
            .map(|sequence| sequence.slot)
            .collect();
        let Some(drafter) = &mut self.drafter else {
            return Ok(());
        };
        if drafting.is_empty() {
            return Ok(());
        }
        let (block_size, depths) = (drafter.config.block_size, drafter.config.depths());
        let mut staging = Staging::default();
        let mut drafted_rows = Vec::with_capacity(drafting.len() * depths);
        for &slot in &drafting {
            let first = staging.row_count() as u32;
            drafted_rows.extend(first + 1..first + block_size as u32);
            let mut tokens = vec![drafter.config.mask_token; block_size];
            tokens[0] = read_one(&self.backend, &self.slots.root, slot)?;
            staging.chain(slot, &tokens);
        }
        let capacity = staging.row_count();
        staging.upload(&self.backend, &mut self.blocks, capacity)?;
        drafter.block(
            &self.backend,
            &self.target.weights.embedding,
            &self.blocks,
            capacity,
            &self.slots,
            &mut self.workspace,
        )?;
        let selected = &mut self.selected;
        list_rows(&self.backend, &mut selected.rows, &drafted_rows, &[], &[])?;
        let rows = selected.rows.rows(drafted_rows.len());
        self.backend.gather_rows(GatherRows {
            rows,
            source: &selected.rows.source,
            dim: self.target.config.hidden_size,
            x: &self.workspace.h,
            out: &mut selected.x,
        })?;
        let head = self.target.weights.head();
        self.backend
            .linear(store(rows, &selected.x, head, &mut self.workspace.logits))?;
        self.backend.topk_logprobs(TopK {
            rows,
            vocab_rows: self.slots.vocab_rows,
            vocab_used: self.slots.vocab_used,
            k: self.config.topk,
            logits: &self.workspace.logits,
            ids: &mut self.candidate_ids,
            logprobs: &mut self.candidate_logprobs,
        })
    }

    /// Fills the verify segments and derives their tables.
    fn build(&mut self) -> Result<(), OpsError> {
        self.backend.build_tree(BuildTree {
            depths: self
                .drafter
                .as_ref()
                .map_or(0, |drafter| drafter.config.depths()),
            k: self.config.topk,
            ids: &self.candidate_ids,
            logprobs: &self.candidate_logprobs,
            plan: &self.draft_plan,
            slots: &self.slots,
            batch: &mut self.verify.batch,
            padding: &mut self.results.padding,
            prediction: &mut self.results.prediction,
        })?;
        self.backend.tree_tables(TreeTablesFrom {
            batch: &self.verify.batch,
            padding: Some(&self.results.padding),
            tables: &mut self.verify.tree,
        })
    }

    /// The target over all rows, and their logits.
    pub(super) fn verify(&mut self, capacity: usize) -> Result<(), OpsError> {
        let forward = &self.verify;
        let rows = forward.batch.rows(capacity);
        self.target.forward(&mut Pass {
            backend: &self.backend,
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
        let ws = &mut self.workspace;
        self.target
            .head(&self.backend, rows, &ws.x, &mut ws.h, &mut ws.logits)
    }

    /// Keeps the accepted path: keys and values, recurrent state, the drafter's context.
    fn commit(&mut self, sequences: &[SequenceStep]) -> Result<(), OpsError> {
        let verify = &self.verify;
        self.backend.compact_kv(CompactKv {
            batch: &verify.batch,
            slots: &self.slots,
            walk: &verify.walk,
            layers: &mut self.caches,
        })?;
        self.backend.gdn_commit(GdnCommit {
            batch: &verify.batch,
            walk: &verify.walk,
            journals: &self.journals,
            states: &mut self.states,
        })?;
        self.advance(false)?;
        let Some(drafter) = &mut self.drafter else {
            return Ok(());
        };
        let kept_max: usize = sequences
            .iter()
            .map(|sequence| sequence.shape.rows().min(ops::EMIT_MAX))
            .sum();
        drafter.append_context(
            &self.backend,
            &self.verify.context,
            kept_max,
            &self.slots,
            &mut self.workspace,
        )
    }

    fn read_result(&self, index: usize, sequence: &SequenceStep) -> Result<StepSequence, OpsError> {
        let (backend, slot) = (&self.backend, sequence.slot);
        let top = self.logprobs_top[slot];
        let (tokens, ended) = self
            .results
            .emitted(backend, &self.verify.walk, index, top)?;
        let path_rows = read_one(backend, &self.verify.walk.path_rows, index)? as usize;
        let start = read_one(backend, &self.verify.batch.sequence_start, index)? as usize;
        let mut padding = [0; ops::TREE_ROWS_MAX];
        let padding = &mut padding[..sequence.shape.rows()];
        backend.download(&self.results.padding, start, padding)?;
        let padded = padding.iter().filter(|flag| **flag != 0).count();
        let prediction = match sequence.shape {
            Shape::Plain => None,
            _ => {
                let mut values = [0.0; Prediction::LEN];
                let offset = index * Prediction::LEN;
                backend.download(&self.results.prediction, offset, &mut values)?;
                let (tree, chain) = values.split_at(PHI_BUDGETS.len());
                Some(Prediction {
                    tree: tree.try_into().expect("split at the length of `tree`"),
                    chain: chain.try_into().expect("the rest is `chain`"),
                })
            }
        };
        Ok(StepSequence {
            slot,
            drafted: sequence.shape.rows() - 1 - padded,
            accepted: path_rows - 1,
            tokens,
            ended,
            prediction,
        })
    }
}
