// T and P of a chunk (gdn_chunk.cuh). A block takes a key head of a chunk and its value heads.
//
// k k^T and q k^T are those of the key head; value heads differ in decays and strengths. The system
// I + A is solved in f32, 16 rows at a time, a thread for each column of the inverse.
#pragma once
#include "gdn_chunk.cuh"

// Value heads at a time.
constexpr int HEADS = 3;
// Columns of a system and four more: 2 x 4 lanes that write down columns lie in different banks.
constexpr int SYSTEM_STRIDE = CHUNK + 4;

// A sum as high + low: differences of sums of strong decays stay exact.
struct Sum {
    float high;
    float low;
};

__device__ __forceinline__ Sum operator+(const Sum& x, const Sum& y) {
    const float high = __fadd_rn(x.high, y.high), of_y = __fsub_rn(high, x.high);
    const float rest =
        __fadd_rn(__fsub_rn(x.high, __fsub_rn(high, of_y)), __fsub_rn(y.high, of_y));
    return {high, __fadd_rn(rest, __fadd_rn(x.low, y.low))};
}

// e^(x - y), or 0 unless `wanted`.
__device__ __forceinline__ float decay_between(const Sum& x, const Sum& y, bool wanted) {
    const float exponent = __fadd_rn(__fsub_rn(x.high, y.high), __fsub_rn(x.low, y.low));
    return expf(wanted ? exponent : -INFINITY);
}

struct alignas(16) TransformShared {
    union {
        struct {
            bf16 key[CHUNK * KEY_DIM];
            bf16 query[CHUNK * KEY_DIM];
        };
        // A_ij at [j][i] above the diagonal; (I + A)^-1 at [i][j] on and under it.
        float system[HEADS][CHUNK * SYSTEM_STRIDE];
    };
    // G and beta of rows; g = beta = 0 in rows that the chunk lacks.
    Sum decay_log[HEADS][CHUNK];
    float beta[HEADS][CHUNK];
    float key_factor[CHUNK];
    float query_factor[CHUNK];
    uint32_t sequence;
};

// 16 rows of a product of two tiles, 16 x 8 at a time.
using Products = float[CHUNK / 8][4];

// The sequence whose chunk this is, or NONE.
__device__ __forceinline__ uint32_t find_sequence(TransformShared& shared, const GdnChunkParams& p,
                                                  uint32_t chunk) {
    if (threadIdx.x == 0) shared.sequence = NONE;
    __syncthreads();
    for (uint32_t number = threadIdx.x; number < p.batch.live[1]; number += THREADS) {
        const Sequence sequence = sequence_of(p, number);
        if (chunk - sequence.first_chunk < sequence.chunks) shared.sequence = number;
    }
    __syncthreads();
    return shared.sequence;
}

__device__ __forceinline__ void load_scales(TransformShared& shared, const GdnChunkParams& p,
                                            const Place& place, uint32_t key_head) {
    const uint32_t row = threadIdx.x;
    if (row >= CHUNK) return;
    const bool valid = holds(place, row);
    const float* scale =
        p.scale + (valid ? ((place.origin + row) * p.sizes.key_heads + key_head) * SCALES : 0);
    shared.query_factor[row] = valid ? scale[0] : 0;
    shared.key_factor[row] = valid ? scale[1] : 0;
}

// G and beta of value head first + warp.
__device__ __forceinline__ void load_gates(TransformShared& shared, const GdnChunkParams& p,
                                           const Place& place, uint32_t first, uint32_t heads) {
    const uint32_t lane = threadIdx.x % 32, head = threadIdx.x / 32;
    if (head >= heads) return;
    Sum sum[2];
#pragma unroll
    for (int x = 0; x < 2; x++) {
        const uint32_t row = 2 * lane + x;
        const bool valid = holds(place, row);
        const size_t at = valid ? (place.origin + row) * p.sizes.value_heads + first + head : 0;
        const float2 gate = reinterpret_cast<const float2*>(p.gate)[at];
        sum[x] = {valid ? gate.x : 0, 0};
        shared.beta[head][row] = valid ? gate.y : 0;
    }
    sum[1] = sum[0] + sum[1];
    Sum all = sum[1];
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2) {
        const Sum other = {__shfl_up_sync(~0u, all.high, step), __shfl_up_sync(~0u, all.low, step)};
        if (lane >= step) all = other + all;
    }
    const Sum front = {__shfl_up_sync(~0u, all.high, 1), __shfl_up_sync(~0u, all.low, 1)};
    shared.decay_log[head][2 * lane] = lane == 0 ? sum[0] : front + sum[0];
    shared.decay_log[head][2 * lane + 1] = all;
}

