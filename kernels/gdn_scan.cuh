// One step of the recurrence, and what a block keeps at hand for it.
//
// With S the state (columns of v against rows of k, kept transposed: [column][row]), k and q as
// they stand behind the convolution and d = S k, f = S q taken from the state in front of the row:
//
//     w = r_k beta (v - e^g r_k d)     S <- e^g S + w k     o = r_q (e^g f + (k.q) w)
//
// which is the recurrence on normalised q and k with nothing normalised element by element. Columns
// never mix. Eight lanes share a column, 16 rows of k each: that alone fixes the order of the sums
// and so the bits. A lane has LC columns, a warp 4 LC. A tree, a replay, a chunk and a single row all
// run `visit`, which is why they agree to the bit.
#pragma once
#include "gdn.cuh"

constexpr int SHARE = 8;
constexpr int LANE_ROWS = KEY_DIM / SHARE;
// Columns of a block.
constexpr int COLUMNS = 64;
constexpr int SLICES = VALUE_DIM / COLUMNS;
template <int LC>
constexpr int WARP_COLUMNS = 32 / SHARE * LC;
template <int LC>
constexpr int WARPS = COLUMNS / WARP_COLUMNS<LC>;
template <int LC>
constexpr int THREADS = WARPS<LC> * 32;
// Rows staged at a time, and rows whose outputs are summed at a time.
constexpr int CHUNK = 16;
constexpr int FLUSH = 4;
// A state of the block's columns in units of 16 bytes.
constexpr int STATE_PIECES = COLUMNS * KEY_DIM / 4;

template <int LC>
using LaneState = float[LC][LANE_ROWS];

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
    // Sums of q over each lane's rows, and w, of the rows whose outputs are still to be written.
    float partial[FLUSH][COLUMNS][SHARE];
    float written[FLUSH][COLUMNS];
    // One saved state; deeper ones go to global memory.
    float4 slot[STATE_PIECES];
};

struct Lane {
    uint32_t warp;
    uint32_t lane;
    // Rows of k: four from 4 share on in each 32.
    uint32_t share;
    // Columns of the warp: LC from LC group on.
    uint32_t group;
};

__device__ __forceinline__ Lane this_lane() {
    const uint32_t lane = threadIdx.x % 32;
    return {threadIdx.x / 32, lane, lane % SHARE, lane / SHARE};
}

// First of the lane's columns within the block.
template <int LC>
__device__ __forceinline__ uint32_t first_column(const Lane& lane) {
    return lane.warp * WARP_COLUMNS<LC> + lane.group * LC;
}

