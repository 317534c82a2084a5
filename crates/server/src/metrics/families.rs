//! Names, help and buckets of everything on `/metrics`.

/// One number, written under each of its names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    /// `sglang:`, `vllm:` and our own names.
    pub(crate) names: &'static [&'static str],
    /// The text of `# HELP`.
    pub(crate) help: &'static str,
    /// What `# TYPE` says.
    pub(crate) kind: Kind,
}

/// Type of a family.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Never falls.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Observations at or below each of these ascending bounds.
    Histogram(&'static [f64]),
}

use Kind::{Counter, Gauge, Histogram};

const TTFT: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0,
    80.0, 160.0, 400.0,
];
const TOKEN_TIME: &[f64] = &[
    0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4,
    0.6, 0.8, 1.0, 2.0, 4.0, 8.0,
];
const REQUEST_TIME: &[f64] = &[
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0,
    1200.0, 2400.0,
];
const QUEUE_TIME: &[f64] = &[
    0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
];
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0,
    20_000.0, 50_000.0, 100_000.0, 200_000.0,
];
const STEP_TIME: &[f64] = &[
    0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0,
];
const MASK_TIME: &[f64] = &[
    0.000_01, 0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.1,
];
const ACCEPTED: &[f64] = &[
    1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0,
];

const NODES: &[f64] = &[0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0];

/// A constant per family, and all of them in `ALL`, so that none can be left out.
macro_rules! families {
    ($($id:ident: $kind:expr, [$($name:literal),+], $help:literal;)+) => {
        $(pub(crate) const $id: Family = Family {
            names: &[$($name),+],
            help: $help,
            kind: $kind,
        };)+

        /// Every family.
        pub(crate) const ALL: &[Family] = &[$($id),+];
    };
}

