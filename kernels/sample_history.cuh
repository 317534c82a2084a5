// What was said before, and how it changes the logits of a row (crates/ops/src/sample/history.rs).
#pragma once
#include "sample_law.cuh"

// Staged logits keep the tiles of 64 ids in rows of 65 words, so that threads that walk one tile
// each meet different banks.
__device__ __forceinline__ uint32_t staged_at(uint32_t place) { return place + place / TILE_IDS; }

constexpr uint32_t staged_words(uint32_t ids) { return ids + ids / TILE_IDS; }

struct PathShared {
    uint32_t token[TREE_ROWS_MAX];
    uint32_t count;
};

// Tokens from the row up to depth 1.
__device__ __forceinline__ void walk_path(const Batch& batch, const RowPlan& plan, uint32_t row,
                                          PathShared& path) {
    uint32_t count = 0;
    for (int32_t parent = batch.parent[row]; parent >= 0 && count < TREE_ROWS_MAX;
         parent = batch.parent[row]) {
        path.token[count++] = batch.token[row];
        row = plan.start + parent;
    }
    path.count = count;
}

// Bans the staged ids first .. first + count that the row's mask does not allow, by all threads.
__device__ __forceinline__ void ban_unmasked(const TokenMasks& masks, uint32_t row, uint32_t first,
                                             uint32_t count, float* staged) {
    const uint32_t* words = masks.words + (size_t)row * masks.words_per_row;
    for (uint32_t place = threadIdx.x; place < count; place += blockDim.x) {
        const uint32_t id = first + place;
        if ((words[id / 32] >> id % 32 & 1) == 0) staged[staged_at(place)] = -CUDART_INF_F;
    }
}

// Bans and then bias on staged ids first .. first + count, by one warp. Entries act in the order of
// the list: where an id is repeated within 32 entries, its lanes take turns.
__device__ __forceinline__ void ban_and_bias(const Slots& slots, const RowPlan& plan,
                                             const SamplingRow& options, uint32_t first,
                                             uint32_t count, float* staged) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t* stop_ids = slots.stop_ids + (size_t)plan.slot * STOP_IDS_MAX;
    for (uint32_t n = lane; n < banned_count(options, plan.index); n += 32) {
        const uint32_t place = stop_ids[n] - first;
        if (place < count) staged[staged_at(place)] = -CUDART_INF_F;
    }
    __syncwarp();
    const size_t entries = (size_t)plan.slot * LOGIT_BIAS_MAX;
    for (uint32_t n = 0; n < options.bias_count; n += 32) {
        const bool valid = n + lane < options.bias_count;
        const uint32_t place = valid ? slots.bias_ids[entries + n + lane] - first : NONE;
        const bool here = place < count;
        if (!__any_sync(~0u, here)) continue;
        const float bias = valid ? slots.bias_values[entries + n + lane] : 0.0f;
        const uint32_t same = __match_any_sync(~0u, place);
        const uint32_t turn = __popc(same & ((1u << lane) - 1));
        const uint32_t turns = __reduce_max_sync(~0u, here ? turn + 1 : 0);
        for (uint32_t now = 0; now < turns; ++now) {
            if (here && turn == now) {
                float& z = staged[staged_at(place)];
                // A ban holds whatever the logit is.
                const bool banned = bias == -CUDART_INF_F || z == -CUDART_INF_F;
                z = banned ? -CUDART_INF_F : __fadd_rn(z, bias);
            }
            __syncwarp();
        }
    }
}

// A logit of a token that prompt, output or path has, output and path `count` times.
__device__ __forceinline__ float penalised(float z, const SamplingRow& options, uint32_t count) {
    const float repetition = options.repetition_penalty;
    z = z > 0.0f ? __fdiv_rn(z, repetition) : __fmul_rn(z, repetition);
    if (count == 0) return z;
    const float frequency = __fmul_rn(options.frequency_penalty, __uint2float_rn(count));
    return __fsub_rn(z, __fadd_rn(frequency, options.presence_penalty));
}

// Penalties on staged ids first .. first + count. Tokens of the path are set last, from their
// logits before penalties. Every thread of the block calls it; at least TREE_ROWS_MAX threads.
__device__ __forceinline__ void penalise(const Slots& slots, const RowPlan& plan,
                                         const SamplingRow& options, uint32_t first, uint32_t count,
                                         float* staged, const PathShared& path) {
    const size_t words = (slots.vocab_rows + 31) / 32;
    const uint32_t* seen = slots.prompt_seen + plan.slot * words;
    const uint32_t* generated = slots.generated + (size_t)plan.slot * slots.vocab_rows;
    uint32_t own = NONE;
    float value = 0.0f;
    if (threadIdx.x < path.count) {
        const uint32_t id = path.token[threadIdx.x];
        if (id - first < count) {
            own = id - first;
            uint32_t times = generated[id];
            for (uint32_t n = 0; n < path.count; ++n) times += path.token[n] == id;
            value = penalised(staged[staged_at(own)], options, times);
        }
    }
    __syncthreads();
    for (uint32_t place = threadIdx.x; place < count; place += blockDim.x) {
        const uint32_t id = first + place, times = generated[id];
        if (times > 0 || (seen[id / 32] >> id % 32 & 1) != 0) {
            float& z = staged[staged_at(place)];
            z = penalised(z, options, times);
        }
    }
    __syncthreads();
    if (own != NONE) staged[staged_at(own)] = value;
}

// Stages the logits of ids first .. first + count of a row, processed with the row's history.
// Every thread of the block calls it; a barrier at its end, and none at its start.
__device__ __forceinline__ void stage_processed(const Batch& batch, const Slots& slots,
                                                const TokenMasks& masks, const RowPlan& plan,
                                                uint32_t row, const float* logits, uint32_t first,
                                                uint32_t count, float* staged, PathShared& path) {
#pragma unroll 8
    for (uint32_t place = threadIdx.x; place < count; place += blockDim.x) {
        staged[staged_at(place)] = logits[first + place];
    }
    __syncthreads();
    if ((plan.kind & ROW_CHANGED) == 0) return;
    if ((plan.kind & ROW_MASKED) != 0) {
        ban_unmasked(masks, row, first, count, staged);
        __syncthreads();
    }
    const SamplingRow options = slots.sampling[plan.slot];
    const bool penalties = has_penalties(options);
    if (threadIdx.x < 32) ban_and_bias(slots, plan, options, first, count, staged);
    if (threadIdx.x == 32 && penalties) walk_path(batch, plan, row, path);
    __syncthreads();
    if (!penalties) return;
    penalise(slots, plan, options, first, count, staged, path);
    __syncthreads();
}
