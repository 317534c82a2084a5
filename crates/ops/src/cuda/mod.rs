//! The CUDA backend: one context, one stream, kernels embedded as fat binaries.
//!
//! The driver is loaded when a device is opened, so the same binary starts on machines without one.
//! All work goes to one stream; [`crate::Backend::download`] is the only call that waits for it.

mod accept_walk;
mod advance;
mod blas;
mod buf;
mod build_tree;
mod compact_kv;
mod conv_tree;
mod device;
mod draft_attention;
mod draft_blocks;
mod embed;
mod fill;
mod gated_norm;
mod gdn_chunk;
mod gdn_commit;
mod gdn_scan;
mod gdn_sizes;
mod graph;
mod kernel;
mod linear;
mod linear_add_norm;
mod linear_swiglu;
mod memory;
mod model_sizes;
mod norm_rope;
mod ops;
mod parts;
mod peer;
mod prefill_attention;
mod rms_norm;
mod rows;
mod sample;
mod scratch;
mod simulate_acceptance;
mod splits;
mod step_result;
mod tables;
#[cfg(test)]
mod tests;
mod token_logprobs;
mod topk;
mod tree_attention;
mod tree_tables;
mod upload;

pub use buf::CudaBuf;
pub use device::Cuda;
pub use graph::CudaGraph;
pub use peer::PeerLinear;
pub use upload::Stages;
