// The k most likely tokens of a row and their log-probabilities (crates/ops/src/topk.rs).
#include "parts.cuh"
#include "tables.cuh"

struct TopKParams {
    const uint32_t* live;
    // [rows, vocab_rows]; columns 0 .. vocab_used name the tokens first_id and on.
    const float* logits;
    Parts parts;
    // [rows, k].
    uint32_t* ids;
    float* logprobs;
    uint32_t vocab_rows;
    uint32_t vocab_used;
    uint32_t first_id;
};

// One block for each segment (x) of a row (y).
extern "C" __global__ void __launch_bounds__(SEGMENT_THREADS, 2) topk_segments(
    const __grid_constant__ TopKParams p) {
    __shared__ SegmentShared shared;
    pdl_launch();
    pdl_wait();
    const uint32_t row = blockIdx.y;
    if (row >= p.live[0]) return;
    static_assert(TOPK_MAX <= SEGMENT_WARPS, "one of each warp is enough");
    write_part<1>(p.parts, row, p.logits + (size_t)row * p.vocab_rows, p.vocab_rows, p.vocab_used,
                  p.first_id, blockIdx.x, shared);
}

// One block per row.
extern "C" __global__ void __launch_bounds__(256) topk_merge(const __grid_constant__ TopKParams p) {
    __shared__ MergeShared shared;
    pdl_launch();
    pdl_wait();
    const uint32_t row = blockIdx.x;
    if (row >= p.live[0]) return;
    merge_parts(p.parts, row, shared);
    if (threadIdx.x < p.parts.k) {
        const size_t entry = (size_t)row * p.parts.k + threadIdx.x;
        const uint64_t key = shared.best[threadIdx.x];
        p.ids[entry] = id_of(key);
        p.logprobs[entry] = logprob_of(value_of_key(key), shared.log_z);
    }
}
