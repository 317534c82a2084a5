//! Turns options and configurations into the sizes of a runner and facts for people.

mod prefix_cache;

use model::{DrafterConfig, MemoryPlan, ModelConfig, ModelError, RunnerConfig, Shape};
use ops::{Backend, DEPTH_MAX, DeviceMemory, PAGE_TOKENS, TOPK_MAX, TREE_ROWS_MAX};

use crate::auto::CANDIDATES;
use crate::shape::{Drafting, STEP_ROWS_MAX};
use crate::{Algorithm, Budget, EngineConfig, EngineError, LoadSpec, ModelInfo};

pub(crate) use prefix_cache::PrefixCacheSettings;

/// Tokens of the default pool on the CPU at most, unless a longer context is asked for: what a
/// host spends on a cache without being told to has to stay small.
const POOL_TOKENS_DEFAULT: usize = 65_536;
/// Largest prefill chunk, and the distance of the positions at which all chunk sizes meet.
const CHUNK_MAX: usize = 2048;
/// Budget of a tree where nothing was measured.
const BUDGET_DEFAULT: usize = 15;

/// What the engine thread works with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// Sizes of the runner.
    pub(crate) runner: RunnerConfig,
    /// How requests draft.
    pub(crate) drafting: Drafting,
    /// Shapes to time at start, plain first.
    pub(crate) shapes: Vec<Shape>,
    /// Requests waiting at most; 0 = no limit.
    pub(crate) queue_max: usize,
    /// Draft no more when more than this many run; 0 = always draft.
    pub(crate) draft_batch_max: usize,
    /// Whether sequences share rows where several draft.
    pub(crate) share_rows: bool,
    /// No warm-up.
    pub(crate) skip_warmup: bool,
    /// `None` = nothing is kept.
    pub(crate) prefix_cache: Option<PrefixCacheSettings>,
}

/// What the drafting options come to.
#[derive(Debug)]
struct Speculation {
    drafting: Drafting,
    budget: Budget,
    topk: usize,
    chain_drafts: usize,
    /// Drafts of the drafter's block.
    depths: usize,
}

impl Speculation {
    /// Rows of a sequence that has a step for itself.
    fn rows(&self) -> usize {
        match self.drafting {
            Drafting::Off => 1,
            Drafting::Fixed(shape) => shape.rows(),
            Drafting::Auto => TREE_ROWS_MAX,
        }
    }

    /// Rows that a sequence can get where others leave it theirs.
    fn shared_rows(&self) -> usize {
        match self.drafting {
            Drafting::Off => 1,
            Drafting::Fixed(Shape::Chain(_)) => 1 + self.depths,
            Drafting::Fixed(_) | Drafting::Auto => TREE_ROWS_MAX,
        }
    }
}

/// Checks the options against each other and against the model.
pub(crate) fn resolve<B: Backend>(
    spec: &LoadSpec,
    config: &EngineConfig,
    target: &ModelConfig,
    drafter: Option<&DrafterConfig>,
    backend: &B,
) -> Result<(Settings, ModelInfo), EngineError> {
    check_limits(spec, config, target)?;
    let mut speculation = speculation(config, drafter)?;
    // A tiny vocabulary has fewer candidates.
    speculation.topk = speculation.topk.min(spec.vocab_used);
    let mut settings = settings::<B>(spec, config, target, &speculation)?;
    let memory = backend.memory().map_err(ModelError::Ops)?;
    let room = memory.map(|memory| match B::OWN_MEMORY {
        true => share(memory, config.memory_fraction),
        false => memory.free,
    });
    let per_page = |runner: &RunnerConfig| page_bytes(backend, target, drafter, runner);
    settings.size_prefix_cache(config, B::OWN_MEMORY, room, |runner| {
        MemoryPlan::of(backend, target, drafter, runner).total_bytes()
    });
    let context_max = target.context_max.min(B::CONTEXT_MAX);
    settings.size_pool(config, context_max, |runner| {
        Some(pages_in(room.filter(|_| B::OWN_MEMORY)?, per_page(runner)))
    })?;
    let runner = &settings.runner;
    let info = ModelInfo {
        model_type: target.model_type.clone(),
        architectures: target.architectures.clone(),
        vocab_rows: target.vocab_size,
        vocab_used: spec.vocab_used,
        context_length: runner.context_max,
        tokens_total: runner.kv_pages * PAGE_TOKENS,
        device: backend.name(),
        plan: MemoryPlan::of(backend, target, drafter, runner),
        memory,
        room,
        algorithm: config.algorithm,
        budget: speculation.budget,
        topk: speculation.topk,
        chain_drafts: speculation.chain_drafts,
        tree_rows_max: speculation.rows(),
    };
    Ok((settings, info))
}