// Rows 16 warp .. 16 warp + 16 of k k^T and q k^T up to the block on the diagonal.
__device__ __forceinline__ void multiply(Products& key, Products& query,
                                         const TransformShared& shared) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t row = warp * BLOCK + lane % 16;
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) key[n][e] = query[n][e] = 0;
    }
#pragma unroll
    for (int step = 0; step < KEY_DIM / 16; step++) {
        uint32_t k[4], q[4];
        load_matrix_x4(k, tile_address<16>(shared.key, row, 2 * step + lane / 16));
        load_matrix_x4(q, tile_address<16>(shared.query, row, 2 * step + lane / 16));
#pragma unroll
        for (int block = 0; block < BLOCK_ROWS; block++) {
            if (block > warp) continue;
            uint32_t b[4];
            const uint32_t from = block * BLOCK + lane / 16 * 8 + lane % 8;
            load_matrix_x4(b, tile_address<16>(shared.key, from, 2 * step + lane / 8 % 2));
            mma_bf16(key[2 * block], k, b[0], b[1]);
            mma_bf16(key[2 * block + 1], k, b[2], b[3]);
            mma_bf16(query[2 * block], q, b[0], b[1]);
            mma_bf16(query[2 * block + 1], q, b[2], b[3]);
        }
    }
}

// Writes a block of T or P from accumulators: 16 x 8 values left, 16 x 8 right.
__device__ __forceinline__ void store_block(uint4* matrix, int block, const float (&left)[4],
                                            const float (&right)[4]) {
    uint4 high, low;
    split(high.x, low.x, left[0], left[1]);
    split(high.y, low.y, right[0], right[1]);
    split(high.z, low.z, left[2], left[3]);
    split(high.w, low.w, right[2], right[3]);
    uint4* to = matrix + block * BLOCK_PIECES + threadIdx.x % 32;
    to[0] = high;
    to[32] = low;
}

// A of one value head to shared memory, P to global.
__device__ __forceinline__ void weigh(TransformShared& shared, const Products& key,
                                      const Products& query, uint32_t head, uint4* attention) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float* system = shared.system[head];
#pragma unroll
    for (int block = 0; block < BLOCK_ROWS; block++) {
        if (block > warp) continue;
        float weighed[2][4];
#pragma unroll
        for (int x = 0; x < 8; x++) {
            const int n = 2 * block + x / 4, e = x % 4;
            const uint32_t i = warp * BLOCK + e / 2 * 8 + lane / 4;
            const uint32_t j = n * 8 + lane % 4 * 2 + e % 2;
            const float decay = decay_between(shared.decay_log[head][i], shared.decay_log[head][j],
                                              j <= i) * shared.key_factor[j];
            weighed[x / 4][e] = query[n][e] * (decay * shared.query_factor[i]);
            if (j < i) {
                system[j * SYSTEM_STRIDE + i] =
                    key[n][e] * (decay * (shared.beta[head][i] * shared.key_factor[i]));
            }
        }
        store_block(attention, warp * (warp + 1) / 2 + block, weighed[0], weighed[1]);
    }
}

// Column `column` of (I + A)^-1, whose rows in front of block row `first` are zero: forward
// substitution, 16 rows at a time.
__device__ __forceinline__ void solve_column(float* system, uint32_t column, uint32_t first) {
#pragma unroll 1
    for (uint32_t block = first; block < BLOCK_ROWS; block++) {
        float* rows = system + block * BLOCK;
        float x[BLOCK];
#pragma unroll
        for (int r = 0; r < BLOCK; r++) x[r] = block * BLOCK + r == column ? 1 : 0;
#pragma unroll 4
        for (uint32_t k = first * BLOCK; k < block * BLOCK; k++) {
            const float known = k >= column ? system[k * SYSTEM_STRIDE + column] : 0;
#pragma unroll
            for (int r = 0; r < BLOCK; r += 4) {
                const float4 a = *reinterpret_cast<const float4*>(rows + k * SYSTEM_STRIDE + r);
                x[r] = __fmaf_rn(-a.x, known, x[r]);
                x[r + 1] = __fmaf_rn(-a.y, known, x[r + 1]);
                x[r + 2] = __fmaf_rn(-a.z, known, x[r + 2]);
                x[r + 3] = __fmaf_rn(-a.w, known, x[r + 3]);
            }
        }
        float* square = rows + block * BLOCK * SYSTEM_STRIDE;
#pragma unroll
        for (int k = 0; k < BLOCK; k++) {
#pragma unroll
            for (int r = k + 1; r < BLOCK; r++) {
                x[r] = __fmaf_rn(-square[k * SYSTEM_STRIDE + r], x[k], x[r]);
            }
        }
#pragma unroll
        for (int r = 0; r < BLOCK; r++) {
            const uint32_t row = block * BLOCK + r;
            if (row >= column) system[row * SYSTEM_STRIDE + column] = x[r];
        }
    }
}

