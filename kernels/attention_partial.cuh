// Partial results of the pieces of a context, and how they become one output.
#pragma once
#include "attention.cuh"
#include "attention_splits.cuh"

// Most pieces of a context of 2^20 tokens and a tree behind it.
constexpr uint32_t SPLITS_MAX = 608;
constexpr uint32_t MERGE_THREADS = 128;

// Per piece, row and query head: `out` [DIM] values relative to the piece's maximum, `sums` [2]
// (maximum, sum of the weights of one half of the keys).
struct Partials {
    float* out;
    float2* sums;
    uint32_t rows;  // capacity
    uint32_t heads;

    __device__ __forceinline__ size_t index(uint32_t split, uint32_t row, uint32_t head) const {
        return (static_cast<size_t>(split) * rows + row) * heads + head;
    }
};

// Leaves what the block's first `count` rows gathered in a piece. `place(row)` is where row `row`
// of the block belongs in `partials`.
template <class S, class Place>
__device__ __forceinline__ void store_partial(const Partials& partials, const Running<S>& running,
                                              const Exchange<S>& exchange, uint32_t parity,
                                              uint32_t count, const Place& place) {
    const Lane at;
#pragma unroll
    for (uint32_t n = 0; n < S::TILES; ++n) {
#pragma unroll
        for (uint32_t j = 0; j < 2; ++j) {
            const uint32_t row = at.pair * S::PAIR_ROWS + n * 8 + 2 * at.column + j;
            if (row >= count) continue;
            const size_t index = place(row);
            float* out = partials.out + index * S::DIM + at.half * (S::DIM / 2) + at.row;
#pragma unroll
            for (uint32_t i = 0; i < S::STRIPS; ++i) {
                out[16 * i] = running.out[i][n][j];
                out[16 * i + 8] = running.out[i][n][j + 2];
            }
            if (at.row == 0) {
                partials.sums[2 * index + at.half] =
                    make_float2(exchange.max[parity][row], exchange.sum[at.half][row]);
            }
        }
    }
}

// What a block of MERGE_THREADS needs to merge one row and head.
template <uint32_t DIM>
struct MergeShared {
    float weight[SPLITS_MAX];
    float part[MERGE_THREADS / 32];
    float out[MERGE_THREADS / 32][DIM];
};

// Weights of the pieces first .. end relative to the largest maximum; returns the reciprocal of
// the whole sum. The order depends on the pieces only.
template <class S>
__device__ __forceinline__ float merge_weights(MergeShared<S::DIM>& shared,
                                               const Partials& partials, uint32_t first,
                                               uint32_t end, uint32_t row, uint32_t head) {
    constexpr uint32_t WARPS = MERGE_THREADS / 32;
    const uint32_t warp = threadIdx.x / 32;
    float top = -INFINITY;
    for (uint32_t split = first + threadIdx.x; split < end; split += MERGE_THREADS) {
        top = fmaxf(top, partials.sums[2 * partials.index(split, row, head)].x);
    }
    top = warp_max(top);
    if (threadIdx.x % 32 == 0) shared.part[warp] = top;
    __syncthreads();
    for (uint32_t i = 0; i < WARPS; ++i) top = fmaxf(top, shared.part[i]);
    __syncthreads();
    float sum = 0.0f;
    for (uint32_t split = first + threadIdx.x; split < end; split += MERGE_THREADS) {
        const float2* halves = partials.sums + 2 * partials.index(split, row, head);
        const float weight =
            exp2_approx(__fmul_rn(__fadd_rn(halves[0].x, -top), score_scale<S>()));
        shared.weight[split - first] = weight;
        sum = __fmaf_rn(__fadd_rn(halves[0].y, halves[1].y), weight, sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) shared.part[warp] = sum;
    __syncthreads();
    sum = 0.0f;
    for (uint32_t i = 0; i < WARPS; ++i) sum = __fadd_rn(sum, shared.part[i]);
    return 1.0f / sum;
}

// The merged output of one row and head: thread t gets values 2 t and 2 t + 1 (t < DIM / 2). Warp w
// adds the pieces w, w + 4, ... in order; then the warps' sums in order.
template <class S>
__device__ __forceinline__ float2 merge(MergeShared<S::DIM>& shared, const Partials& partials,
                                        uint32_t first, uint32_t end, uint32_t row,
                                        uint32_t head) {
    constexpr uint32_t WARPS = MERGE_THREADS / 32, QUADS = S::DIM / 128;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float inverse = merge_weights<S>(shared, partials, first, end, row, head);
    float sum[QUADS][4] = {};
#pragma unroll 4
    for (uint32_t split = first + warp; split < end; split += WARPS) {
        const float weight = shared.weight[split - first];
        const float* out = partials.out + partials.index(split, row, head) * S::DIM;
#pragma unroll
        for (uint32_t quad = 0; quad < QUADS; ++quad) {
            const float4 value = *reinterpret_cast<const float4*>(out + quad * 128 + 4 * lane);
            sum[quad][0] = __fmaf_rn(value.x, weight, sum[quad][0]);
            sum[quad][1] = __fmaf_rn(value.y, weight, sum[quad][1]);
            sum[quad][2] = __fmaf_rn(value.z, weight, sum[quad][2]);
            sum[quad][3] = __fmaf_rn(value.w, weight, sum[quad][3]);
        }
    }
#pragma unroll
    for (uint32_t quad = 0; quad < QUADS; ++quad) {
        *reinterpret_cast<float4*>(&shared.out[warp][quad * 128 + 4 * lane]) =
            make_float4(sum[quad][0], sum[quad][1], sum[quad][2], sum[quad][3]);
    }
    __syncthreads();
    float2 total = make_float2(0.0f, 0.0f);
    if (threadIdx.x < S::DIM / 2) {
        for (uint32_t i = 0; i < WARPS; ++i) {
            const float2 value = *reinterpret_cast<const float2*>(&shared.out[i][2 * threadIdx.x]);
            total.x = __fadd_rn(total.x, value.x);
            total.y = __fadd_rn(total.y, value.y);
        }
    }
    return make_float2(__fmul_rn(total.x, inverse), __fmul_rn(total.y, inverse));
}
