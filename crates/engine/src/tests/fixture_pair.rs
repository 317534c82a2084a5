//! The engine over the random pair of the fixtures on the CPU: whatever the mode, the batch and
//! the schedule, the tokens and their log-probabilities are those of plain decoding alone.

use std::path::PathBuf;
use std::sync::LazyLock;

use model::{CheckpointSource, SamplingParams, TokenLogprob};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::harness::Harness;
use crate::{
    Algorithm, Budget, Device, Engine, EngineConfig, FinishReason, LoadFormat, LoadSpec, Phase,
    Request, RequestId, TokenUpdate,
};

/// The head has 97 rows; the last is the mask token.
const VOCAB: usize = 96;
/// Shorter than the model's, so that a request can run into it.
const CONTEXT: usize = 200;

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures")
        .join(name)
}

pub(super) fn spec() -> LoadSpec {
    LoadSpec {
        target: CheckpointSource::Folder(folder("qwen3_5")),
        drafter: Some(CheckpointSource::Folder(folder("dflash"))),
        format: LoadFormat::Safetensors,
        device: Device::Cpu,
        dtype: None,
        vocab_used: VOCAB,
        graphs: true,
    }
}

fn config(algorithm: Algorithm, budget: Budget) -> EngineConfig {
    EngineConfig {
        algorithm,
        chain_drafts: None,
        budget,
        topk_cap: None,
        running_max: 8,
        queue_max: 0,
        context_length: Some(CONTEXT),
        tokens_total: None,
        memory_fraction: 0.88,
        prefill_chunk: 64,
        draft_batch_max: 0,
        share_rows: true,
        skip_warmup: budget != Budget::Auto,
        prefix_cache: None,
        simulate: None,
    }
}

pub(super) fn plain() -> EngineConfig {
    config(Algorithm::None, Budget::Fixed(1))
}

pub(super) fn chain(drafts: usize) -> EngineConfig {
    EngineConfig {
        chain_drafts: Some(drafts),
        ..config(Algorithm::Dflash, Budget::Fixed(1))
    }
}

pub(super) fn tree(nodes: usize) -> EngineConfig {
    config(Algorithm::Ddtree, Budget::Fixed(nodes))
}

pub(super) fn auto() -> EngineConfig {
    config(Algorithm::Ddtree, Budget::Auto)
}

pub(super) fn start(spec: LoadSpec, config: EngineConfig) -> Harness {
    let harness = Harness::around(Engine::start(spec, config).expect("the options are valid"));
    harness.await_phase(Phase::Ready);
    harness
}

fn prompt(length: usize, seed: u64) -> Vec<u32> {
    let mut random = Pcg64::seed_from_u64(seed);
    (0..length)
        .map(|_| random.random_range(0..VOCAB as u32))
        .collect()
}

/// Greedy ones and seeded ones at temperature 0.8, short and long, some with every option.
pub(super) fn requests() -> Vec<Request> {
    let lengths = [1, 7, 63, 64, 65, 130, 180, 40, 20, 150];
    let asked = lengths.iter().enumerate().map(|(index, &length)| {
        let seed = index as u64;
        let sampled = SamplingParams {
            temperature: 0.8,
            seed: seed << 33 | 9,
            ..SamplingParams::default()
        };
        Request {
            priority: 0,
            prompt: prompt(length, seed),
            sampling: match index % 2 {
                0 => SamplingParams::default(),
                _ => sampled,
            },
            max_tokens: 14 + index,
            min_tokens: 0,
            stop_ids: Vec::new(),
            logprobs: Some(2),
            prompt_logprobs: None,
            trace: false,
            speculative: true,
            shape: None,
            cache_salt: None,
            turn_end: None,
            constraint: None,
        }
    });
    let mut asked: Vec<Request> = asked.collect();
    asked[3].sampling = SamplingParams {
        top_p: 0.9,
        top_k: 40,
        min_p: 0.01,
        repetition_penalty: 1.2,
        presence_penalty: 0.3,
        frequency_penalty: 0.2,
        logit_bias: vec![(3, 2.0), (9, f32::NEG_INFINITY)],
        choice: 2,
        ..asked[3].sampling.clone()
    };
    asked[5].stop_ids = (0..VOCAB as u32).step_by(4).collect();
    asked[5].min_tokens = 6;
    // Ends with the context, after 20 tokens.
    asked[6].max_tokens = usize::MAX;
    asked[7].logprobs = None;
    asked[8].prompt_logprobs = Some(3);
    asked[9].prompt_logprobs = Some(1);
    asked[9].max_tokens = 0;
    asked
}

