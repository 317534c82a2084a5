//! Turns HTTP into requests and token updates into text.

mod acceptance;
mod access_log;
mod active_requests;
mod admin;
mod answer;
mod app;
mod body;
pub mod bundled;
mod chat;
pub mod cli;
mod completions;
mod connections;
mod drain;
pub mod error;
mod event_stream;
mod field_rules;
pub mod fields;
mod foreign_fields;
mod generate;
mod generation;
pub mod grammar;
mod health;
mod health_probe;
pub mod hub;
mod ids;
mod introspection;
mod key_source;
mod keys;
mod log_queue;
mod logprobs;
pub mod messages;
mod messages_api;
mod metrics;
pub mod model_files;
mod model_list;
mod openapi;
mod peer;
mod queue_wait;
mod responses;
mod routes;
pub mod sampling;
mod sequence_group;
pub mod serve;
mod signals;
mod stage;
mod step_trace;
mod supervisor;
pub mod template;
#[cfg(test)]
mod testing;
pub mod text_stream;
mod tokens;
pub mod tool_calls;
mod trace;
mod translation;
mod ui;
mod updates;
mod usage;
pub mod vocabulary;

/// Commit of this build, where the one who built it said so in `SPINNEY_BUILD`.
const BUILD: &str = match option_env!("SPINNEY_BUILD") {
    Some(build) => build,
    None => "unknown",
};
