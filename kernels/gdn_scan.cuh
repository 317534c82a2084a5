// One step of the recurrence, and what a block keeps at hand for it.
//
// With S the state (columns of v against rows of k, kept transposed: [column][row]), k and q as
// they stand behind the convolution and d = S k, f = S q taken from the state in front of the row:
//
//     w = r_k beta (v - e^g r_k d)     S <- e^g S + w k     o = r_q (e^g f + (k.q) w)
//
// which is the recurrence on normalised q and k with nothing normalised element by element. Columns
// never mix. Eight lanes share a column, 16 rows of k each: that alone fixes the order of the sums
// and so the bits. A lane has parts of 4 columns, a warp 16 columns, a block 64: one warp for each
// scheduler of a multiprocessor. A tree, a replay and a single row all run `visit`, which
// is why they agree to the bit.
//
// The loop over rows stays below 700 instructions: a longer one does not fit the innermost
// instruction cache and runs at half the speed.
#pragma once
#include "gdn.cuh"

constexpr int SHARE = 8;
constexpr int LANE_ROWS = KEY_DIM / SHARE;
constexpr int LANE_COLUMNS = 4;
constexpr int WARP_COLUMNS = 32 / SHARE * LANE_COLUMNS;
constexpr int COLUMNS = 4 * WARP_COLUMNS;
constexpr int SLICES = VALUE_DIM / COLUMNS;
constexpr int THREADS = 128;
// Rows staged at a time.
constexpr int CHUNK = 16;
// A state of the block's columns in units of 16 bytes.
constexpr int STATE_PIECES = COLUMNS * KEY_DIM / 4;

using LaneState = float[LANE_COLUMNS][LANE_ROWS];
using LaneSums = float[LANE_COLUMNS];
using LaneVector = float[LANE_ROWS];

// A row as it comes from global memory, and its scalars.
struct alignas(16) RawRow {
    // k, then q.
    bf16 key_query[2 * KEY_DIM];
    bf16 value[COLUMNS];
};
struct alignas(16) RawScalars {
    float decay_log;
    float beta;
    float query_factor;
    float key_factor;
    float product;
};

// A row as the lanes read it. `value` is r_k beta v.
struct alignas(16) Row {
    float key_query[2 * KEY_DIM];
    float value[COLUMNS];
};
// decay e^g; error r_k^2 beta e^g; read r_q e^g; direct r_q (k.q).
struct alignas(16) RowScalars {
    float decay;
    float error;
    float read;
    float direct;
};

struct Shared {
    RawRow raw[CHUNK];
    RawScalars raw_scalars[CHUNK];
    // One more than a chunk has, and one more plan word: both are read ahead.
    Row rows[CHUNK + 1];
    uint32_t plan[TREE_ROWS_MAX + 1];
    RowScalars scalars[CHUNK];
    // One saved state; deeper ones go to global memory.
    float4 slot[STATE_PIECES];
};

struct Lane {
    // Rows of k: four from 4 share on in each 32.
    uint32_t share;
    // First of its columns within the block.
    uint32_t column;
};

__device__ __forceinline__ Lane this_lane() {
    return {threadIdx.x % SHARE, threadIdx.x / SHARE * LANE_COLUMNS};
}

__device__ __forceinline__ void put_piece(float* x, float4 piece) {
    x[0] = piece.x;
    x[1] = piece.y;
    x[2] = piece.z;
    x[3] = piece.w;
}

__device__ __forceinline__ float4 get_piece(const float* x) {
    return make_float4(x[0], x[1], x[2], x[3]);
}

// Piece j of the lane's rows.
__device__ __forceinline__ void load_piece(LaneVector& x, const float* vector, int j,
                                           uint32_t share) {
    put_piece(x + 4 * j, reinterpret_cast<const float4*>(vector)[j * SHARE + share]);
}

__device__ __forceinline__ void load_vector(LaneVector& x, const float* vector, uint32_t share) {
#pragma unroll
    for (int j = 0; j < LANE_ROWS / 4; j++) load_piece(x, vector, j, share);
}

// sum[c] += s[c][FROM .. TO] x[FROM .. TO], in order.
template <int FROM, int TO>
__device__ __forceinline__ void accumulate(LaneSums& sum, const LaneState& s,
                                           const LaneVector& x) {
#pragma unroll
    for (int row = FROM; row < TO; row++) {
#pragma unroll
        for (int c = 0; c < LANE_COLUMNS; c++) {
            sum[c] = row == 0 ? __fmul_rn(s[c][0], x[0]) : __fmaf_rn(s[c][row], x[row], sum[c]);
        }
    }
}

__device__ __forceinline__ void exchange(LaneSums& from, const LaneSums& sum, int lane) {
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; c++) from[c] = __shfl_xor_sync(~0u, sum[c], lane);
}

__device__ __forceinline__ void add(LaneSums& sum, const LaneSums& x) {
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; c++) sum[c] = __fadd_rn(sum[c], x[c]);
}

__device__ __forceinline__ void write_of(LaneSums& w, const RowScalars& scalars,
                                         const LaneSums& d, float4 value) {
    const float v[LANE_COLUMNS] = {value.x, value.y, value.z, value.w};
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; c++) w[c] = __fmaf_rn(-scalars.error, d[c], v[c]);
}

