//! Fixed sizes that every backend and every table agrees on.

/// Tokens per KV page.
pub const PAGE_TOKENS: usize = 64;
/// Rows of one sequence in one verify: the root and at most 63 drafted nodes (one `u64` bitset).
pub const TREE_ROWS_MAX: usize = 64;
/// Drafted depths: a block of 16 less its anchor.
pub const DEPTH_MAX: usize = 15;
/// Tokens that one step can emit: `DEPTH_MAX` accepted nodes and the target's own token.
pub const EMIT_MAX: usize = DEPTH_MAX + 1;
/// Candidates per drafted depth.
pub const TOPK_MAX: usize = 15;
/// Alternatives reported beside a token's log-probability.
pub const TOP_LOGPROBS_MAX: usize = 20;
/// Stop ids of one request.
pub const STOP_IDS_MAX: usize = 72;
/// `logit_bias` entries of one request.
pub const LOGIT_BIAS_MAX: usize = 1024;
/// Slots of the depth-first scan: `floor(log2(TREE_ROWS_MAX))`, see `tree_tables`.
pub const SCAN_SLOTS_MAX: usize = 6;
/// Marks "no sequence", "no page" and "no row" in `u32` tables.
pub const NONE: u32 = u32::MAX;
/// Row counts a step graph is captured for; a step takes the smallest that holds its rows.
pub const ROW_BUCKETS: [usize; 15] = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];
