// From candidates, or from the whole row, to the token that a random number chooses
// (crates/ops/src/sample/law.rs).
#pragma once
#include "philox.cuh"
#include "sample_search.cuh"

// Sorts the candidates that may matter into shared.ranked.keys. The first n, which it returns, are
// the n largest keys of the row: at least top_k, or all above -inf (then shared.bound is 0), or as
// many as the segments' candidates decide.
__device__ __forceinline__ uint32_t sort_candidates(const SampleParams& p, uint32_t row,
                                                    uint32_t top_k, PickShared& shared) {
    const uint32_t count = p.segments * RANKED;
    const uint64_t* ranked = p.ranked + (size_t)row * count;
    uint64_t* keys = shared.ranked.keys;
    if (threadIdx.x == 0) shared.count = 0;
    if (threadIdx.x < 32) {
        // What a segment left out is below its last candidate.
        uint64_t bound = 0;
        for (uint32_t n = threadIdx.x; n < p.segments; n += 32) {
            bound = max(bound, ranked[n * RANKED + RANKED - 1]);
        }
        bound = warp_largest(bound);
        // The heads of 32 segments: as many of them as are asked for bound the rest.
        const uint64_t head = threadIdx.x < p.segments ? ranked[threadIdx.x * RANKED] : 0;
        uint32_t rank = 0;
        for (int lane = 0; lane < 32; ++lane) {
            rank += __shfl_sync(~0u, (unsigned long long)head, lane) > head;
        }
        if (top_k <= 32 && bound > 0) bound = max(bound, warp_largest(rank + 1 == top_k ? head : 0));
        if (threadIdx.x == 0) shared.bound = bound;
    }
    __syncthreads();
    const uint64_t lowest = max(shared.bound, (uint64_t)1);
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
        const uint64_t key = ranked[i];
        if (key >= lowest) keys[atomicAdd(&shared.count, 1)] = key;
    }
    __syncthreads();
    const uint32_t n = shared.count, size = sorted_size(n);
    for (uint32_t i = n + threadIdx.x; i < size; i += blockDim.x) keys[i] = 0;
    __syncthreads();
    sort_descending(keys, size);
    return n;
}

// Whether the candidates decide what is kept; if so, the first n of shared.ranked.keys. total is
// the mass of the row where top_k keeps all.
__device__ __forceinline__ bool rank_candidates(const SampleParams& p, const DrawnRow& drawn,
                                                const SamplingRow& options, const Law& law,
                                                uint64_t total, uint32_t& n, PickShared& shared) {
    if (p.segments * RANKED > PICK_LIST) return false;
    const bool open = (drawn.plan.kind & ROW_OPEN) != 0;
    n = sort_candidates(p, drawn.row, open ? NONE : options.top_k, shared);
    const bool complete = shared.bound == 0;
    if (!open) {
        if (n < options.top_k && !complete) return false;
        n = min(n, options.top_k);
    }
    if (!(options.top_p < 1.0f)) return true;
    const auto entry = [&](uint32_t i) { return tally_of(law, shared.ranked.keys[i]); };
    if (!open) total = block_sum(n, entry, shared.scan).mass;
    Tally before = {0, 0};
    const uint32_t last =
        first_reaching(n, entry, goal_of_top_p(options, total), before, shared.scan);
    if (last == n) return !open || complete;
    n = last + 1;
    return true;
}

// Running sums of `sums` in place, by one thread: the order is the law's. Reads and writes up to
// the next multiple of 16.
__device__ __forceinline__ float run_sums(float* sums, uint32_t count, float sum) {
    float4 next[4];
    float4* fours = reinterpret_cast<float4*>(sums);
#pragma unroll
    for (int j = 0; j < 4; ++j) next[j] = fours[j];
    for (uint32_t n = 0; n < count; n += 16, fours += 4) {
        float4 now[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) now[j] = next[j];
        if (n + 16 < count) {
#pragma unroll
            for (int j = 0; j < 4; ++j) next[j] = fours[4 + j];
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            now[j].x = sum = __fadd_rn(sum, now[j].x);
            now[j].y = sum = __fadd_rn(sum, now[j].y);
            now[j].z = sum = __fadd_rn(sum, now[j].z);
            now[j].w = sum = __fadd_rn(sum, now[j].w);
            fours[j] = now[j];
        }
    }
    return sum;
}

// Zeros up to what run_sums reads, which change no sum.
__device__ __forceinline__ void pad_sums(float* sums, uint32_t count) {
    const uint32_t end = (count + 15) / 16 * 16;
    if (count + threadIdx.x < end) sums[count + threadIdx.x] = 0.0f;
}

