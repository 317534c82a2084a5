//! Loads the weights and allocates everything a runner will ever use.

use std::rc::Rc;

use ops::{
    Backend, Batch, ContextRows, DraftPlan, GdnJournal, GdnState, KvLayer, OpsError, Slots,
    TreeTables, Walk,
};

use super::results::ResultBuffers;
use super::staging::{Held, HeldBatch};
use super::{Drafts, Forward, Runner, RunnerConfig, Selected};
use crate::checkpoint::{Checkpoint, drafter_naming, target_naming};
use crate::drafter::Drafter;
use crate::plan::{RunnerRows, scratch_needs};
use crate::target::Target;
use crate::weights::{DrafterWeights, TargetWeights, Uploader};
use crate::workspace::{Widths, Workspace};
use crate::{CheckpointSource, DrafterConfig, LoadProgress, MemoryPlan, ModelConfig, ModelError};

impl<B: Backend> Runner<B> {
    /// Loads target and drafter and allocates everything.
    pub fn load(
        backend: B,
        target: &CheckpointSource,
        drafter: Option<&CheckpointSource>,
        config: RunnerConfig,
        progress: &LoadProgress,
    ) -> Result<Self, ModelError> {
        config.assert_valid();
        let target_config = ModelConfig::read(target)?;
        let drafter_config = drafter
            .map(|source| DrafterConfig::read(source, &target_config))
            .transpose()?;
        let mut target_file = Checkpoint::open(target, target_naming, false, progress)?;
        let mut drafter_file = drafter
            .map(|source| Checkpoint::open(source, drafter_naming, false, progress))
            .transpose()?;
        let up = Uploader {
            backend: &backend,
            dtype: Some(config.weight_dtype),
        };
        let target_weights = TargetWeights::load(&up, &target_config, &mut target_file)?;
        target_file.finish()?;
        let mut drafter_weights = None;
        if let (Some(sizes), Some(mut file)) = (&drafter_config, drafter_file.take()) {
            drafter_weights = Some(DrafterWeights::load(&up, sizes, &mut file)?);
            file.finish()?;
        }
        let plan = MemoryPlan::of(&backend, &target_config, drafter_config.as_ref(), &config);
        backend.reserve(&scratch_needs(
            &target_config,
            drafter_config.as_ref(),
            &config,
        ))?;
        let target = Target {
            taps: drafter_config
                .as_ref()
                .map_or(Vec::new(), |sizes| sizes.taps.clone()),
            config: target_config,
            weights: target_weights,
        };
        let drafter = drafter_config.zip(drafter_weights);
        Self::allocate(backend, target, drafter, config, plan)
    }

    fn allocate(
        backend: B,
        target: Target<B>,
        drafter: Option<(DrafterConfig, DrafterWeights<B>)>,
        config: RunnerConfig,
        plan: MemoryPlan,
    ) -> Result<Self, ModelError> {
        let sizes = &target.config;
        let drafter_sizes = drafter.as_ref().map(|(sizes, _)| sizes);
        let rows = RunnerRows::of(drafter_sizes, &config);
        let widths = Widths::of(sizes, drafter_sizes);
        let slots = Slots::new(
            &backend,
            config.sequences_max,
            config.pages_per_sequence(),
            sizes.vocab_size,
            config.vocab_used.min(sizes.vocab_size),
        )?;
        let pool = |heads: usize, head_dim: usize| {
            KvLayer::new(&backend, config.kv_dtype, config.kv_pages, heads, head_dim)
        };
        let caches = (0..sizes.attention_layers())
            .map(|_| pool(sizes.kv_heads, sizes.head_dim))
            .collect::<Result<_, _>>()?;
        let states = (0..sizes.gdn_layers())
            .map(|_| GdnState::new(&backend, sizes.gdn, config.sequences_max))
            .collect::<Result<_, _>>()?;
        let journals = (0..sizes.gdn_layers())
            .map(|_| GdnJournal::new(&backend, sizes.gdn, rows.verify))
            .collect::<Result<_, _>>()?;
        let sequences = config.sequences_max;
        let selected = Selected {
            rows: ContextRows::new(&backend, rows.selected)?,
            x: backend.alloc(rows.selected * widths.hidden)?,
        };
        Ok(Runner {
            prefill_journal: GdnJournal::new(&backend, sizes.gdn, config.prefill_rows_max)?,
            workspace: Workspace::new(&backend, &widths, rows.workspace())?,
            prefill: Forward::new(&backend, config.prefill_rows_max, sequences)?,
            verify: Forward::new(&backend, rows.verify, sequences)?,
            first: Forward::new(&backend, sequences, sequences)?,
            drafts: Drafts::new(&backend, rows.blocks, sequences, config.topk)?,
            results: ResultBuffers::new(&backend, rows.verify.max(sequences), sequences)?,
            drafter: drafter
                .map(|(sizes, weights)| {
                    Drafter::new(&backend, sizes, weights, &config, rows.blocks)
                })
                .transpose()?,
            prefilled: vec![0; sequences],
            logprobs_top: vec![None; sequences],
            graphs: Vec::new(),
            simulation: None,
            selected,
            slots,
            caches,
            states,
            journals,
            target,
            config,
            plan,
            backend: Rc::new(backend),
        })
    }
}

impl<B: Backend> Forward<B> {
    fn new(backend: &B, rows: usize, sequences: usize) -> Result<Self, OpsError> {
        Ok(Forward {
            batch: Batch::new(backend, rows, sequences)?,
            held: HeldBatch::default(),
            tree: TreeTables::new(backend, rows)?,
            // A prefill lists all its rows, a step those that stay.
            context: ContextRows::new(backend, rows)?,
            walk: Walk::new(backend, sequences)?,
        })
    }
}

impl<B: Backend> Drafts<B> {
    fn new(backend: &B, rows: usize, sequences: usize, topk: usize) -> Result<Self, OpsError> {
        Ok(Drafts {
            batch: Batch::new(backend, rows, sequences)?,
            held: HeldBatch::default(),
            plan: DraftPlan::new(backend, sequences)?,
            held_block: Held::default(),
            held_chain: Held::default(),
            candidate_ids: backend.alloc(rows * topk)?,
            candidate_logprobs: backend.alloc(rows * topk)?,
        })
    }
}

impl<B: Backend> Drafter<B> {
    fn new(
        backend: &B,
        sizes: DrafterConfig,
        weights: DrafterWeights<B>,
        config: &RunnerConfig,
        block_rows: usize,
    ) -> Result<Self, OpsError> {
        let caches = sizes
            .layers
            .iter()
            .map(|_| {
                KvLayer::new(
                    backend,
                    config.kv_dtype,
                    config.kv_pages,
                    sizes.kv_heads,
                    sizes.head_dim,
                )
            })
            .collect::<Result<_, _>>()?;
        let width = block_rows * sizes.kv_heads * sizes.head_dim;
        Ok(Drafter {
            block_keys: backend.alloc(width)?,
            block_values: backend.alloc(width)?,
            caches,
            weights,
            config: sizes,
        })
    }
}
