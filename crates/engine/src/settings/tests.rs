use std::path::PathBuf;

use model::{CheckpointSource, Dtype};

use super::*;
use crate::{Device, LoadFormat, PrefixCacheConfig};

fn fixture(name: &str) -> CheckpointSource {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    CheckpointSource::Folder(root.join(name))
}

/// The pair of the fixtures: context 512, vocabulary 97, blocks of 8.
fn spec() -> LoadSpec {
    LoadSpec {
        target: fixture("qwen3_5"),
        drafter: Some(fixture("dflash")),
        format: LoadFormat::Safetensors,
        device: Device::Cpu,
        dtype: None,
        vocab_used: 90,
        graphs: true,
    }
}

pub(super) fn config() -> EngineConfig {
    EngineConfig {
        algorithm: Algorithm::Ddtree,
        chain_drafts: None,
        budget: Budget::Auto,
        topk_cap: None,
        running_max: 4,
        queue_max: 7,
        context_length: None,
        tokens_total: None,
        memory_fraction: 0.88,
        prefill_chunk: 256,
        draft_batch_max: 3,
        share_rows: true,
        skip_warmup: false,
        prefix_cache: None,
        simulate: None,
    }
}

pub(super) fn configurations() -> (ModelConfig, DrafterConfig) {
    let target = ModelConfig::read(&fixture("qwen3_5")).expect("the fixture is valid");
    let drafter = DrafterConfig::read(&fixture("dflash"), &target).expect("the fixture is valid");
    (target, drafter)
}

fn resolve_with(
    change_target: impl FnOnce(&mut ModelConfig),
    spec: &LoadSpec,
    config: &EngineConfig,
) -> Result<(Settings, ModelInfo), EngineError> {
    let mut target = ModelConfig::read(&spec.target).expect("the fixture is valid");
    let drafter = spec
        .drafter
        .as_ref()
        .map(|source| DrafterConfig::read(source, &target).expect("the fixture is valid"));
    change_target(&mut target);
    resolve(
        spec,
        config,
        &target,
        drafter.as_ref(),
        &ops::Cpu::default(),
    )
}

pub(super) fn ok(config: &EngineConfig) -> (Settings, ModelInfo) {
    resolve_with(|_| {}, &spec(), config).expect("the options are valid")
}

#[test]
fn defaults_come_from_the_model() {
    let (settings, info) = ok(&config());
    let pages_total = 4 * 512 / 64;
    assert_eq!(
        settings.runner,
        RunnerConfig {
            sequences_max: 4,
            context_max: 512,
            kv_pages: pages_total,
            prefill_rows_max: 256,
            tree_rows_max: 64,
            step_rows_max: 256,
            topk: 15,
            weight_dtype: Dtype::F32,
            kv_dtype: Dtype::F32,
            vocab_used: 90,
            graphs: true,
            snapshots: 0,
            host_snapshots: 0,
        }
    );
    assert_eq!((settings.queue_max, settings.draft_batch_max), (7, 3));
    assert_eq!((info.context_length, info.tokens_total), (512, 2048));
    assert_eq!((info.vocab_rows, info.vocab_used), (97, 90));
    assert_eq!((&*info.model_type, &*info.device), ("qwen3_5_text", "cpu"));
    assert_eq!(info.architectures, ["Qwen3_5ForCausalLM"]);
    assert_eq!((info.plan.kv_pages, info.plan.slots), (pages_total, 4));
    assert!(info.plan.total_bytes() > 0);
}