// N values that lie on a multiple of N values.
template <int N>
__device__ __forceinline__ void get(float (&x)[N], const float* from) {
    if constexpr (N == 4) {
        const float4 v = *reinterpret_cast<const float4*>(from);
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else if constexpr (N == 2) {
        const float2 v = *reinterpret_cast<const float2*>(from);
        x[0] = v.x, x[1] = v.y;
    } else {
        x[0] = *from;
    }
}

template <int N>
__device__ __forceinline__ void put(float* to, const float (&x)[N]) {
    static_assert(N == 2 || N == 4);
    if constexpr (N == 4) *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
    else *reinterpret_cast<float2*>(to) = make_float2(x[0], x[1]);
}

__device__ __forceinline__ void load_vector(float (&x)[LANE_ROWS], const float* vector,
                                            uint32_t share) {
#pragma unroll
    for (int j = 0; j < LANE_ROWS / 4; j++) {
        const float4 piece = reinterpret_cast<const float4*>(vector)[j * SHARE + share];
        x[4 * j] = piece.x;
        x[4 * j + 1] = piece.y;
        x[4 * j + 2] = piece.z;
        x[4 * j + 3] = piece.w;
    }
}

// sum[c] += s[c][FROM .. TO] x[FROM .. TO], in order.
template <int FROM, int TO, int LC>
__device__ __forceinline__ void accumulate(float (&sum)[LC], const LaneState<LC>& s,
                                           const float (&x)[LANE_ROWS]) {
#pragma unroll
    for (int row = FROM; row < TO; row++) {
#pragma unroll
        for (int c = 0; c < LC; c++) {
            sum[c] = row == 0 ? __fmul_rn(s[c][0], x[0]) : __fmaf_rn(s[c][row], x[row], sum[c]);
        }
    }
}

template <int LC>
__device__ __forceinline__ void exchange(float (&from)[LC], const float (&sum)[LC], int lane) {
#pragma unroll
    for (int c = 0; c < LC; c++) from[c] = __shfl_xor_sync(~0u, sum[c], lane);
}

template <int LC>
__device__ __forceinline__ void add(float (&sum)[LC], const float (&x)[LC]) {
#pragma unroll
    for (int c = 0; c < LC; c++) sum[c] = __fadd_rn(sum[c], x[c]);
}

template <int LC>
__device__ __forceinline__ void decay_state(LaneState<LC>& s, float decay) {
#pragma unroll
    for (int c = 0; c < LC; c++) {
#pragma unroll
        for (int row = 0; row < LANE_ROWS; row++) s[c][row] = __fmul_rn(s[c][row], decay);
    }
}

template <int LC>
__device__ __forceinline__ void write_state(LaneState<LC>& s, const float (&key)[LANE_ROWS],
                                            const float (&w)[LC]) {
#pragma unroll
    for (int c = 0; c < LC; c++) {
#pragma unroll
        for (int row = 0; row < LANE_ROWS; row++) {
            s[c][row] = __fmaf_rn(key[row], w[c], s[c][row]);
        }
    }
}

// One row. READ: f becomes this lane's part of S q. WRITE: the state takes the row in; without it
// the state stays, which is all that a row without children needs. w comes either way. The query
// and the next key are read ahead from `next`.
template <bool READ, bool WRITE, int LC>
__device__ __forceinline__ void visit(LaneState<LC>& s, const float (&key)[LANE_ROWS],
                                      float (&query)[LANE_ROWS], float (&next_key)[LANE_ROWS],
                                      const RowScalars& scalars, const float* value,
                                      const Row& next, const Lane& lane, float (&f)[LC],
                                      float (&w)[LC]) {
    float d[LC], other[LC];
    accumulate<0, LANE_ROWS, LC>(d, s, key);
    const float decay = scalars.decay, error = scalars.error;
    float v[LC];
    get<LC>(v, value);
    exchange(other, d, 4);
    if (READ) accumulate<0, 6, LC>(f, s, query);
    add(d, other);
    exchange(other, d, 2);
    if (READ) accumulate<6, 11, LC>(f, s, query);
    add(d, other);
    exchange(other, d, 1);
    if (READ) {
        accumulate<11, LANE_ROWS, LC>(f, s, query);
        load_vector(query, next.key_query + KEY_DIM, lane.share);
    }
    load_vector(next_key, next.key_query, lane.share);
    if (WRITE) decay_state<LC>(s, decay);
    add(d, other);
#pragma unroll
    for (int c = 0; c < LC; c++) w[c] = __fmaf_rn(-error, d[c], v[c]);
    if (WRITE) write_state<LC>(s, key, w);
}

__device__ __forceinline__ void put_piece(float* s, float4 piece) {
    s[0] = piece.x;
    s[1] = piece.y;
    s[2] = piece.z;
    s[3] = piece.w;
}

// From and to the stored state of the block's columns, [COLUMNS][KEY_DIM]. Read or written once:
// kept out of the way of what caches can hold.
template <int LC>
__device__ __forceinline__ void load_state(LaneState<LC>& s, const float4* state,
                                           const Lane& lane) {
#pragma unroll
    for (int c = 0; c < LC; c++) {
#pragma unroll
        for (int j = 0; j < LANE_ROWS / 4; j++) {
            const uint32_t at = (first_column<LC>(lane) + c) * (KEY_DIM / 4) + j * SHARE;
            put_piece(s[c] + 4 * j, __ldcs(state + at + lane.share));
        }
    }
}

template <int LC>
__device__ __forceinline__ void store_state(const LaneState<LC>& s, float4* state,
                                            const Lane& lane) {
#pragma unroll
    for (int c = 0; c < LC; c++) {
#pragma unroll
        for (int j = 0; j < LANE_ROWS / 4; j++) {
            const uint32_t at = (first_column<LC>(lane) + c) * (KEY_DIM / 4) + j * SHARE;
            const float* piece = s[c] + 4 * j;
            __stcs(state + at + lane.share,
                   make_float4(piece[0], piece[1], piece[2], piece[3]));
        }
    }
}

// To and from a slot, [LC * LANE_ROWS / 4][threads] in shared or global memory.
template <int LC>
__device__ __forceinline__ void save(const LaneState<LC>& s, float4* slot) {
#pragma unroll
    for (int x = 0; x < LC * LANE_ROWS / 4; x++) {
        const float* piece = s[x / (LANE_ROWS / 4)] + x % (LANE_ROWS / 4) * 4;
        slot[x * THREADS<LC> + threadIdx.x] =
            make_float4(piece[0], piece[1], piece[2], piece[3]);
    }
}

template <int LC>
__device__ __forceinline__ void restore(LaneState<LC>& s, const float4* slot) {
#pragma unroll
    for (int x = 0; x < LC * LANE_ROWS / 4; x++) {
        put_piece(s[x / (LANE_ROWS / 4)] + x % (LANE_ROWS / 4) * 4,
                  slot[x * THREADS<LC> + threadIdx.x]);
    }
}