// The token among the n first keys, which are kept: the smallest id whose cumulative weight
// exceeds u times the total. None where the total is 0.
__device__ __forceinline__ void pick_from_keys(const Law& law, uint32_t n, float u,
                                               PickShared& shared, uint32_t* choice) {
    uint64_t* keys = shared.ranked.keys;
    const uint32_t size = sorted_size(n);
    // The complement of the id above the weight: descending order is by ascending id.
    for (uint32_t i = threadIdx.x; i < size; i += blockDim.x) {
        const float weight = i < n ? kept_weight(law, value_of_key(keys[i]), keys[i]) : 0.0f;
        keys[i] = i < n ? keys[i] << 32 | __float_as_uint(weight) : 0;
    }
    __syncthreads();
    sort_descending(keys, size);
    const auto id = [&](uint32_t i) { return ~(uint32_t)(keys[i] >> 32); };
    const auto weight = [&](uint32_t i) { return __uint_as_float((uint32_t)keys[i]); };
    // The sum of a tile stands at its first key, 0 at the others.
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        const uint32_t tile = id(i) / TILE_IDS;
        float sum = 0.0f;
        if (i == 0 || id(i - 1) / TILE_IDS != tile) {
            for (uint32_t j = i; j < n && id(j) / TILE_IDS == tile; ++j) {
                sum = __fadd_rn(sum, weight(j));
            }
        }
        shared.sums[i] = sum;
    }
    pad_sums(shared.sums, n);
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
                *choice = id(j);
                break;
            }
        }
    }
}

// Running sums of the row's tile sums in place; returns the total.
__device__ __forceinline__ float run_tiles(float* tile_sums, uint32_t tiles, PickShared& shared) {
    float total = 0.0f;
    for (uint32_t first = 0; first < tiles; first += PICK_LIST) {
        const uint32_t count = min(PICK_LIST, tiles - first);
        for (uint32_t n = threadIdx.x; n < count; n += blockDim.x) {
            shared.sums[n] = load_fresh(&tile_sums[first + n]);
        }
        pad_sums(shared.sums, count);
        __syncthreads();
        if (threadIdx.x == 0) shared.total = run_sums(shared.sums, count, total);
        __syncthreads();
        total = shared.total;
        for (uint32_t n = threadIdx.x; n < count; n += blockDim.x) {
            tile_sums[first + n] = shared.sums[n];
        }
        __syncthreads();
    }
    return total;
}

// The token of the whole row: the first tile whose running sum exceeds u times the total, then the
// first id within.
__device__ __forceinline__ void pick_from_tiles(const SampleParams& p, const DrawnRow& drawn,
                                                const Law& law, float u, PickShared& shared) {
    float* tile_sums = p.tile_sums + (size_t)drawn.row * p.tiles;
    if (threadIdx.x == 0) shared.tile = NONE;
    const float threshold = __fmul_rn(u, run_tiles(tile_sums, p.tiles, shared));
    for (uint32_t n = threadIdx.x; n < p.tiles; n += blockDim.x) {
        const float before = n == 0 ? 0.0f : tile_sums[n - 1];
        if (tile_sums[n] > threshold && !(before > threshold)) {
            shared.tile = n, shared.before = before;
        }
    }
    __syncthreads();
    if (shared.tile == NONE) return;
    const uint32_t first = shared.tile * TILE_IDS, count = min(TILE_IDS, drawn.vocab - first);
    float* staged = shared.chunk;
    stage_row(p, drawn, first, count, staged, shared);
    if (threadIdx.x > 0) return;
    float within = 0.0f;
    for (uint32_t place = 0; place < count; ++place) {
        const float x = tempered(staged[staged_at(place)], law.inverse_temperature);
        const uint64_t key = make_key(order_of(x), first + place);
        within = __fadd_rn(within, kept_weight(law, x, key));
        if (__fadd_rn(shared.before, within) > threshold) {
            p.choice[drawn.row] = first + place;
            return;
        }
    }
}

// By all blocks of the row's group; the first writes the choice.
__device__ __forceinline__ void draw(const SampleParams& p, DrawnRow drawn,
                                     const SamplingRow& options, Law law, PickShared& shared) {
    const float u =
        philox_uniform(options.seed_low, options.seed_high, drawn.plan.index, options.choice);
    if ((drawn.plan.kind & ROW_RANKED) != 0) {
        const bool open = (drawn.plan.kind & ROW_OPEN) != 0;
        const uint64_t total = open ? row_mass(p, drawn, law, shared) : 0;
        uint32_t n = 0;
        if (rank_candidates(p, drawn, options, law, total, n, shared)) {
            if (drawn.group.rank == 0) {
                pick_from_keys(law, n, u, shared, p.choice + drawn.row);
            }
            return;
        }
        law.lowest_key = lowest_kept_key(p, drawn, options, law, total, shared);
    }
    sum_tiles(p, drawn, law, shared);
    if (drawn.group.rank == 0) pick_from_tiles(p, drawn, law, u, shared);
}
