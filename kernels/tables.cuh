// Tables of a step as kernels see them; mirrors of the #[repr(C)] structs in
// crates/ops/src/cuda/tables.rs and of SamplingRow in crates/ops/src/sampling.rs.
#pragma once
#include <cuda_bf16.h>
#include <stdint.h>

constexpr int PAGE_TOKENS = 64;
constexpr int TREE_ROWS_MAX = 64;
constexpr int DEPTH_MAX = 15;
constexpr int EMIT_MAX = DEPTH_MAX + 1;
constexpr int TOPK_MAX = 15;
constexpr int TOP_LOGPROBS_MAX = 20;
constexpr int STOP_IDS_MAX = 72;
constexpr int LOGIT_BIAS_MAX = 1024;
constexpr uint32_t NONE = 0xffffffffu;

// Rows of a forward and the sequences they belong to. live[0] rows and live[1] sequences are live;
// rows of padding have row_sequence NONE.
struct Batch {
    const uint32_t* live;
    uint32_t* row_sequence;
    uint32_t* token;
    int32_t* parent;
    uint32_t* depth;
    uint32_t* sequence_slot;
    uint32_t* sequence_start;
    uint32_t* sequence_rows;
    uint32_t rows_max;
    uint32_t sequences_max;
};

// What the layers need to know of a tree (crates/ops/src/tree_tables.rs).
struct Tree {
    uint64_t* ancestors;
    int32_t* first_child;
    int32_t* next_sibling;
    uint32_t* conv_source;
    uint32_t* scan_order;
    int32_t* scan_restore;
    int32_t* scan_save;
};

// Sampling options and limits of one slot.
struct SamplingRow {
    float temperature;
    float top_p;
    float min_p;
    float repetition_penalty;
    float presence_penalty;
    float frequency_penalty;
    uint32_t top_k;
    uint32_t seed_low;
    uint32_t seed_high;
    uint32_t choice;
    uint32_t bias_count;
    uint32_t stop_count;
    uint32_t tokens_min;
    uint32_t tokens_max;
    uint32_t context_max;
    uint32_t logprobs;
};

// What the device remembers of every sequence (crates/ops/src/slots.rs).
struct Slots {
    uint32_t count;
    uint32_t pages_max;
    uint32_t vocab_rows;
    uint32_t vocab_used;
    uint32_t* length;
    uint32_t* root;
    uint32_t* emitted;
    uint32_t* pending;
    uint32_t* block_table;
    SamplingRow* sampling;
    uint32_t* stop_ids;
    uint32_t* bias_ids;
    float* bias_values;
    uint32_t* prompt_seen;
    uint32_t* generated;
};

// The accepted path of every sequence (crates/ops/src/accept_walk.rs).
struct Walk {
    uint32_t* path_rows;
    uint32_t* path;
    uint32_t* emitted;
    uint32_t* tokens;
    uint32_t* reason;
};

// Keys and values of one layer: [pages, PAGE_TOKENS, heads, head_dim].
struct Kv {
    __nv_bfloat16* keys;
    __nv_bfloat16* values;
    uint32_t heads;
    uint32_t head_dim;
};

// Offset of head 0 of cache index t of a slot.
__device__ __forceinline__ size_t kv_offset(const Slots& slots, const Kv& kv, uint32_t slot,
                                            uint32_t t) {
    const uint32_t page = slots.block_table[(size_t)slot * slots.pages_max + t / PAGE_TOKENS];
    return ((size_t)page * PAGE_TOKENS + t % PAGE_TOKENS) * kv.heads * kv.head_dim;
}
