//! The text of `/metrics`.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use engine::{EngineStats, ModelInfo};

use super::exposition::Exposition;
use super::{ENDINGS, Ending, LabelCounts, Metrics, STEP_PHASES};

/// Tokens of a page of the KV pool.
const PAGE_TOKENS: usize = 64;

impl Metrics {
    /// Everything, under both families of names and our own.
    pub(crate) fn report(&self, model: &str, info: &ModelInfo, stats: &EngineStats) -> String {
        let mut text = Exposition::new(model);
        gauges(&mut text, info, stats);
        self.requests(&mut text);
        self.times(&mut text);
        speculation(&mut text, stats);
        self.own(&mut text, info, stats);
        text.into_text()
    }

    fn requests(&self, text: &mut Exposition) {
        let prompt = self.prompt_tokens.load(Ordering::Relaxed);
        let generated = self.generated_tokens.load(Ordering::Relaxed);
        text.counter(
            &["sglang:prompt_tokens_total", "vllm:prompt_tokens_total"],
            prompt,
        );
        text.counter(
            &[
                "sglang:generation_tokens_total",
                "vllm:generation_tokens_total",
            ],
            generated,
        );
        let endings = ENDINGS.map(|(ending, name)| {
            let index = ending as usize;
            (name, self.endings[index].load(Ordering::Relaxed))
        });
        let all = endings.iter().map(|(_, count)| count).sum();
        text.counter(&["sglang:num_requests_total"], all);
        text.counter(
            &["sglang:num_aborted_requests_total"],
            endings[Ending::Abort as usize].1,
        );
        text.labelled(
            "vllm:request_success_total",
            "counter",
            endings.iter().map(|(name, count)| {
                (vec![("finished_reason", (*name).to_owned())], *count as f64)
            }),
        );
        labelled(
            text,
            "vllm:admission_rejections_total",
            &["reason"],
            &self.rejections,
        );
        labelled(
            text,
            "sglang:http_requests_total",
            &["endpoint", "method"],
            &self.http_requests,
        );
        labelled(
            text,
            "sglang:http_responses_total",
            &["endpoint", "method", "status_code"],
            &self.http_responses,
        );
        let active = self.http_active.load(Ordering::Relaxed);
        text.gauge(&["sglang:http_requests_active"], active as f64);
    }

    fn times(&self, text: &mut Exposition) {
        let pairs = [
            ("time_to_first_token_seconds", &self.first_token),
            ("inter_token_latency_seconds", &self.between_tokens),
            ("request_time_per_output_token_seconds", &self.per_token),
            ("e2e_request_latency_seconds", &self.end_to_end),
        ];
        for (name, histogram) in pairs {
            text.histogram(
                &[&format!("sglang:{name}"), &format!("vllm:{name}")],
                histogram,
            );
        }
        let queue = [
            "sglang:queue_time_seconds",
            "vllm:request_queue_time_seconds",
        ];
        text.histogram(&queue, &self.queue);
        text.histogram(&["vllm:request_prefill_time_seconds"], &self.prefill);
        text.histogram(&["vllm:request_decode_time_seconds"], &self.decode);
        text.labelled_histograms(
            "sglang:per_stage_req_latency_seconds",
            "stage",
            &[("prefill", &self.prefill), ("decode", &self.decode)],
        );
        text.histogram(&["vllm:request_prompt_tokens"], &self.prompt_size);
        text.histogram(&["vllm:request_generation_tokens"], &self.output_size);
    }

    fn own(&self, text: &mut Exposition, info: &ModelInfo, stats: &EngineStats) {
        let phases: Vec<_> = STEP_PHASES.into_iter().zip(&self.step_phases).collect();
        text.labelled_histograms("spinney_step_phase_seconds", "phase", &phases);
        text.histogram(&["spinney_accept_length"], &self.accept_length);
        let shapes = |value: fn(&engine::ShapeStats) -> f64| {
            stats
                .shapes
                .iter()
                .map(move |shape| (vec![("shape", shape.shape.clone())], value(shape)))
        };
        let counter = "counter";
        text.labelled(
            "spinney_shape_steps_total",
            counter,
            shapes(|s| s.steps as f64),
        );
        text.labelled(
            "spinney_shape_accepted_total",
            counter,
            shapes(|s| s.accepted as f64),
        );
        labelled(
            text,
            "spinney_ignored_fields_total",
            &["field"],
            &self.ignored_fields,
        );
        text.counter(
            &["spinney_clients_disconnected_total"],
            self.disconnected.load(Ordering::Relaxed),
        );
        text.gauge(
            &["spinney_engine_heartbeat_age_seconds"],
            stats.heartbeat_age.as_secs_f64(),
        );
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let labels = vec![("version", version), ("device", info.device.clone())];
        text.labelled("spinney_build_info", "gauge", [(labels, 1.0)]);
    }
}