/// All that a caller is told of a request, without times.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    pub(super) tokens: Vec<TokenUpdate>,
    prompt_logprobs: Vec<TokenLogprob>,
    pub(super) reason: FinishReason,
}

pub(super) fn answer(harness: &mut Harness, id: RequestId) -> Answer {
    let reason = harness.await_end(id).reason;
    let news = &harness.news[&id];
    Answer {
        tokens: news.tokens.clone(),
        prompt_logprobs: news.prompt_logprobs.clone(),
        reason,
    }
}

/// Plain decoding, one request after the other.
pub(super) static EXPECTED: LazyLock<Vec<Answer>> = LazyLock::new(|| alone(plain()));

/// One after the other, alone.
fn alone(config: EngineConfig) -> Vec<Answer> {
    let mut harness = start(spec(), config);
    let mut answers = Vec::new();
    for request in requests() {
        let id = harness.submit(request);
        answers.push(answer(&mut harness, id));
    }
    harness.drain();
    answers
}

/// All in random order at random times, among others that are ended early.
fn crowd(config: EngineConfig, seed: u64) -> Vec<Answer> {
    let mut random = Pcg64::seed_from_u64(seed);
    let mut harness = start(spec(), config);
    let mut asked: Vec<(usize, Request)> = requests().into_iter().enumerate().collect();
    asked.shuffle(&mut random);
    let mut ids = vec![None; asked.len()];
    let mut others = Vec::new();
    for (index, mut request) in asked {
        let mut other = request.clone();
        other.prompt = prompt(random.random_range(1..100), random.random());
        other.prompt_logprobs = None;
        other.max_tokens = random.random_range(1..50);
        others.push(harness.submit(other));
        request.speculative = random.random_bool(0.8);
        ids[index] = Some(harness.submit(request));
        for _ in 0..random.random_range(0..6) {
            harness.receive();
        }
        if random.random_bool(0.7) {
            let other = others.swap_remove(random.random_range(0..others.len()));
            match random.random_bool(0.5) {
                true => harness.handle().abort(other),
                false => harness.handle().finish(other, random.random_range(0..9)),
            }
        }
    }
    let ids = ids.into_iter().map(|id| id.expect("all were submitted"));
    let answers = ids.map(|id| answer(&mut harness, id)).collect();
    harness.drain();
    answers
}

pub(super) fn assert_expected(answers: &[Answer], what: &str) {
    for (index, (expected, answer)) in EXPECTED.iter().zip(answers).enumerate() {
        assert_eq!(expected, answer, "request {index}, {what}");
    }
}

#[test]
fn the_answers_are_those_that_were_asked_for() {
    let answers = &*EXPECTED;
    let length = |index: usize| answers[index].tokens.len();
    assert_eq!([0, 1, 4, 6, 8, 9].map(length), [14, 15, 18, 20, 22, 0]);
    let reasons: Vec<&FinishReason> = answers.iter().map(|answer| &answer.reason).collect();
    assert_eq!(reasons[5], &FinishReason::Stop);
    assert!(length(5) > 6, "stop ids are held off");
    let limits = reasons.iter().filter(|r| ***r == FinishReason::Length);
    assert_eq!(limits.count(), 9);
    let scored = [8, 9].map(|index| answers[index].prompt_logprobs.len());
    assert_eq!(scored, [19, 149]);
    assert!(
        answers[7]
            .tokens
            .iter()
            .all(|token| token.logprob.is_none())
    );
    let all = requests();
    let sampled = all.iter().filter(|r| r.sampling.temperature > 0.0).count();
    assert_eq!(sampled, 5, "half of the requests are drawn");
    for answer in &answers[..7] {
        for token in &answer.tokens {
            let logprob = token.logprob.as_ref().expect("was asked for");
            assert!(logprob.logprob <= 0.0 && logprob.top.len() == 2);
        }
    }
}

#[test]
fn every_mode_gives_the_answers_of_plain_decoding() {
    for mode in [
        chain(3),
        chain(7),
        tree(7),
        tree(15),
        tree(31),
        tree(63),
        auto(),
    ] {
        let what = format!("{mode:?}");
        assert_expected(&alone(mode), &what);
    }
}

