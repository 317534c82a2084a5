// What the kernels of Sample share (crates/ops/src/sample.rs).
#pragma once
#include "order.cuh"
#include "row_group.cuh"
#include "sample_law.cuh"

// Candidates that each segment of a ranked row leaves.
constexpr uint32_t RANKED = 32;

// What the segments of a row find, by segment.
struct Found {
    // Key of the largest processed logit.
    uint64_t best;
    // Complement of the lowest id whose processed logit is NaN; 0 = none.
    uint32_t nan;
    // 1 if a raw logit is not finite.
    uint32_t odd;
};

// Bins of a search.
constexpr uint32_t BINS = 1024;
// Keys that are sorted at once.
constexpr uint32_t PICK_LIST = 2048;

struct GlobalBins {
    uint64_t mass[BINS];
    uint32_t count[BINS];
};

// What the blocks of a row share in a search. Bins are used in turn: while one set is read, the
// next is filled and the one after that is zeroed.
struct SearchSpace {
    GlobalBins bins[3];
    uint64_t keys[PICK_LIST];
};

struct SampleParams {
    Batch batch;
    Slots slots;
    const uint32_t* live;
    TokenMasks masks;
    // [rows, vocab_rows].
    const float* logits;
    // [rows].
    uint32_t* choice;
    uint32_t* finite;
    // Scratch: [rows].
    RowPlan* plans;
    GroupState* groups;
    SearchSpace* searches;
    // [rows, segments].
    Found* found;
    // [rows, segments, RANKED] best keys of the tempered logits, descending; 0 = none.
    uint64_t* ranked;
    // [rows, tiles] sums of the weights of the tiles.
    float* tile_sums;
    uint32_t segments;
    uint32_t tiles;
};

__device__ __forceinline__ const float* row_logits(const SampleParams& p, uint32_t row) {
    return p.logits + (size_t)row * p.slots.vocab_rows;
}

// What the row's segments found together; every lane of the warp gets it.
__device__ __forceinline__ Found found_in_row(const SampleParams& p, uint32_t row) {
    Found all = {0, 0, 0};
    for (uint32_t n = threadIdx.x % 32; n < p.segments; n += 32) {
        const Found one = p.found[(size_t)row * p.segments + n];
        all.best = max(all.best, one.best);
        all.nan = max(all.nan, one.nan);
        all.odd |= one.odd;
    }
    return {warp_largest(all.best), __reduce_max_sync(~0u, all.nan),
            __reduce_or_sync(~0u, all.odd)};
}
