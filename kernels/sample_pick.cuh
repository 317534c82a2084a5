// From candidates, or from the whole row, to the token that a random number chooses
// (crates/ops/src/sample/law.rs), by one block.
#pragma once
#include "block_scan.cuh"
#include "philox.cuh"
#include "sample_history.cuh"
#include "sample_params.cuh"
#include "sample_select.cuh"

// Tile sums of ids first .. first + count, a multiple of TILE_IDS behind the row's first; staged
// logits become weights.
__device__ __forceinline__ void sum_tiles(const Law& law, uint32_t first, uint32_t count,
                                          float* staged, float* tile_sums) {
    for (uint32_t place = threadIdx.x; place < count; place += blockDim.x) {
        float& z = staged[staged_at(place)];
        z = kept_weight(law, z, first + place);
    }
    __syncthreads();
    for (uint32_t tile = threadIdx.x; tile * TILE_IDS < count; tile += blockDim.x) {
        const uint32_t end = min(count, (tile + 1) * TILE_IDS);
        float sum = 0.0f;
        for (uint32_t place = tile * TILE_IDS; place < end; ++place) {
            sum = __fadd_rn(sum, staged[staged_at(place)]);
        }
        tile_sums[first / TILE_IDS + tile] = sum;
    }
}

// Running sums of `sums` in place, by one thread: the order is the law's.
__device__ __forceinline__ float run_sums(float* sums, uint32_t count, float sum) {
#pragma unroll 8
    for (uint32_t n = 0; n < count; ++n) {
        sum = __fadd_rn(sum, sums[n]);
        sums[n] = sum;
    }
    return sum;
}

// The token among the n first keys, which are kept: the smallest id whose cumulative weight
// exceeds u times the total. None where the total is 0.
__device__ __forceinline__ void pick_from_keys(const Law& law, uint32_t n, float u,
                                               PickShared& shared, uint32_t* choice) {
    uint64_t* keys = shared.ranked.keys;
    const uint32_t size = sorted_size(n);
    // The complement of the id above the weight: descending order is by ascending id.
    for (uint32_t i = threadIdx.x; i < size; i += blockDim.x) {
        const float weight = i < n ? kept_weight(law, keys[i]) : 0.0f;
        keys[i] = i < n ? keys[i] << 32 | __float_as_uint(weight) : 0;
    }
    __syncthreads();
    sort_descending(keys, size);
    const auto tile = [&](uint32_t i) { return ~(uint32_t)(keys[i] >> 32) / TILE_IDS; };
    const auto weight = [&](uint32_t i) { return __uint_as_float((uint32_t)keys[i]); };
    // The sum of a tile stands at its first key, 0 at the others.
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        float sum = 0.0f;
        if (i == 0 || tile(i) != tile(i - 1)) {
            for (uint32_t j = i; j < n && tile(j) == tile(i); ++j) sum = __fadd_rn(sum, weight(j));
        }
        shared.sums[i] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) run_sums(shared.sums, n, 0.0f);
    __syncthreads();
    const float threshold = __fmul_rn(u, shared.sums[n - 1]);
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        const float before = i == 0 ? 0.0f : shared.sums[i - 1];
        if (!(shared.sums[i] > threshold) || before > threshold) continue;
        float within = 0.0f;
        for (uint32_t j = i; j < n; ++j) {
            within = __fadd_rn(within, weight(j));
            if (__fadd_rn(before, within) > threshold) {
                *choice = ~(uint32_t)(keys[j] >> 32);
                break;
            }
        }
    }
}

// The same over the row's tile sums, which become running sums.
__device__ __forceinline__ void pick_from_tiles(const SampleParams& p, uint32_t row,
                                                const RowPlan& plan, const Law& law, float u,
                                                PickShared& shared) {
    float* tile_sums = p.tile_sums + (size_t)row * p.tiles;
    const uint32_t tiles = (p.slots.vocab_used + TILE_IDS - 1) / TILE_IDS;
    if (threadIdx.x == 0) shared.total = 0.0f, shared.tile = NONE;
    for (uint32_t first = 0; first < tiles; first += PICK_LIST) {
        const uint32_t count = min(PICK_LIST, tiles - first);
        for (uint32_t n = threadIdx.x; n < count; n += blockDim.x) {
            shared.sums[n] = tile_sums[first + n];
        }
        __syncthreads();
        if (threadIdx.x == 0) shared.total = run_sums(shared.sums, count, shared.total);
        __syncthreads();
        for (uint32_t n = threadIdx.x; n < count; n += blockDim.x) {
            tile_sums[first + n] = shared.sums[n];
        }
        __syncthreads();
    }
    const float threshold = __fmul_rn(u, shared.total);
    for (uint32_t n = threadIdx.x; n < tiles; n += blockDim.x) {
        const float before = n == 0 ? 0.0f : tile_sums[n - 1];
        if (tile_sums[n] > threshold && !(before > threshold)) {
            shared.tile = n, shared.before = before;
        }
    }
    __syncthreads();
    if (shared.tile == NONE) return;
    const uint32_t first = shared.tile * TILE_IDS;
    const uint32_t count = min(TILE_IDS, p.slots.vocab_used - first);
    float* staged = shared.ranked.staged;
    stage_processed(p.batch, p.slots, plan, row, row_logits(p, row), first, count, staged,
                    shared.path);
    if (threadIdx.x > 0) return;
    float within = 0.0f;
    for (uint32_t place = 0; place < count; ++place) {
        within = __fadd_rn(within, kept_weight(law, staged[staged_at(place)], first + place));
        if (__fadd_rn(shared.before, within) > threshold) {
            p.choice[row] = first + place;
            return;
        }
    }
}

// Tile sums of the whole row under the law, by this block alone.
__device__ __forceinline__ void sum_row(const SampleParams& p, uint32_t row, const RowPlan& plan,
                                        const Law& law, PickShared& shared) {
    __syncthreads();
    for (uint32_t first = 0; first < p.slots.vocab_used; first += WIDE_IDS) {
        const uint32_t count = min(WIDE_IDS, p.slots.vocab_used - first);
        stage_processed(p.batch, p.slots, plan, row, row_logits(p, row), first, count, shared.wide,
                        shared.path);
        sum_tiles(law, first, count, shared.wide, p.tile_sums + (size_t)row * p.tiles);
        __syncthreads();
    }
}

__device__ __forceinline__ void draw(const SampleParams& p, uint32_t row, const RowPlan& plan,
                                     const SamplingRow& options, Law law, PickShared& shared) {
    const float u =
        philox_uniform(options.seed_low, options.seed_high, plan.index, options.choice);
    if ((plan.kind & ROW_RANKED) != 0) {
        uint32_t n = 0;
        if (rank_candidates(p, row, plan, options, law, n, shared)) {
            pick_from_keys(law, n, u, shared, p.choice + row);
            return;
        }
        law.lowest_key = select_in_row(p, row, plan, options, law, shared);
        sum_row(p, row, plan, law, shared);
    }
    pick_from_tiles(p, row, plan, law, u, shared);
}
