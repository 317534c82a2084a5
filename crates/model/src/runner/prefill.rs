//! Prefill: chunks of prompts through the target, their features into the drafter's context.

use ops::{Backend, CutReason, GatherRows, GdnMode, OpsError, TreeTablesFrom, row_logprobs};

use super::results::ReadSequence;
use super::staging::{Staging, list_rows};
use super::{Chunk, Constraint, Emitted, PrefillOutput, Runner, Stage, TokenLogprob};
use crate::ModelError;
use crate::target::{Pass, float};
use crate::workspace::LOGITS_SLICE_ROWS;

/// For `count` chunks any token may follow.
pub(super) fn unconstrained<'a>(count: usize) -> Vec<Option<&'a mut dyn Constraint>> {
    (0..count).map(|_| None).collect()
}

/// What follows a prompt; see [`PrefillOutput`].
pub(super) struct FirstToken {
    token: Emitted,
    ended: Option<CutReason>,
    not_finite: Option<String>,
}

impl<B: Backend> Runner<B> {
    /// Runs the chunks in one forward; together they have at most `prefill_rows_max` tokens.
    ///
    /// # Panics
    /// If a chunk is empty or does not start where its sequence's prefill ended.
    pub fn prefill(&mut self, chunks: &[Chunk<'_>]) -> Result<Vec<PrefillOutput>, ModelError> {
        self.prefill_constrained(chunks, &mut unconstrained(chunks.len()))
    }

    /// [`Runner::prefill`] where `constraints[c]` says which tokens may follow chunk c, if a prompt
    /// ends there; `None`: any. Each constraint stands before the first output token, and still
    /// does afterwards: the caller moves it on by [`PrefillOutput::first`].
    ///
    /// # Panics
    /// If there is not one entry per chunk, or as [`Runner::prefill`] does.
    pub fn prefill_constrained(
        &mut self,
        chunks: &[Chunk<'_>],
        constraints: &mut [Option<&mut dyn Constraint>],
    ) -> Result<Vec<PrefillOutput>, ModelError> {
        assert_eq!(chunks.len(), constraints.len(), "one entry per chunk");
        self.prefill_forward(chunks)?;
        let mut outputs = Vec::with_capacity(chunks.len());
        let mut start_row = 0;
        for chunk in chunks {
            outputs.push(PrefillOutput {
                slot: chunk.slot,
                first: None,
                ended: None,
                not_finite: None,
                prompt_logprobs: self.prompt_logprobs(chunk, start_row)?,
            });
            start_row += chunk.tokens.len();
        }
        let finished = (0..chunks.len()).filter(|index| chunks[*index].last);
        for (index, first) in finished.zip(self.prefill_rest(chunks, constraints)?) {
            outputs[index].first = Some(first.token);
            outputs[index].ended = first.ended;
            outputs[index].not_finite = first.not_finite;
        }
        Ok(outputs)
    }

    /// After the forward: context for the drafter, lengths, and the first tokens of the prompts
    /// that ended.
    pub(super) fn prefill_rest(
        &mut self,
        chunks: &[Chunk<'_>],
        constraints: &mut [Option<&mut dyn Constraint>],
    ) -> Result<Vec<FirstToken>, ModelError> {
        // The drafter's context reuses the buffer that holds the last hidden states.
        let last_rows = self.select_last_rows(chunks)?;
        self.prefill_context(chunks)?;
        for chunk in chunks {
            let length = chunk.start + chunk.tokens.len();
            self.backend
                .upload(&[length as u32], &mut self.slots.length, chunk.slot)?;
            self.progress[chunk.slot].length = length;
        }
        if last_rows == 0 {
            Ok(Vec::new())
        } else {
            self.first_tokens(chunks, constraints)
        }
    }

    pub(super) fn prefill_forward(&mut self, chunks: &[Chunk<'_>]) -> Result<(), ModelError> {
        let mut staging = Staging::default();
        for chunk in chunks {
            assert!(
                !chunk.tokens.is_empty(),
                "an empty chunk has nothing to prefill"
            );
            assert_eq!(
                self.progress[chunk.slot].length, chunk.start,
                "a chunk starts where the prefill stands"
            );
            staging.chain(chunk.slot, chunk.tokens);
        }
        let capacity = staging.row_count();
        assert!(
            capacity <= self.config.prefill_rows_max,
            "{capacity} rows in one prefill"
        );
        let forward = &mut self.prefill;
        forward.batch.cover(staging.sequence_count());
        staging.upload(&*self.backend, &mut forward.batch, &mut forward.held)?;
        self.backend.tree_tables(TreeTablesFrom {
            batch: &forward.batch,
            padding: None,
            tables: &mut forward.tree,
        })?;
        self.target.forward(&mut Pass {
            backend: &*self.backend,
            mode: GdnMode::Prefill,
            rows: forward.batch.rows(capacity).of_prompts(),
            batch: &forward.batch,
            tree: &forward.tree,
            slots: &self.slots,
            workspace: &mut self.workspace,
            caches: &mut self.caches,
            states: &mut self.states,
            journals: std::slice::from_mut(&mut self.prefill_journal),
        })?;
        Ok(())
    }

    /// Gathers the prompts' last rows; returns how many there are.
    fn select_last_rows(&mut self, chunks: &[Chunk<'_>]) -> Result<usize, OpsError> {
        let mut rows = Vec::new();
        let mut end = 0;
        for chunk in chunks {
            end += chunk.tokens.len() as u32;
            if chunk.last {
                rows.push(end - 1);
            }
        }
        self.select(&rows)?;
        Ok(rows.len())
    }

    /// Gathers rows of the last forward for the head.
    pub(super) fn select(&mut self, rows: &[u32]) -> Result<(), OpsError> {
        let selected = &mut self.selected;
        list_rows(&*self.backend, &mut selected.rows, rows, &[], &[])?;
        self.backend.gather_rows(GatherRows {
            rows: selected.rows.rows(rows.len()),
            source: &selected.rows.source,
            dim: self.target.config.hidden_size,
            x: &self.workspace.h,
            out: &mut selected.x,
        })
    }

    /// Logits of the selected rows.
    pub(super) fn selected_head(&mut self, count: usize) -> Result<(), OpsError> {
        let (selected, head) = (&self.selected, self.target.weights.head());
        let rows = selected.rows.rows(count);
        let logits = &mut self.workspace.logits;
        self.backend.linear(float(rows, &selected.x, head, logits))
    }

    /// Log-probabilities of the tokens that follow the chunk's rows, in slices of the head.
    fn prompt_logprobs(
        &mut self,
        chunk: &Chunk<'_>,
        start_row: usize,
    ) -> Result<Vec<TokenLogprob>, ModelError> {
        let Some(wanted) = chunk.prompt_logprobs else {
            return Ok(Vec::new());
        };
        let followers: Vec<u32> = chunk.tokens[1..]
            .iter()
            .copied()
            .chain(wanted.next)
            .collect();
        let (vocab_rows, used) = (self.slots.vocab_rows, self.slots.vocab_used);
        let mut result = Vec::with_capacity(followers.len());
        let mut logits = vec![0.0; used];
        for (slice, followers) in followers.chunks(LOGITS_SLICE_ROWS).enumerate() {
            let first = start_row + slice * LOGITS_SLICE_ROWS;
            let rows: Vec<u32> = (first..first + followers.len())
                .map(|row| row as u32)
                .collect();
            self.select(&rows)?;
            self.selected_head(rows.len())?;
            for (row, &token) in followers.iter().enumerate() {
                self.backend
                    .download(&self.workspace.logits, row * vocab_rows, &mut logits)?;
                let (logprob, top) = row_logprobs(&logits, token, wanted.top);
                result.push(TokenLogprob { logprob, top });
            }
        }
        Ok(result)
    }

    /// Appends every row of the chunks to the drafter's context.
    fn prefill_context(&mut self, chunks: &[Chunk<'_>]) -> Result<(), OpsError> {
        let Some(drafter) = &mut self.drafter else {
            return Ok(());
        };
        let (mut slot, mut position) = (Vec::new(), Vec::new());
        for chunk in chunks {
            let end = slot.len() + chunk.tokens.len();
            slot.resize(end, chunk.slot as u32);
            position.extend((chunk.start..chunk.start + chunk.tokens.len()).map(|p| p as u32));
        }
        let source: Vec<u32> = (0..slot.len() as u32).collect();
        let context = &mut self.prefill.context;
        list_rows(&*self.backend, context, &source, &slot, &position)?;
        drafter.append_context(
            &self.backend,
            context,
            source.len(),
            &self.slots,
            &mut self.workspace,
        )
    }

    /// Samples the first output token of every prompt that ended; its rows are selected.
    fn first_tokens(
        &mut self,
        chunks: &[Chunk<'_>],
        constraints: &mut [Option<&mut dyn Constraint>],
    ) -> Result<Vec<FirstToken>, ModelError> {
        let mut staging = Staging::default();
        let (mut finished, mut last) = (Vec::new(), Vec::new());
        for (chunk, constraint) in chunks.iter().zip(constraints) {
            if chunk.last {
                staging.chain(chunk.slot, &chunk.tokens[chunk.tokens.len() - 1..]);
                finished.push(chunk);
                last.push(
                    constraint
                        .as_mut()
                        .map(|own| &mut **own as &mut dyn Constraint),
                );
            }
        }
        let count = finished.len();
        self.selected_head(count)?;
        let first = &mut self.first;
        first.batch.cover(count);
        staging.upload(&*self.backend, &mut first.batch, &mut first.held)?;
        let masked = last.iter().any(Option::is_some);
        if masked {
            let rows = (&first.batch, &first.tree);
            self.masks
                .fill(&*self.backend, rows, &vec![1; count], &mut last)?;
        }
        self.sample_and_walk(count, Stage::First, masked)?;
        self.advance(Stage::First)?;
        let tops: Vec<_> = (finished.iter())
            .map(|chunk| self.logprobs_top[chunk.slot])
            .collect();
        let read = self.results.read(&self.backend, &tops)?;
        let first = |mut read: ReadSequence| FirstToken {
            not_finite: read.not_finite("behind the prompt"),
            ended: read.result.reason,
            token: read.tokens.pop().expect("a walk emits at least one token"),
        };
        Ok(read.into_iter().map(first).collect())
    }
}