// The systems of `heads` heads: half of the columns of one at a time, long halves first.
__device__ __forceinline__ void solve(TransformShared& shared, uint32_t heads) {
    for (uint32_t half = threadIdx.x / 32; half < 2 * heads; half += WARPS) {
        const bool upper = half >= heads;
        solve_column(shared.system[upper ? half - heads : half],
                     (upper ? 32 : 0) + threadIdx.x % 32, upper ? 2 : 0);
    }
}

// One block of T of a head.
__device__ __forceinline__ void store_transform(const TransformShared& shared, uint32_t head,
                                                uint32_t block, uint4* transform) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t row = block < 1 ? 0 : block < 3 ? 1 : block < 6 ? 2 : 3;
    const uint32_t column = block - row * (row + 1) / 2;
    float values[2][4];
#pragma unroll
    for (int x = 0; x < 8; x++) {
        const uint32_t i = row * BLOCK + x % 4 / 2 * 8 + lane / 4;
        const uint32_t j = column * BLOCK + x / 4 * 8 + lane % 4 * 2 + x % 2;
        const float inverse = j <= i ? shared.system[head][i * SYSTEM_STRIDE + j] : 0;
        values[x / 4][x % 4] = inverse * shared.beta[head][j];
    }
    store_block(transform, block, values[0], values[1]);
}

__device__ __forceinline__ void store_factors(const TransformShared& shared, uint32_t head,
                                              Factors& to) {
    const uint32_t row = threadIdx.x;
    if (row >= CHUNK) return;
    const Sum &sum = shared.decay_log[head][row], &last = shared.decay_log[head][CHUNK - 1];
    const float decay = decay_between(sum, {0, 0}, true);
    to.read_key[row] = decay * shared.key_factor[row];
    to.read_query[row] = decay * shared.query_factor[row];
    to.write[row] = decay_between(last, sum, true) * shared.key_factor[row];
    to.decay[row] = decay_between(last, {0, 0}, true);
}

// Value heads first .. first + heads.
__device__ __forceinline__ void transform_heads(TransformShared& shared, const GdnChunkParams& p,
                                                const Products& key, const Products& query,
                                                size_t first, uint32_t heads) {
    uint4* matrices = p.matrices + first * CHUNK_PIECES;
    for (uint32_t head = 0; head < heads; head++) {
        weigh(shared, key, query, head, matrices + head * CHUNK_PIECES + MATRIX_PIECES);
        store_factors(shared, head, p.factors[first + head]);
    }
    __syncthreads();
    solve(shared, heads);
    __syncthreads();
    for (uint32_t x = threadIdx.x / 32; x < heads * BLOCKS; x += WARPS) {
        store_transform(shared, x / BLOCKS, x % BLOCKS, matrices + x / BLOCKS * CHUNK_PIECES);
    }
}

__device__ __forceinline__ void transform(TransformShared& shared, const GdnChunkParams& p,
                                          uint32_t key_head, uint32_t chunk) {
    const uint32_t number = find_sequence(shared, p, chunk);
    if (number == NONE) return;
    const Sequence sequence = sequence_of(p, number);
    const Place place = place_of(sequence, chunk - sequence.first_chunk);
    const uint32_t group = p.sizes.value_heads / p.sizes.key_heads;
    fetch_tile<16>(shared.key, p, place, key_width(p.sizes) + key_head * KEY_DIM);
    fetch_tile<16>(shared.query, p, place, key_head * KEY_DIM);
    copy_commit();
    load_scales(shared, p, place, key_head);
    Products key, query;
    for (uint32_t done = 0; done < group; done += HEADS) {
        const uint32_t first = key_head * group + done, heads = min(group - done, HEADS);
        load_gates(shared, p, place, first, heads);
        if (done == 0) {
            copy_wait<0>();
            __syncthreads();
            multiply(key, query, shared);
        }
        __syncthreads();
        transform_heads(shared, p, key, query, (size_t)chunk * p.sizes.value_heads + first, heads);
        __syncthreads();
    }
}
