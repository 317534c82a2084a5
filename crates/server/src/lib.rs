//! Turns HTTP into requests and token updates into text.

pub mod bundled;
pub mod cli;
pub mod error;
pub mod fields;
pub mod generation;
pub mod messages;
pub mod model_files;
pub mod sampling;
pub mod serve;
pub mod template;
#[cfg(test)]
mod testing;
pub mod text_stream;
pub mod vocabulary;
