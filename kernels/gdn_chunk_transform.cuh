// T and P of a chunk (gdn_chunk.cuh). A block takes a key head of a chunk and its value heads.
//
// k k^T and q k^T are those of the key head; value heads differ in decays and strengths. I + A is
// inverted by blocks of 16 x 16: those on the diagonal by substitution in f32, row I of the rest from
// right to left by (I + A)^-1 (I + A) = I,
//
//     T_IJ = -(sum over K = J + 1 .. I of T_IK A_KJ) T_JJ.
#pragma once
#include "gdn_chunk.cuh"

// Value heads at a time.
constexpr int HEADS = 3;
// Columns of a system and four more: lanes that write down its columns lie in different banks.
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

// 2^x to 2^-22; 0 for large negative x.
__device__ __forceinline__ float exp2_fast(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

// 2^(x - y), or 0 unless `wanted`.
__device__ __forceinline__ float decay_between(const Sum& x, const Sum& y, bool wanted) {
    const float exponent = __fadd_rn(__fsub_rn(x.high, y.high), __fsub_rn(x.low, y.low));
    return exp2_fast(wanted ? exponent : -INFINITY);
}

// g as the exponent of 2.
__device__ __forceinline__ Sum exponent_of(float g) {
    constexpr float LOG2_E = 1.4426950408889634, REST = 1.4426950408889634 - (double)LOG2_E;
    const float high = __fmul_rn(g, LOG2_E);
    return {high, __fmaf_rn(g, REST, __fmaf_rn(g, LOG2_E, -high))};
}

struct alignas(16) TransformShared {
    union {
        struct {
            bf16 key[CHUNK * KEY_DIM];
            bf16 query[CHUNK * KEY_DIM];
        };
        // A_ij at [j][i], and in the blocks on the diagonal the inverse in its place.
        float system[HEADS][CHUNK * SYSTEM_STRIDE];
    };
    // G as the exponent of 2, and beta; g = beta = 0 in rows that the chunk lacks.
    Sum decay_log[HEADS][CHUNK];
    float beta[HEADS][CHUNK];
    float key_factor[CHUNK];
    float query_factor[CHUNK];
    bool found;
    Sequence sequence;
};

// 16 rows of a product of two tiles, 16 x 8 at a time.
using Products = float[CHUNK / 8][4];

// Finds the sequence whose chunk this is.
__device__ __forceinline__ bool find_sequence(TransformShared& shared, const GdnChunkParams& p,
                                              uint32_t chunk) {
    if (threadIdx.x == 0) shared.found = false;
    __syncthreads();
    for (uint32_t number = threadIdx.x; number < p.batch.live[1]; number += THREADS) {
        const Sequence sequence = sequence_of(p, number);
        if (chunk - sequence.first_chunk < sequence.chunks) {
            shared.sequence = sequence;
            shared.found = true;
        }
    }
    __syncthreads();
    return shared.found;
}

__device__ __forceinline__ void load_scales(TransformShared& shared, const GdnChunkParams& p,
                                            const Place& place, uint32_t key_head) {
    const uint32_t row = threadIdx.x;
    if (row >= CHUNK) return;
    const bool valid = holds(place, row);
    const float* scale =
        p.scale + (valid ? ((place.origin + row) * p.sizes.key_heads + key_head) * SCALES : 0u);
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
        const uint32_t at = valid ? (place.origin + row) * p.sizes.value_heads + first + head : 0;
        const float2 gate = reinterpret_cast<const float2*>(p.gate)[at];
        sum[x] = exponent_of(valid ? gate.x : 0);
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

// The block row that a warp has: not the same warp in all blocks of the grid, since the last has most
// to do and warps have fixed schedulers.
__device__ __forceinline__ uint32_t block_row() {
    return (threadIdx.x / 32 + blockIdx.x + blockIdx.y) % WARPS;
}

// Block row `own` of k k^T and q k^T up to the block on the diagonal.
__device__ __forceinline__ void multiply(Products& key, Products& query,
                                         const TransformShared& shared, uint32_t own) {
    const uint32_t lane = threadIdx.x % 32, row = own * BLOCK + lane % 16;
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
            if (block > own) continue;
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

// A block of 16 x 16 as accumulators: columns 0 .. 8 and 8 .. 16.
struct Square {
    float half[2][4];
};

// Writes a block of T or P.
__device__ __forceinline__ void store_block(uint4* matrix, uint32_t block, const Square& x) {
    uint4 high, low;
    split(high.x, low.x, x.half[0][0], x.half[0][1]);
    split(high.y, low.y, x.half[1][0], x.half[1][1]);
    split(high.z, low.z, x.half[0][2], x.half[0][3]);
    split(high.w, low.w, x.half[1][2], x.half[1][3]);
    uint4* to = matrix + block * BLOCK_PIECES + threadIdx.x % 32;
    to[0] = high;
    to[32] = low;
}

// What all value heads share: k_i.k_j r_i r_j and q_i.k_j p_i r_j.
__device__ __forceinline__ void normalise(Products& key, Products& query,
                                          const TransformShared& shared, uint32_t own) {
    const uint32_t lane = threadIdx.x % 32, top = own * BLOCK + lane / 4;
    const float of_key[2] = {shared.key_factor[top], shared.key_factor[top + 8]};
    const float of_query[2] = {shared.query_factor[top], shared.query_factor[top + 8]};
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++) {
        if (n / 2 > own) continue;
        const float2 factor =
            reinterpret_cast<const float2*>(shared.key_factor)[n * 4 + lane % 4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float column = e % 2 == 0 ? factor.x : factor.y;
            key[n][e] *= column * of_key[e / 2];
            query[n][e] *= column * of_query[e / 2];
        }
    }
}

// Block row `own` of one value head: A to shared memory, P to global.
__device__ __forceinline__ void weigh(TransformShared& shared, const Products& key,
                                      const Products& query, uint32_t own, uint32_t head,
                                      uint4* attention) {
    const uint32_t lane = threadIdx.x % 32, top = own * BLOCK + lane / 4;
    const Sum row_sum[2] = {shared.decay_log[head][top], shared.decay_log[head][top + 8]};
    const float beta[2] = {shared.beta[head][top], shared.beta[head][top + 8]};
    float* system = shared.system[head];
#pragma unroll
    for (int block = 0; block < BLOCK_ROWS; block++) {
        if (block > own) continue;
        Square weighed;
#pragma unroll
        for (int x = 0; x < 8; x++) {
            const int half = x / 4, e = x % 4, n = 2 * block + half;
            const uint32_t i = top + e / 2 * 8, j = n * 8 + lane % 4 * 2 + e % 2;
            const float decay =
                decay_between(row_sum[e / 2], shared.decay_log[head][j], j <= i);
            weighed.half[half][e] = query[n][e] * decay;
            if (j < i) system[j * SYSTEM_STRIDE + i] = key[n][e] * (decay * beta[e / 2]);
        }
        store_block(attention, own * (own + 1) / 2 + block, weighed);
    }
}

// Inverts the blocks on the diagonal of all systems, one at a time for 16 lanes. Lane c finds column
// c by forward substitution and leaves it where row c of the transposed block was.
__device__ __forceinline__ void invert_diagonal(TransformShared& shared, uint32_t heads) {
    const uint32_t column = threadIdx.x % BLOCK;
    for (uint32_t warp = threadIdx.x / 32; warp < heads * BLOCK_ROWS / 2; warp += WARPS) {
        const uint32_t block = 2 * warp + threadIdx.x / BLOCK % 2;
        float* square = shared.system[block / BLOCK_ROWS] +
                        block % BLOCK_ROWS * BLOCK * (SYSTEM_STRIDE + 1);
        float x[BLOCK];
#pragma unroll
        for (int r = 0; r < BLOCK; r++) x[r] = r == column ? 1 : 0;
#pragma unroll
        for (int k = 0; k < BLOCK - 1; k++) {
#pragma unroll
            for (int r = k + 1; r < BLOCK; r++) {
                x[r] = __fmaf_rn(-square[k * SYSTEM_STRIDE + r], x[k], x[r]);
            }
        }
        __syncwarp();
        float4* to = reinterpret_cast<float4*>(square + column * SYSTEM_STRIDE);
#pragma unroll
        for (int r = 0; r < BLOCK; r += 4) {
            to[r / 4] = make_float4(x[r], x[r + 1], x[r + 2], x[r + 3]);
        }
    }
}

// The inverse of a block on the diagonal.
__device__ __forceinline__ Square load_inverse(const float* system, uint32_t block) {
    const uint32_t lane = threadIdx.x % 32;
    const float* square = system + block * BLOCK * (SYSTEM_STRIDE + 1);
    Square x;
#pragma unroll
    for (int y = 0; y < 8; y++) {
        const uint32_t row = y % 4 / 2 * 8 + lane / 4, column = y / 4 * 8 + lane % 4 * 2 + y % 2;
        x.half[y / 4][y % 4] = square[column * SYSTEM_STRIDE + row];
    }
    return x;
}

// sum += x M, M = block (row, column) of A or of the inverse as right operand: pairs of rows of a
// column lie side by side.
__device__ __forceinline__ void add_product(Square& sum, const SplitOperand& x, const float* system,
                                            uint32_t row, uint32_t column) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float* from = system + (column * BLOCK + half * 8 + lane / 4) * SYSTEM_STRIDE +
                            row * BLOCK + lane % 4 * 2;
        const float2 top = *reinterpret_cast<const float2*>(from);
        const float2 bottom = *reinterpret_cast<const float2*>(from + 8);
        uint32_t high[2], low[2];
        split(high[0], low[0], top.x, top.y);
        split(high[1], low[1], bottom.x, bottom.y);
        mma_bf16(sum.half[half], x.high, high[0], high[1]);
        mma_bf16(sum.half[half], x.high, low[0], low[1]);
        mma_bf16(sum.half[half], x.low, high[0], high[1]);
    }
}