families! {
    RUNNING: Gauge, ["sglang:num_running_reqs", "vllm:num_requests_running"],
        "Sequences in a slot.";
    WAITING: Gauge, ["sglang:num_queue_reqs", "vllm:num_requests_waiting"],
        "Sequences in the queue.";
    PAGE_USAGE: Gauge,
        ["sglang:token_usage", "sglang:full_token_usage", "vllm:kv_cache_usage_perc"],
        "Share of the KV pages in use, 0 to 1.";
    SLOT_USAGE: Gauge, ["sglang:mamba_usage"],
        "Share of the recurrent-state slots in use, 0 to 1.";
    TOKENS_USED: Gauge, ["sglang:num_used_tokens"], "Tokens that the KV pages in use hold.";
    TOKENS_TOTAL: Gauge, ["sglang:max_total_num_tokens"], "Tokens that the KV pool holds.";
    SGLANG_CACHE: Gauge, ["sglang:cache_config_info"], "Geometry of the KV pool as labels.";
    VLLM_CACHE: Gauge, ["vllm:cache_config_info"], "Geometry of the KV pool as labels.";
    THROUGHPUT: Gauge, ["sglang:gen_throughput"],
        "Output tokens per second over the last seconds.";
    CACHE_HIT_RATE: Gauge, ["sglang:cache_hit_rate"],
        "Share of the prompt tokens found in the prefix cache, since start.";
    RETRACTED: Gauge, ["sglang:num_retracted_reqs"],
        "Sequences that wait again, since others needed their memory.";
    CACHED_TOKENS: Counter, ["sglang:cached_tokens_total", "vllm:prompt_tokens_cached_total"],
        "Prompt tokens found in the prefix cache.";
    PREFIX_QUERIES: Counter, ["vllm:prefix_cache_queries_total"],
        "Prompt tokens looked for in the prefix cache.";
    PREFIX_HITS: Counter, ["vllm:prefix_cache_hits_total"],
        "Prompt tokens found in the prefix cache.";
    PREEMPTIONS: Counter, ["vllm:num_preemptions_total"],
        "Times that a sequence gave way to others and waited again.";

    PROMPT_TOKENS: Counter, ["sglang:prompt_tokens_total", "vllm:prompt_tokens_total"],
        "Tokens of the prompts taken in.";
    OUTPUT_TOKENS: Counter, ["sglang:generation_tokens_total", "vllm:generation_tokens_total"],
        "Output tokens that count.";
    SEQUENCES: Counter, ["sglang:num_requests_total"], "Sequences that ended in any way.";
    ABORTED: Counter, ["sglang:num_aborted_requests_total"],
        "Sequences ended by the client, a limit of time or the end of the server.";
    ENDED: Counter, ["vllm:request_success_total"], "Sequences by the way they ended.";
    REJECTIONS: Counter, ["vllm:admission_rejections_total"],
        "Refused generation requests by error code.";
    HTTP_REQUESTS: Counter, ["sglang:http_requests_total"], "HTTP requests that came in.";
    HTTP_RESPONSES: Counter, ["sglang:http_responses_total"], "HTTP responses that went out.";
    HTTP_ACTIVE: Gauge, ["sglang:http_requests_active"], "HTTP requests not answered in full.";

    FIRST_TOKEN: Histogram(TTFT),
        ["sglang:time_to_first_token_seconds", "vllm:time_to_first_token_seconds"],
        "Time from a request to its first token.";
    BETWEEN_TOKENS: Histogram(TOKEN_TIME),
        ["sglang:inter_token_latency_seconds", "vllm:inter_token_latency_seconds"],
        "Time between output tokens; those of one step share its time evenly.";
    PER_TOKEN: Histogram(TOKEN_TIME), [
            "sglang:request_time_per_output_token_seconds",
            "vllm:request_time_per_output_token_seconds"
        ],
        "Mean time per output token after the first, per sequence.";
    END_TO_END: Histogram(REQUEST_TIME),
        ["sglang:e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds"],
        "Time from a request to the end of a sequence.";
    QUEUE: Histogram(QUEUE_TIME),
        ["sglang:queue_time_seconds", "vllm:request_queue_time_seconds"],
        "Time of a sequence in the queue.";
    PREFILL: Histogram(REQUEST_TIME), ["vllm:request_prefill_time_seconds"],
        "Time from a slot to the first token.";
    DECODE: Histogram(REQUEST_TIME), ["vllm:request_decode_time_seconds"],
        "Time from the first token to the last.";
    STAGES: Histogram(REQUEST_TIME), ["sglang:per_stage_req_latency_seconds"],
        "Time of a sequence in each stage.";
    PROMPT_SIZE: Histogram(TOKENS), ["vllm:request_prompt_tokens"], "Tokens per prompt.";
    OUTPUT_SIZE: Histogram(TOKENS), ["vllm:request_generation_tokens"],
        "Output tokens per sequence.";

    DRAFTS: Counter, ["sglang:spec_verify_calls_total", "vllm:spec_decode_num_drafts_total"],
        "Verify steps, summed over the sequences in them.";
    DRAFT_TOKENS: Counter, ["vllm:spec_decode_num_draft_tokens_total"], "Verified draft tokens.";
    ACCEPTED_TOKENS: Counter, ["vllm:spec_decode_num_accepted_tokens_total"],
        "Accepted draft tokens.";
    ACCEPTED_AT: Counter, ["vllm:spec_decode_num_accepted_tokens_per_pos_total"],
        "Accepted draft tokens by position.";
    MEAN_LENGTH: Gauge, ["sglang:spec_accept_length"],
        "Mean tokens per verify step, the one after the accepted ones included.";
    ACCEPT_RATE: Gauge, ["sglang:spec_accept_rate"], "Accepted share of the draft tokens.";
    MEAN_DRAFTED: Gauge, ["sglang:spec_num_draft_tokens"], "Mean draft tokens per verify step.";

    STARTUP: Gauge, ["sglang:startup_time_seconds"], "Time of each phase of the start.";
    WEIGHT_LOAD: Gauge, ["sglang:weight_load_duration_seconds"], "Time of loading the weights.";
    WEIGHT_MEMORY: Gauge, ["sglang:weight_memory_usage_gb"],
        "Gigabytes of weights, the drafter's included.";
    KV_MEMORY: Gauge, ["sglang:kv_cache_memory_usage_gb"],
        "Gigabytes of KV pages, the drafter's included.";
    GRAPH_MEMORY: Gauge, ["sglang:graph_memory_usage_gb"],
        "Gigabytes planned for recorded steps: none, records are the driver's own.";

    STEP: Histogram(STEP_TIME), ["spinney_step_seconds"],
        "Time of a step, the host's part included.";
    STEP_PHASE: Histogram(STEP_TIME), ["spinney_step_phase_seconds"],
        "Time of a step in each of its phases, where they are run one by one.";
    MASKS: Histogram(MASK_TIME), ["spinney_grammar_mask_seconds"],
        "Time of a step in the constraints of its sequences, where it has any.";
    ACCEPT_LENGTH: Histogram(ACCEPTED), ["spinney_accept_length"],
        "Tokens per verify step, the one after the accepted ones included.";
    TREE_NODES: Histogram(NODES), ["spinney_tree_nodes"],
        "Draft nodes per verify step and sequence, of chains and trees; 0 = plain.";
    SPEC_DISABLED: Counter, ["spinney_spec_disabled_total"],
        "Sequences that were run without drafts, by reason.";
    SNAPSHOTS: Gauge, ["spinney_state_snapshots"],
        "Recurrent states that the prefix cache holds, by memory.";
    SHAPE_STEPS: Counter, ["spinney_shape_steps_total"],
        "Verify steps by draft shape, summed over the sequences in them.";
    SHAPE_ACCEPTED: Counter, ["spinney_shape_accepted_total"],
        "Accepted draft tokens by draft shape.";
    IGNORED_FIELDS: Counter, ["spinney_ignored_fields_total"],
        "Accepted request fields without effect.";
    LOG_LOST: Counter, ["spinney_log_lines_lost_total"],
        "Lines of the log that were lost, since nobody read them in time.";
    DISCONNECTED: Counter, ["spinney_clients_disconnected_total"],
        "Clients that went away before their answer was complete.";
    HEARTBEAT: Gauge, ["spinney_engine_heartbeat_age_seconds"],
        "Time since the engine last finished a step or an idle second.";
    BUILD: Gauge, ["spinney_build_info"], "Version, commit and device as labels.";
    GPU_MEMORY: Gauge, ["spinney_gpu_memory_bytes"], "Bytes of the GPU's memory, by use.";
    RESIDENT: Gauge, ["process_resident_memory_bytes"], "Resident memory of the process.";
    OPEN_FDS: Gauge, ["process_open_fds"], "Open file descriptors of the process.";
}