// Takes a row in. The next key replaces this one piece by piece.
__device__ __forceinline__ void take_in(LaneState& s, LaneVector& key, const LaneSums& w,
                                        const Row& next, const Lane& lane) {
#pragma unroll
    for (int j = 0; j < LANE_ROWS / 4; j++) {
#pragma unroll
        for (int row = 4 * j; row < 4 * j + 4; row++) {
#pragma unroll
            for (int c = 0; c < LANE_COLUMNS; c++) {
                s[c][row] = __fmaf_rn(key[row], w[c], s[c][row]);
            }
        }
        load_piece(key, next.key_query, j, lane.share);
    }
}

__device__ __forceinline__ void decay_state(LaneState& s, float decay) {
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; c++) {
#pragma unroll
        for (int row = 0; row < LANE_ROWS; row++) s[c][row] = __fmul_rn(s[c][row], decay);
    }
}

// Of the sums over eight lanes of x[0 .. 4], the one of column share / 2 of the lane's four: pairs
// of lanes halve the columns they are at, so that four shuffles do. The tree of pairs is that of
// d.
__device__ __forceinline__ float column_sum(const LaneSums& x, const Lane& lane) {
    const bool upper = lane.share & 4, odd = lane.share & 2;
    const float keep0 = upper ? x[2] : x[0], keep1 = upper ? x[3] : x[1];
    const float give0 = upper ? x[0] : x[2], give1 = upper ? x[1] : x[3];
    const float sum0 = __fadd_rn(keep0, __shfl_xor_sync(~0u, give0, 4));
    const float sum1 = __fadd_rn(keep1, __shfl_xor_sync(~0u, give1, 4));
    const float sum = __fadd_rn(odd ? sum1 : sum0, __shfl_xor_sync(~0u, odd ? sum0 : sum1, 2));
    return __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
}

// x[share / 2].
__device__ __forceinline__ float column_of(const LaneSums& x, const Lane& lane) {
    const float low = lane.share & 2 ? x[1] : x[0], high = lane.share & 2 ? x[3] : x[2];
    return lane.share & 4 ? high : low;
}

// One row: o of column share / 2 of the lane's four. The state takes the row in unless it is a
// leaf, whose state nobody needs. Key and query become those of `next`.
__device__ __forceinline__ float visit(LaneState& s, LaneVector& key, LaneVector& query,
                                       const RowScalars& scalars, float4 value, const Row& next,
                                       const Lane& lane, bool leaf) {
    LaneSums d, f, w, other;
    accumulate<0, LANE_ROWS>(d, s, key);
    exchange(other, d, 4);
    accumulate<0, 6>(f, s, query);
    add(d, other);
    exchange(other, d, 2);
    accumulate<6, 11>(f, s, query);
    add(d, other);
    exchange(other, d, 1);
    accumulate<11, LANE_ROWS>(f, s, query);
    load_vector(query, next.key_query + KEY_DIM, lane.share);
    float read;
    if (leaf) {
        load_vector(key, next.key_query, lane.share);
        read = column_sum(f, lane);
        add(d, other);
        write_of(w, scalars, d, value);
    } else {
        read = column_sum(f, lane);
        decay_state(s, scalars.decay);
        add(d, other);
        write_of(w, scalars, d, value);
        take_in(s, key, w, next, lane);
    }
    return __fmaf_rn(scalars.read, read, __fmul_rn(scalars.direct, column_of(w, lane)));
}

// A pending row: `visit` without an output.
__device__ __forceinline__ void advance(LaneState& s, LaneVector& key, const RowScalars& scalars,
                                        float4 value, const Row& next, const Lane& lane) {
    LaneSums d, w, other;
    accumulate<0, LANE_ROWS>(d, s, key);
    exchange(other, d, 4);
    add(d, other);
    exchange(other, d, 2);
    add(d, other);
    exchange(other, d, 1);
    decay_state(s, scalars.decay);
    add(d, other);
    write_of(w, scalars, d, value);
    take_in(s, key, w, next, lane);
}

// Address of a lane's piece of the stored state of a block's columns, [COLUMNS][KEY_DIM].
__device__ __forceinline__ uint32_t piece_at(const Lane& lane, int c, int j) {
    return (lane.column + c) * (KEY_DIM / 4) + j * SHARE + lane.share;
}

// A state is read and written once in a step: kept out of the way of what caches can hold.
__device__ __forceinline__ void load_state(LaneState& s, const float4* state, const Lane& lane) {
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; c++) {
#pragma unroll
        for (int j = 0; j < LANE_ROWS / 4; j++) {
            put_piece(s[c] + 4 * j, __ldcs(state + piece_at(lane, c, j)));
        }
    }
}

__device__ __forceinline__ void store_state(const LaneState& s, float4* state, const Lane& lane) {
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; c++) {
#pragma unroll
        for (int j = 0; j < LANE_ROWS / 4; j++) {
            __stcs(state + piece_at(lane, c, j), get_piece(s[c] + 4 * j));
        }
    }
}

// To and from a slot, [pieces of a lane][THREADS] in shared or global memory.
__device__ __forceinline__ void save(const LaneState& s, float4* slot) {
#pragma unroll
    for (int x = 0; x < STATE_PIECES / THREADS; x++) {
        slot[x * THREADS + threadIdx.x] = get_piece(s[x / 4] + x % 4 * 4);
    }
}

__device__ __forceinline__ void restore(LaneState& s, const float4* slot) {
#pragma unroll
    for (int x = 0; x < STATE_PIECES / THREADS; x++) {
        put_piece(s[x / 4] + x % 4 * 4, slot[x * THREADS + threadIdx.x]);
    }
}