// T = inverse diag(beta).
__device__ __forceinline__ void store_transform(uint4* transform, uint32_t row, uint32_t column,
                                                Square x, const float (&beta)[CHUNK]) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int y = 0; y < 8; y++) {
        x.half[y / 4][y % 4] *= beta[column * BLOCK + y / 4 * 8 + lane % 4 * 2 + y % 2];
    }
    store_block(transform, row * (row + 1) / 2 + column, x);
}

// Block row ROW of the inverse of one head, from the diagonal to the left.
template <int ROW>
__device__ __forceinline__ void invert_row(const TransformShared& shared, uint32_t head,
                                           uint4* transform) {
    const float* system = shared.system[head];
    const Square diagonal = load_inverse(system, ROW);
    store_transform(transform, ROW, ROW, diagonal, shared.beta[head]);
    SplitOperand known[ROW + 1];
    split(known[ROW], diagonal.half[0], diagonal.half[1]);
#pragma unroll
    for (int column = ROW - 1; column >= 0; column--) {
        Square sum = {}, found = {};
#pragma unroll
        for (int k = column + 1; k <= ROW; k++) add_product(sum, known[k], system, k, column);
#pragma unroll
        for (int y = 0; y < 8; y++) sum.half[y / 4][y % 4] = -sum.half[y / 4][y % 4];
        SplitOperand operand;
        split(operand, sum.half[0], sum.half[1]);
        add_product(found, operand, system, column, column);
        store_transform(transform, ROW, column, found, shared.beta[head]);
        split(known[column], found.half[0], found.half[1]);
    }
}

