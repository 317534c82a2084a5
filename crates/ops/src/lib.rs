//! Makes one op correct everywhere and fast on the GPU.
//!
//! A [`Backend`] owns memory and runs about thirty fused ops on pre-allocated buffers. Every op
//! lives in a module of its own: argument struct, shape rules, CPU reference, tests. The crate
//! knows rows, sequences and slots; it does not know layers or models.
//!
//! Invariants:
//! - A row's bits depend on that row's tokens and state only, never on how many rows ran beside it.
//! - No op takes a host argument that changes from step to step: lengths, tokens, parents, tables
//!   live in buffers, so that one captured graph can serve every step of a bucket.
//! - `unsafe` and `cfg(feature = "cuda")` exist in this crate only.

mod accept_walk;
mod activation;
mod advance;
mod attention;
mod backend;
mod batch;
mod commit;
mod conv_tree;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "cuda_absent.rs"]
mod cuda;
mod draft_attention;
mod draft_blocks;
mod draft_tree;
mod element;
mod embed;
mod error;
mod fill;
mod gated_norm;
mod gdn;
mod head_attention;
mod host_memory;
mod kv;
mod limits;
mod linear;
mod linear_add_norm;
mod linear_swiglu;
mod logprobs;
mod mapped_file;
mod model_sizes;
mod norm_rope;
mod parallel;
mod philox;
mod pieces;
mod product;
mod rms_norm;
mod rows;
mod sample;
mod sampling;
mod segment;
mod simulate_acceptance;
mod slots;
mod step_result;
mod tensor;
#[cfg(test)]
mod testing;
mod token_masks;
mod topk;
mod tree_tables;
mod vector;

pub use accept_walk::{AcceptWalk, CutReason, Walk};
pub use advance::Advance;
pub use attention::Attention;
pub use backend::{Backend, DeviceMemory, ScratchNeeds};
pub use batch::{Batch, Rows};
pub use commit::{CompactKv, GdnCommit};
pub use conv_tree::ConvTree;
pub use cpu::Cpu;
pub use cuda::Cuda;
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub use cuda::PeerLinear;
pub use draft_attention::{BlockMask, DraftAttention};
pub use draft_blocks::DraftBlocks;
pub use draft_tree::{BuildTree, DraftPlan, PHI_BUDGETS, PHI_LENGTHS, Prediction};
pub use element::Element;
pub use embed::Embed;
pub use error::OpsError;
pub use fill::{Fill, FillLaw, FillTarget};
pub use gated_norm::GatedNorm;
pub use gdn::{GdnJournal, GdnMode, GdnScan, GdnShape, GdnState};
pub use kv::KvLayer;
pub use limits::*;
pub use linear::{Linear, LinearOut, Summation};
pub use linear_add_norm::LinearAddNorm;
pub use linear_swiglu::{LinearSwiglu, gate_up_rows};
pub use logprobs::{TokenLogprobs, row_logprobs};
pub use mapped_file::MappedFile;
pub use model_sizes::{HeadSizes, ModelSizes};
pub use norm_rope::{KvTarget, NormRope, QuerySource};
pub use philox::uniform;
pub use pieces::{Piece, ReadAt};
pub use rms_norm::RmsNorm;
pub use rows::{ContextRows, CopyColumns, GatherRows};
pub use sample::Sample;
pub use sampling::{SamplingParams, SamplingRow};
pub use simulate_acceptance::SimulateAcceptance;
pub use slots::Slots;
pub use step_result::{RESULT_WORDS, SequenceResult, StepResult};
pub use tensor::{Dtype, Storage, Tensor};
pub use token_masks::{TokenMasks, is_allowed};
pub use topk::TopK;
pub use tree_tables::{TreeTables, TreeTablesFrom};