#[test]
fn algorithms_choose_shapes_and_candidates() {
    let fixed = |shape| (Drafting::Fixed(shape), vec![Shape::Plain, shape]);
    let auto: Vec<Shape> = CANDIDATES
        .into_iter()
        .filter(|shape| *shape != Shape::Chain(15))
        .collect();
    let (chain, tree) = (Algorithm::Dflash, Algorithm::Ddtree);
    let cases = [
        (
            Algorithm::None,
            Budget::Auto,
            (Drafting::Off, vec![Shape::Plain]),
            1,
        ),
        (chain, Budget::Auto, fixed(Shape::Chain(7)), 1),
        (tree, Budget::Fixed(1), fixed(Shape::Tree(1)), 8),
        (tree, Budget::Fixed(31), fixed(Shape::Tree(31)), 8),
        (tree, Budget::Fixed(32), fixed(Shape::Tree(32)), 15),
        (tree, Budget::Fixed(63), fixed(Shape::Tree(63)), 15),
        (tree, Budget::Auto, (Drafting::Auto, auto), 15),
    ];
    for (algorithm, budget, (drafting, shapes), topk) in cases {
        let config = EngineConfig {
            algorithm,
            budget,
            ..config()
        };
        let (settings, info) = ok(&config);
        assert_eq!((settings.drafting, settings.shapes), (drafting, shapes));
        let rows = match drafting {
            Drafting::Off => 1,
            Drafting::Fixed(shape) => shape.rows(),
            Drafting::Auto => 64,
        };
        assert_eq!((info.tree_rows_max, info.topk), (rows, topk));
        // What a sequence may get of the others' rows; the rows of a step are the same.
        let shared = match drafting {
            Drafting::Off => 1,
            Drafting::Fixed(Shape::Chain(_)) => 8,
            _ => 64,
        };
        let limits = |config: &EngineConfig| {
            let runner = ok(config).0.runner;
            (runner.tree_rows_max, runner.step_rows_max)
        };
        assert_eq!(limits(&config), (shared, 4 * rows));
        let alone = EngineConfig {
            running_max: 1,
            ..config.clone()
        };
        assert_eq!(limits(&alone), (rows, rows), "nobody to share with");
        let off = EngineConfig {
            share_rows: false,
            ..config.clone()
        };
        assert_eq!(limits(&off), (rows, 4 * rows));
        assert_eq!((info.algorithm, info.budget), (algorithm, budget));
        let capped = EngineConfig {
            topk_cap: Some(5),
            ..config
        };
        assert_eq!(ok(&capped).0.runner.topk, 5);
    }
}

#[test]
fn without_timings_auto_is_a_tree_of_15() {
    let (settings, info) = ok(&EngineConfig {
        skip_warmup: true,
        ..config()
    });
    assert_eq!(settings.drafting, Drafting::Fixed(Shape::Tree(15)));
    assert_eq!((info.budget, info.topk), (Budget::Fixed(15), 8));
}

#[test]
fn a_shorter_chain_bounds_what_auto_times() {
    let (settings, info) = ok(&EngineConfig {
        chain_drafts: Some(3),
        ..config()
    });
    let chains: Vec<Shape> = settings
        .shapes
        .into_iter()
        .filter(|shape| matches!(shape, Shape::Chain(_)))
        .collect();
    assert_eq!((chains, info.chain_drafts), (vec![Shape::Chain(3)], 3));
}

#[test]
fn without_drafts_no_drafter_is_needed() {
    let spec = LoadSpec {
        drafter: None,
        dtype: Some(Dtype::Bf16),
        ..spec()
    };
    let config = EngineConfig {
        algorithm: Algorithm::None,
        ..config()
    };
    let (settings, info) = resolve_with(|_| {}, &spec, &config).expect("a target is enough");
    assert_eq!(settings.runner.kv_dtype, Dtype::Bf16);
    assert_eq!(settings.runner.weight_dtype, Dtype::Bf16);
    assert_eq!(info.chain_drafts, 0);
}

#[test]
fn contexts_and_pools_bound_each_other() {
    // (model's context, sequences, context asked for, pool asked for) -> (context, pages)
    let cases = [
        ((512, 4, None, None), (512, 32)),
        ((512, 4, Some(100), None), (100, 8)),
        ((512, 4, Some(4096), None), (512, 32)),
        ((512, 4, None, Some(640)), (512, 10)),
        ((512, 4, None, Some(300)), (256, 4)),
        ((512, 4, None, Some(1 << 40)), (512, 32)),
        ((512, 4, None, Some(64)), (64, 1)),
        ((512, 4, Some(2), None), (2, 4)),
        ((262_144, 4, None, None), (65_536, 1024)),
        ((262_144, 4, Some(100_000), None), (100_000, 1563)),
        ((262_144, 4, Some(8192), None), (8192, 512)),
        ((262_144, 64, Some(8192), None), (8192, 1024)),
        ((262_144, 64, Some(8192), Some(500_000)), (8192, 7812)),
    ];
    for ((model, running_max, context_length, tokens_total), expected) in cases {
        let config = EngineConfig {
            running_max,
            context_length,
            tokens_total,
            ..config()
        };
        let (settings, info) = resolve_with(|target| target.context_max = model, &spec(), &config)
            .expect("the options are valid");
        let runner = &settings.runner;
        assert_eq!(
            (runner.context_max, runner.kv_pages),
            expected,
            "{config:?}"
        );
        assert_eq!(info.tokens_total, expected.1 * 64);
        assert!(runner.context_max <= info.tokens_total, "one sequence fits");
    }
}