/// Settings whose pool has no size yet.
fn settings<B: Backend>(
    spec: &LoadSpec,
    config: &EngineConfig,
    target: &ModelConfig,
    speculation: &Speculation,
) -> Result<Settings, EngineError> {
    let dtype = spec.dtype.unwrap_or(B::DTYPE);
    let shapes = match speculation.drafting {
        Drafting::Off => vec![Shape::Plain],
        Drafting::Fixed(shape) => vec![Shape::Plain, shape],
        Drafting::Auto => {
            let fits = |shape: &Shape| match *shape {
                Shape::Chain(drafts) => drafts <= speculation.chain_drafts,
                Shape::Plain | Shape::Tree(_) => true,
            };
            CANDIDATES.into_iter().filter(fits).collect()
        }
    };
    let share_rows = config.share_rows && config.running_max > 1;
    Ok(Settings {
        runner: RunnerConfig {
            sequences_max: config.running_max,
            context_max: target.context_max,
            kv_pages: 1,
            prefill_rows_max: config.prefill_chunk,
            tree_rows_max: match share_rows {
                true => speculation.shared_rows(),
                false => speculation.rows(),
            },
            step_rows_max: (config.running_max * speculation.rows()).min(STEP_ROWS_MAX),
            topk: speculation.topk,
            weight_dtype: dtype,
            kv_dtype: dtype,
            vocab_used: spec.vocab_used,
            graphs: spec.graphs,
            snapshots: 0,
            host_snapshots: 0,
        },
        drafting: speculation.drafting,
        shapes,
        queue_max: config.queue_max,
        draft_batch_max: config.draft_batch_max,
        share_rows,
        skip_warmup: config.skip_warmup,
        prefix_cache: None,
    })
}

fn error<T>(text: String) -> Result<T, EngineError> {
    Err(EngineError::Config(text))
}

fn check_limits(
    spec: &LoadSpec,
    config: &EngineConfig,
    target: &ModelConfig,
) -> Result<(), EngineError> {
    let (running, chunk) = (config.running_max, config.prefill_chunk);
    if !(1..=STEP_ROWS_MAX).contains(&running) {
        return error(format!(
            "{running} running requests at once; a step holds 1 to {STEP_ROWS_MAX}"
        ));
    }
    if chunk < PAGE_TOKENS || !CHUNK_MAX.is_multiple_of(chunk) {
        return error(format!(
            "a prefill chunk of {chunk} tokens; it must be 64, 128, 256, 512, 1024 or {CHUNK_MAX}"
        ));
    }
    if let Some(topk) = config
        .topk_cap
        .filter(|topk| !(1..=TOPK_MAX).contains(topk))
    {
        return error(format!("a top-k cap of {topk}; it must be 1 to {TOPK_MAX}"));
    }
    if !(config.memory_fraction > 0.0 && config.memory_fraction <= 1.0) {
        return error(format!(
            "{} of the memory; it must be above 0 and at most 1",
            config.memory_fraction
        ));
    }
    if let Some(cache) = &config.prefix_cache {
        prefix_cache::check(cache)?;
    }
    let budgets = 1..TREE_ROWS_MAX;
    if let Budget::Fixed(budget) = config.budget
        && !budgets.contains(&budget)
    {
        return error(format!(
            "a tree budget of {budget}; it must be 1 to {} or auto",
            TREE_ROWS_MAX - 1
        ));
    }
    if !(1..=target.vocab_size).contains(&spec.vocab_used) {
        // A fault of the files, not of an option.
        return Err(EngineError::Model(ModelError::File {
            file: spec.target.display("tokenizer.json"),
            reason: format!(
                "it has {} tokens, the model's head {} rows; give the tokenizer that belongs to \
                 the model",
                spec.vocab_used, target.vocab_size
            ),
        }));
    }
    Ok(())
}

fn speculation(
    config: &EngineConfig,
    drafter: Option<&DrafterConfig>,
) -> Result<Speculation, EngineError> {
    if config.algorithm == Algorithm::None {
        return Ok(Speculation {
            drafting: Drafting::Off,
            budget: config.budget,
            topk: config.topk_cap.unwrap_or(1),
            chain_drafts: 0,
            depths: 0,
        });
    }
    let Some(drafter) = drafter else {
        return error(format!(
            "algorithm {:?} needs a drafter; give one or choose NONE",
            config.algorithm
        ));
    };
    let depths = drafter.block_size.saturating_sub(1).min(DEPTH_MAX);
    let chain_drafts = config.chain_drafts.unwrap_or(depths);
    if !(1..=depths).contains(&chain_drafts) {
        return error(format!(
            "a chain of {chain_drafts} drafts; the drafter's block of {} allows 1 to {depths}",
            drafter.block_size
        ));
    }
    let (drafting, budget, topk) = match (config.algorithm, config.budget) {
        (Algorithm::Ddtree, Budget::Auto) if !config.skip_warmup => {
            (Drafting::Auto, Budget::Auto, TOPK_MAX)
        }
        (Algorithm::Ddtree, budget) => {
            let nodes = match budget {
                Budget::Fixed(nodes) => nodes,
                Budget::Auto => BUDGET_DEFAULT,
            };
            let topk = if nodes <= 31 { 8 } else { TOPK_MAX };
            (
                Drafting::Fixed(Shape::Tree(nodes)),
                Budget::Fixed(nodes),
                topk,
            )
        }
        // A chain takes the first candidate of every depth.
        _ => (
            Drafting::Fixed(Shape::Chain(chain_drafts)),
            config.budget,
            1,
        ),
    };
    Ok(Speculation {
        drafting,
        budget,
        topk: config.topk_cap.unwrap_or(topk),
        chain_drafts,
        depths,
    })
}

