// Log-probabilities of emitted tokens (crates/ops/src/logprobs.rs), for slots that ask.
#include "parts.cuh"
#include "tables.cuh"

static_assert(TOP_LOGPROBS_MAX <= BEST_MAX, "the alternatives fit the merge");

struct TokenLogprobsParams {
    Batch batch;
    Slots slots;
    Walk walk;
    // [rows, vocab_rows].
    const float* logits;
    // Rows are the entries [sequences, EMIT_MAX].
    Parts parts;
    // [sequences, EMIT_MAX].
    float* logprob;
    // [sequences, EMIT_MAX, TOP_LOGPROBS_MAX].
    uint32_t* top_ids;
    float* top_logprobs;
};

// Tokens of a sequence whose log-probabilities are wanted.
__device__ __forceinline__ uint32_t wanted_tokens(const TokenLogprobsParams& p, uint32_t sequence) {
    if (sequence >= p.batch.live[1]) return 0;
    const SamplingRow& options = p.slots.sampling[p.batch.sequence_slot[sequence]];
    return options.logprobs == 0 ? 0 : p.walk.emitted[sequence];
}

// Logits of the row at which a token was chosen.
__device__ __forceinline__ const float* token_row(const TokenLogprobsParams& p, uint32_t sequence,
                                                  uint32_t entry) {
    const size_t row = p.batch.sequence_start[sequence] + p.walk.path[entry];
    return p.logits + row * p.slots.vocab_rows;
}

// One block for each segment (x) of every gridDim.z-th token of a sequence (y).
extern "C" __global__ void __launch_bounds__(SEGMENT_THREADS, 2) token_logprobs_segments(
    const __grid_constant__ TokenLogprobsParams p) {
    __shared__ SegmentShared shared;
    pdl_launch();
    pdl_wait();
    const uint32_t sequence = blockIdx.y, wanted = wanted_tokens(p, sequence);
    for (uint32_t token = blockIdx.z; token < wanted; token += gridDim.z) {
        const uint32_t entry = sequence * EMIT_MAX + token;
        static_assert(TOP_LOGPROBS_MAX <= 2 * SEGMENT_WARPS, "two of each warp are enough");
        write_part<2>(p.parts, entry, token_row(p, sequence, entry), p.slots.vocab_rows,
                      p.slots.vocab_used, 0, blockIdx.x, shared);
        __syncthreads();
    }
}

// One block for each token (x) of a sequence (y).
extern "C" __global__ void __launch_bounds__(256) token_logprobs_merge(
    const __grid_constant__ TokenLogprobsParams p) {
    __shared__ MergeShared shared;
    pdl_launch();
    pdl_wait();
    const uint32_t sequence = blockIdx.y;
    if (blockIdx.x >= wanted_tokens(p, sequence)) return;
    const uint32_t entry = sequence * EMIT_MAX + blockIdx.x;
    merge_parts(p.parts, entry, shared);
    if (threadIdx.x == 0) {
        const uint32_t id = p.walk.tokens[entry];
        const bool exists = id < p.slots.vocab_used;
        p.logprob[entry] = exists ? logprob_of(token_row(p, sequence, entry)[id], shared.log_z)
                                  : -CUDART_INF_F;
    }
    if (threadIdx.x < TOP_LOGPROBS_MAX) {
        const uint64_t key = shared.best[threadIdx.x];
        const size_t place = (size_t)entry * TOP_LOGPROBS_MAX + threadIdx.x;
        p.top_ids[place] = key == 0 ? NONE : id_of(key);
        p.top_logprobs[place] =
            key == 0 ? -CUDART_INF_F : logprob_of(value_of_key(key), shared.log_z);
    }
}
