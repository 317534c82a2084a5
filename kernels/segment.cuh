// A row of logits in segments of fixed length, one block each: loading, the k best, and the sum of
// exponentials. A segment's result depends on its values only.
#pragma once
#include <math_constants.h>
#include <stdint.h>

#include "device.cuh"
#include "order.cuh"

// 248,320 / 32: shards of that vocabulary over up to eight ranks are whole segments.
constexpr uint32_t SEGMENT_IDS = 7760;
constexpr uint32_t SEGMENT_THREADS = 512;
constexpr uint32_t SEGMENT_WARPS = SEGMENT_THREADS / 32;
constexpr int THREAD_VALUES = 16;
// Values that pass the bound and are ranked against each other; a few dozen for usual logits.
constexpr uint32_t SEGMENT_LIST = 256;

static_assert(SEGMENT_IDS <= SEGMENT_THREADS * THREAD_VALUES, "a segment fits the registers");

// Ids first .. end of a row.
struct Segment {
    uint32_t first;
    uint32_t end;
};

__device__ __forceinline__ Segment segment_of(uint32_t number, uint32_t vocab) {
    const uint32_t first = number * SEGMENT_IDS;
    return {first, min(first + SEGMENT_IDS, vocab)};
}

// Value i of this thread in its segment: groups of four neighbours.
__device__ __forceinline__ uint32_t place_of(int i) {
    return (i / 4 * SEGMENT_THREADS + threadIdx.x) * 4 + i % 4;
}

// This thread's values; -inf beyond the end. Whole groups of four are aligned if the stride is.
__device__ __forceinline__ void load_values(const float* row, bool aligned, Segment segment,
                                            float (&z)[THREAD_VALUES]) {
#pragma unroll
    for (int i = 0; i < THREAD_VALUES; i += 4) {
        const uint32_t id = segment.first + place_of(i);
        if (aligned && id + 4 <= segment.end) {
            const float4 four = *reinterpret_cast<const float4*>(row + id);
            z[i] = four.x, z[i + 1] = four.y, z[i + 2] = four.z, z[i + 3] = four.w;
        } else {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                z[i + j] = id + j < segment.end ? row[id + j] : -CUDART_INF_F;
            }
        }
    }
}

struct SegmentShared {
    uint64_t list[SEGMENT_LIST];
    uint64_t warp_key[SEGMENT_WARPS];
    float warp_sum[SEGMENT_WARPS];
    uint32_t warp_largest[SEGMENT_WARPS];
    uint32_t warp_bound[SEGMENT_WARPS];
    uint32_t count;
};

// The largest logit that is a number (-inf if none is), and a bound that at least
// ROUNDS * SEGMENT_WARPS values reach, or floor where there may not be so many.
struct SegmentBounds {
    float largest;
    uint32_t bound;
};

// Every warp finds the ROUNDS largest of its lanes' largest values; the lowest of the last ones
// bounds the segment. Values of -inf and NaN bound nothing.
template <int ROUNDS>
__device__ __forceinline__ SegmentBounds segment_bounds(const float (&z)[THREAD_VALUES],
                                                        uint32_t floor, SegmentShared& shared) {
    float best = -CUDART_INF_F;
#pragma unroll
    for (int i = 0; i < THREAD_VALUES; ++i) best = fmaxf(best, z[i]);
    uint32_t mine = order_of(best), largest = 0, bound = 0;
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        bound = __reduce_max_sync(~0u, mine);
        if (round == 0) largest = bound;
        const uint32_t lane = __ffs(__ballot_sync(~0u, mine == bound)) - 1;
        if (threadIdx.x % 32 == lane) mine = 0;
    }
    if (threadIdx.x % 32 == 0) {
        shared.warp_largest[threadIdx.x / 32] = largest;
        shared.warp_bound[threadIdx.x / 32] = bound;
    }
    if (threadIdx.x == 0) shared.count = 0;
    __syncthreads();
#pragma unroll
    for (uint32_t warp = 0; warp < SEGMENT_WARPS; ++warp) {
        largest = max(largest, shared.warp_largest[warp]);
        bound = min(bound, shared.warp_bound[warp]);
    }
    return {value_of(largest), bound > ORDER_NEGATIVE_INFINITY ? bound : floor};
}