#[test]
fn answers_do_not_depend_on_who_joins_and_leaves() {
    for (mode, seed) in [plain(), chain(7), tree(15), tree(63), auto()]
        .into_iter()
        .zip(0..)
    {
        let what = format!("{mode:?}");
        assert_expected(&crowd(mode, seed), &what);
    }
}

#[test]
fn answers_do_not_depend_on_slots_and_pages() {
    let tight = EngineConfig {
        running_max: 3,
        // The longest request needs all of it.
        tokens_total: Some(256),
        ..tree(15)
    };
    assert_expected(&crowd(tight, 10), "four pages");
}

#[test]
fn answers_do_not_depend_on_chunks_and_candidates() {
    let changed = EngineConfig {
        prefill_chunk: 256,
        draft_batch_max: 2,
        topk_cap: Some(3),
        ..tree(31)
    };
    assert_expected(
        &crowd(changed, 11),
        "whole prompts, drafts in small batches",
    );
}

#[test]
fn drafts_of_the_random_pair_are_accepted_now_and_then() {
    // Without accepted nodes the tests above would only compare one-row walks.
    let mut harness = start(spec(), tree(63));
    for request in requests() {
        harness.submit(request);
    }
    harness.drain();
    let stats = harness.handle().stats();
    assert!(stats.accepted_tokens > 10, "{stats:?}");
    assert!(stats.accepted_per_position[1] > 0, "{stats:?}");
}

/// A checkpoint of the fixtures with a tensor of which every value is NaN.
fn broken(name: &str, tensor: &str) -> CheckpointSource {
    let read = |file: &str| std::fs::read(folder(name).join(file)).expect("fixtures are committed");
    let mut weights = read("model.safetensors");
    let (header, metadata) =
        safetensors::SafeTensors::read_metadata(&weights).expect("a safetensors file");
    let info = metadata.info(tensor).expect("the tensor exists");
    assert_eq!(info.dtype, safetensors::Dtype::BF16);
    let data = 8 + header;
    let (from, to) = info.data_offsets;
    for value in weights[data + from..data + to].chunks_exact_mut(2) {
        value.copy_from_slice(&0x7fc0u16.to_le_bytes());
    }
    let config: &[u8] = read("config.json").leak();
    let weights: &[u8] = weights.leak();
    CheckpointSource::Memory {
        name: "broken",
        files: Vec::leak(vec![
            ("config.json", config),
            ("model.safetensors", weights),
        ]),
    }
}

#[test]
fn weights_that_are_not_finite_stop_the_start() {
    for mode in [plain(), auto()] {
        let spec = LoadSpec {
            target: broken("qwen3_5", "model.norm.weight"),
            ..spec()
        };
        let config = EngineConfig {
            skip_warmup: false,
            ..mode
        };
        let mut harness = Harness::around(Engine::start(spec, config).expect("valid options"));
        assert!(!harness.receive(), "the channel closes without a message");
        let status = harness.handle().status();
        let error = status.error.expect("a failed engine says why");
        assert_eq!(status.phase, Phase::Failed);
        assert!(
            error.contains("logit") && error.contains("finite"),
            "{error}"
        );
    }
}

#[test]
fn logits_that_are_not_finite_end_their_request_and_no_other() {
    let spec = LoadSpec {
        target: broken("qwen3_5", "lm_head.weight"),
        ..spec()
    };
    let mut harness = start(spec, tree(15));
    for request in requests().into_iter().take(3) {
        let id = harness.submit(request);
        let finish = harness.await_end(id);
        let FinishReason::Error(text) = &finish.reason else {
            panic!("{:?}", finish.reason)
        };
        assert!(text.contains("finite"), "{text}");
        assert_eq!(finish.completion_tokens, 0);
        assert_eq!(harness.handle().status().phase, Phase::Ready);
    }
    harness.drain();
}

#[test]
fn a_broken_drafter_costs_speed_but_no_token() {
    let spec = LoadSpec {
        drafter: Some(broken("dflash", "norm.weight")),
        ..spec()
    };
    let mut harness = start(spec, tree(31));
    let ids: Vec<RequestId> = requests()
        .into_iter()
        .map(|request| harness.submit(request))
        .collect();
    let answers: Vec<Answer> = ids.iter().map(|&id| answer(&mut harness, id)).collect();
    assert_expected(&answers, "a drafter of NaN");
    harness.drain();
}
