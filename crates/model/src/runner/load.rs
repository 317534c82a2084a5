//! Loads the weights and allocates everything a runner will ever use.

use std::rc::Rc;

use ops::{
    Backend, Batch, ContextRows, DraftPlan, Dtype, GdnJournal, GdnState, KvLayer, OpsError, Slots,
    TreeTables, Walk,
};

use super::constraint::Masks;
use super::decoded::RowScan;
use super::results::ResultBuffers;
use super::staging::{HeldBatch, HeldPlan};
use super::{
    Drafts, Forward, Graphs, Progress, Runner, RunnerConfig, Selected, Snapshots, Verified,
};
use crate::check::{check_drafter, check_target};
use crate::checkpoint::{Checkpoint, drafter_naming, target_naming};
use crate::drafter::Drafter;
use crate::loader::{Loader, Origin};
use crate::plan::{RunnerRows, scratch_needs};
use crate::target::Target;
use crate::weights::{DrafterWeights, TargetWeights};
use crate::workspace::{Widths, Workspace};
use crate::{
    CheckpointSource, DrafterConfig, LoadFormat, LoadProgress, MemoryPlan, ModelConfig, ModelError,
};

/// What a runner is made of.
#[derive(Clone, Debug)]
pub struct ModelSources {
    /// The target.
    pub target: CheckpointSource,
    /// The drafter.
    pub drafter: Option<CheckpointSource>,
    /// Where their weights come from.
    pub format: LoadFormat,
}

impl<B: Backend> Runner<B> {
    /// Loads target and drafter and allocates everything. What is wrong with a checkpoint is found
    /// before the first tensor is loaded.
    pub fn load(
        backend: B,
        sources: &ModelSources,
        config: RunnerConfig,
        progress: &LoadProgress,
    ) -> Result<Self, ModelError> {
        config.assert_valid();
        let target = ModelConfig::read(&sources.target)?;
        let drafter = match &sources.drafter {
            Some(source) => Some(DrafterConfig::read(source, &target)?),
            None => None,
        };
        let plan = MemoryPlan::of(&backend, &target, drafter.as_ref(), &config);
        let dtype = config.weight_dtype;
        let (target_weights, drafter_weights) = match sources.format {
            LoadFormat::Safetensors => {
                let files = Files::open(sources, &target, drafter.as_ref())?;
                progress.expect(files.bytes());
                files.load(&backend, &target, drafter.as_ref(), dtype, progress)?
            }
            LoadFormat::Dummy { seed } => {
                progress.expect(plan.weight_bytes());
                dummies(&backend, &target, drafter.as_ref(), dtype, seed, progress)?
            }
        };
        backend.reserve(&scratch_needs(&target, drafter.as_ref(), &config))?;
        let target = Target {
            taps: drafter
                .as_ref()
                .map_or(Vec::new(), |sizes| sizes.taps.clone()),
            config: target,
            weights: target_weights,
        };
        let drafter = drafter.zip(drafter_weights);
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
        let sampled = rows.verify.max(sequences);
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
            results: ResultBuffers::new(&backend, sampled, sequences)?,
            masks: Masks::new(&backend, sampled, config.tree_rows_max, sizes.vocab_size)?,
            drafter: drafter
                .map(|(sizes, weights)| {
                    Drafter::new(&backend, sizes, weights, &config, rows.blocks)
                })
                .transpose()?,
            snapshots: Snapshots::new(&backend, sizes, &config)?,
            row_scan: RowScan::of(&backend, sizes, &config)?,
            verified: Verified::default(),
            progress: vec![Progress::default(); sequences],
            logprobs_top: vec![None; sequences],
            graphs: Graphs::default(),
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

/// The opened checkpoints of a pair.
struct Files {
    target: Checkpoint,
    drafter: Option<Checkpoint>,
}

impl Files {
    /// Reads all headers and checks them.
    fn open(
        sources: &ModelSources,
        target: &ModelConfig,
        drafter: Option<&DrafterConfig>,
    ) -> Result<Self, ModelError> {
        let target_file = Checkpoint::open(&sources.target, target_naming, false)?;
        check_target(target_file.clone(), target)?;
        let mut drafter_file = None;
        if let (Some(source), Some(sizes)) = (&sources.drafter, drafter) {
            let file = Checkpoint::open(source, drafter_naming, false)?;
            check_drafter(file.clone(), sizes)?;
            drafter_file = Some(file);
        }
        Ok(Files {
            target: target_file,
            drafter: drafter_file,
        })
    }

    fn bytes(&self) -> u64 {
        self.target.bytes() + self.drafter.as_ref().map_or(0, Checkpoint::bytes)
    }

    fn load<B: Backend>(
        self,
        backend: &B,
        target: &ModelConfig,
        drafter: Option<&DrafterConfig>,
        dtype: Dtype,
        progress: &LoadProgress,
    ) -> Result<Weights<B>, ModelError> {
        let mut stages = backend.stages()?;
        let mut from = Loader {
            backend,
            origin: Origin::File {
                checkpoint: self.target,
                stages: &mut stages,
            },
            dtype,
            progress,
        };
        let target = TargetWeights::load(&mut from, target)?;
        from.finish()?;
        let (Some(checkpoint), Some(sizes)) = (self.drafter, drafter) else {
            return Ok((target, None));
        };
        let mut from = Loader {
            backend,
            origin: Origin::File {
                checkpoint,
                stages: &mut stages,
            },
            dtype,
            progress,
        };
        let drafter = DrafterWeights::load(&mut from, sizes)?;
        from.finish()?;
        Ok((target, Some(drafter)))
    }
}

type Weights<B> = (TargetWeights<B>, Option<DrafterWeights<B>>);

/// Random weights of a pair's sizes.
fn dummies<B: Backend>(
    backend: &B,
    target: &ModelConfig,
    drafter: Option<&DrafterConfig>,
    dtype: Dtype,
    seed: u64,
    progress: &LoadProgress,
) -> Result<Weights<B>, ModelError> {
    let mut from = Loader {
        backend,
        origin: Origin::Dummy { seed },
        dtype,
        progress,
    };
    let target = TargetWeights::load(&mut from, target)?;
    let drafter = drafter
        .map(|sizes| DrafterWeights::load(&mut from, sizes))
        .transpose()?;
    Ok((target, drafter))
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
            held_plan: HeldPlan::default(),
            candidate_ids: backend.alloc(rows * topk)?,
            candidate_logprobs: backend.alloc(rows * topk)?,
            law_logprobs: backend.alloc(rows * topk)?,
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