fn gauges(text: &mut Exposition, info: &ModelInfo, stats: &EngineStats) {
    let share = |used: usize, total: usize| used as f64 / total.max(1) as f64;
    text.gauge(
        &["sglang:num_running_reqs", "vllm:num_requests_running"],
        stats.running as f64,
    );
    text.gauge(
        &["sglang:num_queue_reqs", "vllm:num_requests_waiting"],
        stats.waiting as f64,
    );
    text.gauge(
        &[
            "sglang:token_usage",
            "sglang:full_token_usage",
            "vllm:kv_cache_usage_perc",
        ],
        share(stats.pages_used, stats.pages_total),
    );
    text.gauge(
        &["sglang:mamba_usage"],
        share(stats.slots_used, stats.slots_total),
    );
    text.gauge(
        &["sglang:num_used_tokens"],
        (stats.pages_used * PAGE_TOKENS) as f64,
    );
    text.gauge(&["sglang:max_total_num_tokens"], info.tokens_total as f64);
    let geometry = |page, pages| {
        let labels: Vec<(&'static str, String)> = vec![
            (page, PAGE_TOKENS.to_string()),
            (pages, stats.pages_total.to_string()),
        ];
        [(labels, 1.0)]
    };
    let sglang = geometry("page_size", "num_pages");
    text.labelled("sglang:cache_config_info", "gauge", sglang);
    let vllm = geometry("block_size", "num_gpu_blocks");
    text.labelled("vllm:cache_config_info", "gauge", vllm);
    text.gauge(&["sglang:gen_throughput"], stats.tokens_per_second);
    // There is no prefix cache, so nothing is ever found in it, and nothing is ever preempted.
    text.gauge(&["sglang:cache_hit_rate"], 0.0);
    text.counter(
        &[
            "sglang:cached_tokens_total",
            "vllm:prefix_cache_hits_total",
            "vllm:prefix_cache_queries_total",
            "vllm:prompt_tokens_cached_total",
            "vllm:num_preemptions_total",
        ],
        0,
    );
    text.gauge(&["sglang:num_retracted_reqs"], 0.0);
}

fn speculation(text: &mut Exposition, stats: &EngineStats) {
    text.counter(
        &[
            "sglang:spec_verify_calls_total",
            "vllm:spec_decode_num_drafts_total",
        ],
        stats.drafts,
    );
    text.counter(
        &["vllm:spec_decode_num_draft_tokens_total"],
        stats.draft_tokens,
    );
    text.counter(
        &["vllm:spec_decode_num_accepted_tokens_total"],
        stats.accepted_tokens,
    );
    text.labelled(
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "counter",
        stats
            .accepted_per_position
            .iter()
            .enumerate()
            .map(|(position, &count)| (vec![("position", position.to_string())], count as f64)),
    );
    let drafts = stats.drafts.max(1) as f64;
    let length = 1.0 + stats.accepted_tokens as f64 / drafts;
    text.gauge(&["sglang:spec_accept_length"], length);
    let rate = stats.accepted_tokens as f64 / stats.draft_tokens.max(1) as f64;
    text.gauge(&["sglang:spec_accept_rate"], rate);
    let drafted = stats.draft_tokens as f64 / drafts;
    text.gauge(&["sglang:spec_num_draft_tokens"], drafted);
}

fn labelled(text: &mut Exposition, name: &str, labels: &[&'static str], counts: &LabelCounts) {
    let counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
    let samples = counts.iter().map(|(values, &count)| {
        let pairs = labels.iter().copied().zip(values.iter().cloned()).collect();
        (pairs, count as f64)
    });
    text.labelled(name, "counter", samples);
}