__device__ __forceinline__ void invert_row(const TransformShared& shared, uint32_t own,
                                           uint32_t head, uint4* transform) {
    if (own == 0) invert_row<0>(shared, head, transform);
    if (own == 1) invert_row<1>(shared, head, transform);
    if (own == 2) invert_row<2>(shared, head, transform);
    if (own == 3) invert_row<3>(shared, head, transform);
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

// Value heads first .. first + heads of the key head whose tiles are under way; `matrix` numbers the
// first of them in `matrices`.
__device__ __forceinline__ void transform_heads(TransformShared& shared, const GdnChunkParams& p,
                                                size_t matrix, uint32_t heads) {
    const uint32_t own = block_row();
    uint4* matrices = p.matrices + matrix * CHUNK_PIECES;
    Products key, query;
    copy_wait<0>();
    __syncthreads();
    multiply(key, query, shared, own);
    normalise(key, query, shared, own);
    __syncthreads();
    for (uint32_t head = 0; head < heads; head++) {
        weigh(shared, key, query, own, head, matrices + head * CHUNK_PIECES + MATRIX_PIECES);
        store_factors(shared, head, p.factors[matrix + head]);
    }
    __syncthreads();
    invert_diagonal(shared, heads);
    __syncthreads();
    for (uint32_t head = 0; head < heads; head++) {
        invert_row(shared, own, head, matrices + head * CHUNK_PIECES);
    }
}

// `part` is a key head, or HEADS of its value heads if it has more.
__device__ __forceinline__ void transform(TransformShared& shared, const GdnChunkParams& p,
                                          uint32_t part, uint32_t chunk) {
    if (!find_sequence(shared, p, chunk)) return;
    const Sequence sequence = shared.sequence;
    const Place place = place_of(sequence, chunk - sequence.first_chunk);
    const uint32_t group = p.sizes.value_heads / p.sizes.key_heads;
    const uint32_t parts = (group + HEADS - 1) / HEADS;
    const uint32_t key_head = part / parts, done = part % parts * HEADS;
    const uint32_t first = key_head * group + done, heads = min(group - done, HEADS);
    fetch_tile<16>(shared.key, p, place, key_width(p.sizes) + key_head * KEY_DIM);
    fetch_tile<16>(shared.query, p, place, key_head * KEY_DIM);
    copy_commit();
    load_scales(shared, p, place, key_head);
    load_gates(shared, p, place, first, heads);
    transform_heads(shared, p, (size_t)chunk * p.sizes.value_heads + first, heads);
}
