// The k best of a row and its log sum of exponentials, from the parts that segments leave. Parts
// may come from several ranks, each with a shard of the vocabulary.
#pragma once
#include "segment.cuh"

constexpr uint32_t PARTS_MAX = 256;
constexpr uint32_t BEST_MAX = 20;

// Part of a row at (rank * rows + row) * segments + segment: the largest logit (-inf where none is
// a number), the sum of e^(z - largest), and the k best keys with global ids.
struct Parts {
    float* largest;
    float* sum;
    uint64_t* keys;
    uint32_t ranks;
    uint32_t rows;
    uint32_t segments;
    uint32_t k;
};

__device__ __forceinline__ size_t part_index(const Parts& parts, uint32_t rank, uint32_t row,
                                             uint32_t segment) {
    return ((size_t)rank * parts.rows + row) * parts.segments + segment;
}

// Makes the part of rank 0 from one segment of a row; first_id is the id of column 0. Every thread
// of the block calls it, and passes a barrier before it does so again.
template <int ROUNDS>
__device__ __forceinline__ void write_part(const Parts& parts, uint32_t row, const float* logits,
                                           uint32_t stride, uint32_t vocab, uint32_t first_id,
                                           uint32_t number, SegmentShared& shared) {
    const Segment segment = segment_of(number, vocab);
    float z[THREAD_VALUES];
    load_values(logits, stride % 4 == 0, segment, z);
    const SegmentBounds bounds = segment_bounds<ROUNDS>(z, 0, shared);
    segment_sum(z, bounds.largest, shared);
    const size_t part = part_index(parts, 0, row, number);
    segment_best(z, segment, first_id, 0, bounds.bound, parts.k, shared,
                 parts.keys + part * parts.k);
    if (threadIdx.x == 0) {
        parts.largest[part] = bounds.largest;
        parts.sum[part] = segment_total(shared);
    }
}

struct MergeShared {
    uint64_t heads[PARTS_MAX];
    uint64_t list[BEST_MAX * BEST_MAX];
    uint64_t best[BEST_MAX];
    float terms[PARTS_MAX];
    uint64_t bound;
    uint32_t count;
    uint32_t largest;
    float log_z;
};

__device__ __forceinline__ size_t part_number(const Parts& parts, uint32_t row, uint32_t n) {
    return part_index(parts, n / parts.segments, row, n % parts.segments);
}

// log_z = m + ln sum of s e^(m_part - m) over the parts in ascending order of ids; thread 0 gets
// it. terms hold the summands; m the largest m_part.
__device__ __forceinline__ float merged_log_z(const float* terms, uint32_t count, float largest) {
    float sum = 0.0f;
    for (uint32_t n = 0; n < count; ++n) sum += terms[n];
    if (largest == -CUDART_INF_F) return sum != sum ? sum : largest;
    return largest + logf(sum);
}

// Puts the k best keys of the row into shared.best, 0 where there are fewer, and shared.log_z. At
// most PARTS_MAX parts; every thread of the block calls it.
__device__ __forceinline__ void merge_parts(const Parts& parts, uint32_t row, MergeShared& shared) {
    const uint32_t count = parts.ranks * parts.segments, k = parts.k;
    if (threadIdx.x == 0) shared.count = 0, shared.bound = 0, shared.largest = 0;
    if (threadIdx.x < k) shared.best[threadIdx.x] = 0;
    __syncthreads();
    float largest = -CUDART_INF_F, sum = 0.0f;
    if (threadIdx.x < count) {
        const size_t part = part_number(parts, row, threadIdx.x);
        largest = parts.largest[part], sum = parts.sum[part];
        shared.heads[threadIdx.x] = parts.keys[part * k];
        atomicMax(&shared.largest, order_of(largest));
    }
    __syncthreads();
    const float row_largest = value_of(shared.largest);
    if (threadIdx.x < count) {
        shared.terms[threadIdx.x] =
            row_largest == -CUDART_INF_F ? sum : sum * expf(largest - row_largest);
        // The k-th largest head bounds the row: k parts reach it. Without k parts nothing does.
        const uint64_t head = shared.heads[threadIdx.x];
        uint32_t rank = 0;
        for (uint32_t other = 0; other < count; ++other) rank += shared.heads[other] > head;
        if (rank == k - 1) shared.bound = head;
    }
    __syncthreads();
    if (threadIdx.x == 0) shared.log_z = merged_log_z(shared.terms, count, row_largest);
    // At most k parts have a head above the bound, so at most k * k keys pass.
    for (uint32_t n = threadIdx.x; n < count * k; n += blockDim.x) {
        const uint64_t key = parts.keys[part_number(parts, row, n / k) * k + n % k];
        if (key > 0 && key >= shared.bound) shared.list[atomicAdd(&shared.count, 1)] = key;
    }
    __syncthreads();
    for (uint32_t n = threadIdx.x; n < shared.count; n += blockDim.x) {
        const uint64_t key = shared.list[n];
        uint32_t rank = 0;
        for (uint32_t other = 0; other < shared.count; ++other) rank += shared.list[other] > key;
        if (rank < k) shared.best[rank] = key;
    }
    __syncthreads();
}

// min(z - log_z, 0), keeping NaN; -inf in a row of -inf.
__device__ __forceinline__ float logprob_of(float z, float log_z) {
    if (log_z == -CUDART_INF_F) return -CUDART_INF_F;
    const float value = z - log_z;
    return value > 0.0f ? 0.0f : value;
}