// 2^x within 2 units in the last place; results below 2^-126 are 0.
__device__ __forceinline__ float exp2_fast(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// sum e^(z - largest) over the thread's values in order, then a tree over lanes; segment_total adds
// the warps, after a barrier. 0 where all are -inf, NaN where one is NaN or +inf.
__device__ __forceinline__ void segment_sum(const float (&z)[THREAD_VALUES], float largest,
                                            SegmentShared& shared) {
    constexpr float LOG2_E = 1.44269504088896340736f;
    float sum = 0.0f;
    // e^(-inf - 0) is 0 as well, without -inf - -inf.
    const float base = largest == -CUDART_INF_F ? 0.0f : largest;
#pragma unroll
    for (int i = 0; i < THREAD_VALUES; ++i) sum += exp2_fast((z[i] - base) * LOG2_E);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) shared.warp_sum[threadIdx.x / 32] = sum;
}

__device__ __forceinline__ float segment_total(const SegmentShared& shared) {
    float sum = shared.warp_sum[0];
    for (uint32_t warp = 1; warp < SEGMENT_WARPS; ++warp) sum += shared.warp_sum[warp];
    return sum;
}

// The best key below `below` among values whose order is at least floor; 0 if there is none.
__device__ __forceinline__ uint64_t next_key(const float (&z)[THREAD_VALUES], Segment segment,
                                             uint32_t first_id, uint32_t floor, uint64_t below,
                                             SegmentShared& shared) {
    uint64_t best = 0;
#pragma unroll 1
    for (int i = 0; i < THREAD_VALUES; ++i) {
        const uint32_t id = segment.first + place_of(i), order = order_of(z[i]);
        const uint64_t key = make_key(order, first_id + id);
        if (id < segment.end && order >= floor && key < below && key > best) best = key;
    }
    best = warp_largest(best);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared.warp_key[threadIdx.x / 32] = best;
    __syncthreads();
#pragma unroll
    for (uint32_t warp = 0; warp < SEGMENT_WARPS; ++warp) {
        best = max(best, shared.warp_key[warp]);
    }
    return best;
}

// Writes the k best keys of the segment in descending order, 0 where there are fewer, among values
// whose order is at least floor; k is at most what the bound guarantees. Ids count from first_id.
__device__ __forceinline__ void segment_best(const float (&z)[THREAD_VALUES], Segment segment,
                                             uint32_t first_id, uint32_t floor, uint32_t bound,
                                             uint32_t k, SegmentShared& shared, uint64_t* best) {
    // The bound 0 lets NaN pass, which no comparison of floats does.
    const float lowest = value_of(bound);
#pragma unroll
    for (int i = 0; i < THREAD_VALUES; ++i) {
        const uint32_t id = segment.first + place_of(i);
        if ((z[i] >= lowest || bound == 0) && id < segment.end) {
            const uint32_t entry = atomicAdd(&shared.count, 1);
            if (entry < SEGMENT_LIST) shared.list[entry] = make_key(order_of(z[i]), first_id + id);
        }
    }
    __syncthreads();
    const uint32_t count = shared.count;
    if (count <= SEGMENT_LIST) {
        if (threadIdx.x < count) {
            const uint64_t key = shared.list[threadIdx.x];
            uint32_t rank = 0;
            for (uint32_t other = 0; other < count; ++other) rank += shared.list[other] > key;
            if (rank < k) best[rank] = key;
        } else if (threadIdx.x < k) {
            best[threadIdx.x] = 0;
        }
        return;
    }
    // Many equal values: one key after the other. The copy is indexed in a loop and so stands in
    // local memory; the registers stay with the usual way.
    float values[THREAD_VALUES];
#pragma unroll
    for (int i = 0; i < THREAD_VALUES; ++i) values[i] = z[i];
    uint64_t key = ~0ull;
    for (uint32_t rank = 0; rank < k; ++rank) {
        key = next_key(values, segment, first_id, floor, key, shared);
        if (threadIdx.x == 0) best[rank] = key;
    }
}
