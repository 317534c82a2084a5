//! What requests may ask for, and what they get without asking.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value};

use super::http::seconds;
use super::speculation::number;
use crate::grammar::{GrammarBackend, GrammarConfig};
use crate::sampling::RequestRules;

/// Rules for requests.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Requests")]
pub struct RequestArgs {
    /// Where requests get sampling options that they do not give
    #[arg(long, value_enum, default_value = "model")]
    pub sampling_defaults: SamplingDefaults,

    /// Seed of the seeds of requests without one [default: random]
    #[arg(long, value_name = "S")]
    pub random_seed: Option<u64>,

    /// Variables of the chat template; a request's own win
    #[arg(long, value_name = "JSON", value_parser = object)]
    pub default_chat_template_kwargs: Option<Map<String, Value>>,

    /// Stop strings of a request at most
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub max_stop_sequences: usize,

    /// Answers to one prompt at most
    #[arg(
        long,
        value_name = "N",
        default_value = "8",
        value_parser = |text: &str| number(text, 1, 512)
    )]
    pub max_n: usize,

    /// Refuse a max_tokens that does not fit the context, instead of lowering it
    #[arg(long)]
    pub strict_max_tokens: bool,

    /// Refuse unknown fields, instead of ignoring them
    #[arg(long)]
    pub strict_request_fields: bool,

    /// Who starts first of those that wait
    #[arg(long, value_enum, default_value = "fcfs")]
    pub schedule_policy: SchedulePolicy,

    /// Let conversations without a user message pass
    #[arg(long)]
    pub lenient_messages: bool,

    /// Keep the billing header and the token budget in the system text of /v1/messages
    #[arg(long)]
    pub no_strip_client_markers: bool,

    /// What holds answers to a JSON schema
    #[arg(long, value_enum, default_value = "llguidance")]
    pub grammar_backend: GrammarBackendName,

    /// Seconds for a JSON schema to be compiled; 0 = no limit
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    pub grammar_timeout: Duration,
}

/// The template flag, which `render` and `generate` have too.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub struct TemplateArgs {
    /// Chat template [default: the model's]
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
}

/// Values of `--sampling-defaults`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SamplingDefaults {
    /// The model's generation_config.json
    Model,
    /// OpenAI's: temperature 1, nothing else
    Openai,
}

/// Values of `--grammar-backend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GrammarBackendName {
    /// The built-in engine
    Llguidance,
    /// Refuse such requests
    None,
}

/// Values of `--schedule-policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SchedulePolicy {
    /// First come, first served; a request's `priority` is ignored
    Fcfs,
    /// The lowest `priority`, an integer that is 0 if a request has none
    Priority,
}

impl RequestArgs {
    /// The server's form of the grammar flags.
    pub fn grammar(&self) -> GrammarConfig {
        GrammarConfig {
            backend: match self.grammar_backend {
                GrammarBackendName::Llguidance => GrammarBackend::Llguidance,
                GrammarBackendName::None => GrammarBackend::None,
            },
            timeout: self.grammar_timeout,
        }
    }

    /// The server's form.
    pub fn rules(&self) -> RequestRules {
        RequestRules {
            stop_strings_max: self.max_stop_sequences,
            choices_max: self.max_n,
            strict_max_tokens: self.strict_max_tokens,
            strict_fields: self.strict_request_fields,
            lenient_messages: self.lenient_messages,
            strip_client_markers: !self.no_strip_client_markers,
            generation_config: self.sampling_defaults == SamplingDefaults::Model,
            template_variables: self
                .default_chat_template_kwargs
                .clone()
                .unwrap_or_default(),
            priority: self.schedule_policy == SchedulePolicy::Priority,
            seed: self.random_seed,
        }
    }
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text)
        .map_err(|error| format!("expected a JSON object, as in {{\"a\": true}}: {error}"))
}
