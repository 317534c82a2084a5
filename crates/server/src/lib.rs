//! Turns HTTP into requests and token updates into text.

mod acceptance;
mod answer;
mod app;
mod body;
pub mod bundled;
mod chat;
pub mod cli;
mod completions;
mod connections;
pub mod error;
mod event_stream;
mod field_rules;
pub mod fields;
mod generation;
pub mod grammar;
mod health;
pub mod hub;
mod ids;
mod keys;
mod logprobs;
pub mod messages;
mod metrics;
pub mod model_files;
mod model_list;
mod routes;
pub mod sampling;
mod sequence_group;
pub mod serve;
pub mod template;
#[cfg(test)]
mod testing;
pub mod text_stream;
pub mod tool_calls;
mod trace;
mod updates;
mod usage;
pub mod vocabulary;