impl Settings {
    /// Places for snapshots. `plan`: bytes that a runner of these sizes takes.
    fn size_prefix_cache(
        &mut self,
        config: &EngineConfig,
        own_memory: bool,
        room: Option<u64>,
        plan: impl Fn(&RunnerConfig) -> u64,
    ) {
        let Some(cache) = &config.prefix_cache else {
            return;
        };
        let none = plan(&self.runner);
        self.runner.snapshots = 1;
        let bytes = plan(&self.runner) - none;
        let left = room.map(|room| room.saturating_sub(none));
        self.runner.snapshots = prefix_cache::snapshots(cache.snapshots, own_memory, left, bytes);
        if self.runner.snapshots == 0 {
            tracing::info!("no prefix cache: the device holds no snapshot");
            return;
        }
        self.runner.host_snapshots = cache.host_snapshots;
        self.prefix_cache = Some(PrefixCacheSettings {
            interval: cache.interval,
            decoded: cache.decoded,
        });
    }

    /// Context length and pages of the pool. `holds`: pages that a device's own memory has room
    /// for, beside everything else that a runner of these sizes needs.
    fn size_pool(
        &mut self,
        config: &EngineConfig,
        model_context: usize,
        holds: impl FnOnce(&RunnerConfig) -> Option<usize>,
    ) -> Result<(), EngineError> {
        let wanted = model_context.min(config.context_length.unwrap_or(usize::MAX));
        if wanted < 2 {
            return error(format!(
                "a context of {wanted} tokens; it must hold a prompt token and an output token"
            ));
        }
        self.runner.context_max = wanted;
        let one = wanted.div_ceil(PAGE_TOKENS);
        let all = one.saturating_mul(config.running_max);
        let pages = match config.tokens_total {
            Some(tokens) if tokens < PAGE_TOKENS => {
                return error(format!(
                    "a KV pool of {tokens} tokens; it must hold a page of {PAGE_TOKENS} at least"
                ));
            }
            Some(tokens) => tokens / PAGE_TOKENS,
            None => holds(&self.runner).unwrap_or_else(|| {
                let asked = config.context_length.map_or(0, |_| one);
                asked.max(POOL_TOKENS_DEFAULT / PAGE_TOKENS)
            }),
        };
        // A device that is too small is told about with the smallest plan there is.
        let pages = all.min(pages).max(1);
        let context = wanted.min(pages * PAGE_TOKENS);
        if context < config.context_length.unwrap_or(model_context) {
            tracing::info!(
                context,
                "context length lowered to what model and KV pool hold"
            );
        }
        self.runner.kv_pages = pages;
        self.runner.context_max = context;
        Ok(())
    }
}

/// What a plan takes: without the KV pool, and for each page of it.
#[derive(Clone, Copy, Debug)]
struct PlanBytes {
    fixed: u64,
    page: u64,
}

fn page_bytes<B: Backend>(
    backend: &B,
    target: &ModelConfig,
    drafter: Option<&DrafterConfig>,
    runner: &RunnerConfig,
) -> PlanBytes {
    let total = |kv_pages| {
        let runner = RunnerConfig {
            kv_pages,
            ..runner.clone()
        };
        MemoryPlan::of(backend, target, drafter, &runner).total_bytes()
    };
    let (one, two) = (total(1), total(2));
    PlanBytes {
        fixed: one - (two - one),
        page: two - one,
    }
}

/// Bytes that may be taken of a device's memory: this share, less what others have of it.
fn share(memory: DeviceMemory, fraction: f64) -> u64 {
    let kept = (memory.total as f64 * (1.0 - fraction)) as u64;
    memory.free.saturating_sub(kept)
}

/// Pages that fit into so many bytes.
fn pages_in(room: u64, bytes: PlanBytes) -> usize {
    let left = room.saturating_sub(bytes.fixed);
    usize::try_from(left / bytes.page.max(1)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod pool_tests;
#[cfg(test)]
mod tests;