#[test]
fn every_bad_option_is_named_with_what_is_allowed() {
    type Change = fn(&mut LoadSpec, &mut EngineConfig);
    let cases: [(Change, &[&str]); 16] = [
        (|_, c| c.running_max = 0, &["0 running", "1 to 512"]),
        (|_, c| c.running_max = 513, &["513 running", "1 to 512"]),
        (|_, c| c.prefill_chunk = 0, &["0 tokens", "64, 128"]),
        (|_, c| c.prefill_chunk = 32, &["32 tokens", "64, 128"]),
        (|_, c| c.prefill_chunk = 192, &["192 tokens", "64, 128"]),
        (|_, c| c.prefill_chunk = 4096, &["4096 tokens", "2048"]),
        (|_, c| c.topk_cap = Some(0), &["cap of 0", "1 to 15"]),
        (|_, c| c.topk_cap = Some(16), &["cap of 16", "1 to 15"]),
        (
            |_, c| c.budget = Budget::Fixed(0),
            &["budget of 0", "1 to 63"],
        ),
        (
            |_, c| c.budget = Budget::Fixed(64),
            &["budget of 64", "1 to 63"],
        ),
        (|s, _| s.drafter = None, &["needs a drafter", "NONE"]),
        (|_, c| c.chain_drafts = Some(0), &["chain of 0", "1 to 7"]),
        (
            |_, c| c.chain_drafts = Some(8),
            &["chain of 8", "block of 8", "1 to 7"],
        ),
        (
            |_, c| c.context_length = Some(1),
            &["context of 1", "output token"],
        ),
        (
            |_, c| c.context_length = Some(0),
            &["context of 0", "output token"],
        ),
        (
            |_, c| c.tokens_total = Some(63),
            &["63 tokens", "page of 64"],
        ),
    ];
    for (change, words) in cases {
        let (mut spec, mut config) = (spec(), config());
        change(&mut spec, &mut config);
        let error = resolve_with(|_| {}, &spec, &config).expect_err("the option is bad");
        assert!(matches!(error, EngineError::Config(_)));
        let text = error.to_string();
        for word in words {
            assert!(text.contains(word), "\"{text}\" lacks \"{word}\"");
        }
    }
}

#[test]
fn a_tokenizer_larger_than_the_head_is_a_fault_of_the_files() {
    for tokens in [0, 98] {
        let mut spec = spec();
        spec.vocab_used = tokens;
        let error = resolve_with(|_| {}, &spec, &config()).expect_err("it does not fit");
        assert!(matches!(error, EngineError::Model(_)));
        let text = error.to_string();
        let parts = [format!("it has {tokens} tokens"), "97 rows".to_owned()];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn fewer_tokens_than_candidates_are_all_of_them() {
    let mut spec = spec();
    spec.vocab_used = 5;
    let (settings, _) = resolve_with(|_| {}, &spec, &config()).expect("it fits");
    assert_eq!(settings.runner.topk, 5);
}

#[test]
fn a_prefix_cache_has_places_that_the_plan_counts() {
    let with = |cache| EngineConfig {
        prefix_cache: Some(cache),
        ..config()
    };
    let default = PrefixCacheConfig::default();
    let (settings, info) = ok(&with(default));
    let cache = settings.prefix_cache.expect("it is on");
    assert_eq!((cache.interval, cache.decoded), (4096, false));
    let places = |settings: &Settings| (settings.runner.snapshots, settings.runner.host_snapshots);
    assert_eq!(places(&settings), (16, 0));
    let (off, without) = ok(&config());
    assert_eq!((off.prefix_cache, places(&off)), (None, (0, 0)));
    assert!(info.plan.total_bytes() > without.plan.total_bytes());
    let chosen = PrefixCacheConfig {
        interval: 64,
        snapshots: Some(3),
        host_snapshots: 5,
        decoded: true,
    };
    let (settings, _) = ok(&with(chosen));
    assert_eq!(places(&settings), (3, 5));
    let cache = settings.prefix_cache.expect("it is on");
    assert_eq!((cache.interval, cache.decoded), (64, true));
    let none = PrefixCacheConfig {
        snapshots: Some(0),
        ..chosen
    };
    assert_eq!(ok(&with(none)).0, off);
    for interval in [0, 63, 100] {
        let wrong = PrefixCacheConfig {
            interval,
            ..default
        };
        let error = resolve_with(|_| {}, &spec(), &with(wrong)).expect_err("no whole pages");
        assert!(error.to_string().contains("multiple of 64"), "{error}");
    }
}
