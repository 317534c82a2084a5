// One step of the recurrence, and the state that a block has at hand for it.
//
// With S the state (columns of v against rows of k, kept transposed: [column][row]), k and q as
// they stand behind the convolution and d = S k, f = S q taken from the state in front of the row:
//
//     w = r_k beta (v - e^g r_k d)     S <- e^g S + w k     o = r_q (e^g f + (k.q) w)
//
// which is the recurrence on normalised q and k with nothing normalised element by element. Columns
// never mix. Eight lanes share a column, 16 rows of k each, and add their parts in pairs: lanes 4
// apart, then 2, then 1. That alone fixes the order of the sums and so the bits. A tree, a replay,
// a chunk and a single row all do the same, which is why they agree to the bit; so do lanes with
// parts of LC = 4 columns (a warp has 16, a block 64) and of 8 (a warp 32, a block 128).
//
// The lanes of a group of LC columns hold them turned: register c of lane x is column c ^ (x / 2) or
// c ^ x. So the column that a lane sums up to its end is always register 0, what it gives away is
// always the same registers, and nothing has to be picked by lane.
#pragma once
#include "gdn_rows.cuh"

constexpr int PIECES = LANE_ROWS / 4;
// A state of the block's columns in units of 16 bytes, and what of it is a thread's.
template <int LC>
constexpr int STATE_PIECES = COLUMNS<LC> * KEY_DIM / 4;
template <int LC>
constexpr int LANE_PIECES = LC * PIECES;

template <int LC>
using LaneState = float[LC][LANE_ROWS];
using LaneVector = float[LANE_ROWS];

struct Lane {
    // Rows of k: four from 4 share on in each 32.
    uint32_t share;
    // First of its columns within the block.
    uint32_t column;
    // That of register 0, from the first on.
    uint32_t turn;
    // 0, which the compiler takes for any value of the lane's own (see `behind`).
    uint32_t zero;
};

template <int LC>
__device__ __forceinline__ Lane this_lane(uint32_t zero) {
    static_assert(LC == 4 || LC == 8);
    const uint32_t share = threadIdx.x % SHARE;
    return {share, threadIdx.x / SHARE * LC, LC == 4 ? share / 2 : share, zero & threadIdx.x};
}

// A value that all lanes of the warp have in common, in a form from which the compiler sees it: a
// branch on it cannot split the warp, so shuffles behind it need no check and mix with other work.
__device__ __forceinline__ uint32_t common(uint32_t value) {
    return __reduce_or_sync(~0u, value);
}

// x, but not before y[FROM .. TO], every STEP'th, is there. The compiler else spends work that could fill a wait for
// lanes in front of the wait.
template <int FROM, int TO, int STEP = 1, int N>
__device__ __forceinline__ float behind(float x, const float (&y)[N], const Lane& lane) {
    uint32_t any = __float_as_uint(y[FROM]);
#pragma unroll
    for (int c = FROM + STEP; c < TO; c += STEP) any |= __float_as_uint(y[c]);
    return __uint_as_float(__float_as_uint(x) | (any & lane.zero));
}

// Shared memory by address: a pointer would be made anew from the block's window for every row.
__device__ __forceinline__ float4 load_shared4(uint32_t address) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address));
    return v;
}

__device__ __forceinline__ float load_shared(uint32_t address) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address));
    return v;
}

__device__ __forceinline__ float load_shared_bf16(uint32_t address) {
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address));
    return low_bf16(v);
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

// Piece j of the lane's rows of the vector at `address`, which is that of its own first piece.
__device__ __forceinline__ void load_piece(LaneVector& x, uint32_t address, int j) {
    put_piece(x + 4 * j, load_shared4(address + j * SHARE * 16));
}

__device__ __forceinline__ void load_vector(LaneVector& x, uint32_t address) {
#pragma unroll
    for (int j = 0; j < PIECES; j++) load_piece(x, address, j);
}

// sum[c] += s[c][FROM .. TO] x[FROM .. TO], in order.
template <int FROM, int TO, int LC>
__device__ __forceinline__ void accumulate(float (&sum)[LC], const LaneState<LC>& s,
                                           const LaneVector& x) {
#pragma unroll
    for (int row = FROM; row < TO; row++) {
#pragma unroll
        for (int c = 0; c < LC; c++) {
            sum[c] = row == 0 ? __fmul_rn(s[c][0], x[0]) : __fmaf_rn(s[c][row], x[row], sum[c]);
        }
    }
}

template <int FROM, int TO, int LC>
__device__ __forceinline__ void decay_rows(float (&s)[LC][LANE_ROWS], float decay) {
#pragma unroll
    for (int row = FROM; row < TO; row++) {
#pragma unroll
        for (int c = 0; c < LC; c++) s[c][row] = __fmul_rn(s[c][row], decay);
    }
}

__device__ __forceinline__ float from_lane(float x, int apart) {
    return __shfl_xor_sync(~0u, x, apart);
}

// The sum of register 0's column over the eight lanes, in two rounds; other work goes in between a
// `give` and its `get`. The second adds lanes 2 apart and lanes 1 apart at once.
template <int LC>
struct Fold {
    float from[LC / 2 > 3 ? LC / 2 : 3];

    __device__ __forceinline__ void give_first(const float (&x)[LC]) {
#pragma unroll
        for (int c = 0; c < LC / 2; c++) from[c] = from_lane(x[LC / 2 + c], 4);
    }
    __device__ __forceinline__ void get_first(float (&x)[LC]) const {
#pragma unroll
        for (int c = 0; c < LC / 2; c++) x[c] = __fadd_rn(x[c], from[c]);
    }
    __device__ __forceinline__ void give_second(const float (&x)[LC]) {
        constexpr int ONE = LC == 8, TWO = LC / 4;
        from[0] = from_lane(x[TWO], 2);
        from[1] = from_lane(x[ONE], 1);
        from[2] = from_lane(x[TWO + ONE], 3);
    }
    __device__ __forceinline__ float get_second(const float (&x)[LC]) const {
        return __fadd_rn(__fadd_rn(x[0], from[0]), __fadd_rn(from[1], from[2]));
    }
};

// w of all registers' columns, from that of register 0.
template <int LC>
__device__ __forceinline__ void spread(float (&w)[LC]) {
#pragma unroll
    for (int c = 1; c < LC; c++) w[c] = from_lane(w[0], c * SHARE / LC);
}

// Takes the key in, whose place that of the row at `next` takes piece by piece: the first half by
// when the last piece is taken in.
template <int LC>
__device__ __forceinline__ void take_in(float (&s)[LC][LANE_ROWS], LaneVector& key,
                                        const float (&w)[LC], uint32_t next, const Lane& lane) {
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        if (j == PIECES - 1) key[4 * j] = behind<0, LANE_ROWS / 2, 4>(key[4 * j], key, lane);
#pragma unroll
        for (int row = 4 * j; row < 4 * j + 4; row++) {
#pragma unroll
            for (int c = 0; c < LC; c++) s[c][row] = __fmaf_rn(key[row], w[c], s[c][row]);
        }
        load_piece(key, next, j);
    }
}

// A row in shared memory as a lane reads it.
template <int LC>
struct RowAt {
    uint32_t address;

    __device__ __forceinline__ uint32_t key(const Lane& lane) const {
        return address + lane.share * 16;
    }
    __device__ __forceinline__ uint32_t query(const Lane& lane) const {
        return key(lane) + static_cast<uint32_t>(offsetof(Row<LC>, query));
    }
    // By an address that seems to differ by lane: moves to uniform registers would take longer.
    __device__ __forceinline__ Scalars scalars(const Lane& lane) const {
        const float4 x =
            load_shared4(address + lane.zero + static_cast<uint32_t>(offsetof(Row<LC>, scalars)));
        return {x.x, x.y, x.z, x.w};
    }
    // r_k beta v of register 0's column.
    __device__ __forceinline__ float value(const Lane& lane) const {
        const uint32_t column = (lane.column + lane.turn) * sizeof(bf16);
        const float v = load_shared_bf16(
            address + column + static_cast<uint32_t>(offsetof(Row<LC>, value)));
        return __fmul_rn(v, load_shared(address + static_cast<uint32_t>(
                                                      offsetof(Row<LC>, strength))));
    }
};

// What of an output is there when the next row begins: o = read (sum of f over the lanes) + written.
template <int LC>
struct Output {
    float f[LC];
    float read;
    float written;
};

// o of register 0's column.
template <int LC>
__device__ __forceinline__ float finish(Output<LC>& output) {
    Fold<LC> fold;
    fold.give_first(output.f);
    fold.get_first(output.f);
    fold.give_second(output.f);
    return __fmaf_rn(output.read, fold.get_second(output.f), output.written);
}

// A row, whose key and query are at hand and become those of `next`. The state takes the row in
// unless it is a leaf, whose state nobody needs.
template <bool LEAF, int LC>
__device__ __forceinline__ void visit(float (&s)[LC][LANE_ROWS], LaneVector& key,
                                      LaneVector& query, RowAt<LC> row, RowAt<LC> next,
                                      const Lane& lane, Output<LC>& output) {
    Scalars scalars = row.scalars(lane);
    const float value = row.value(lane);
    float d[LC], w[LC];
    Fold<LC> fold;
    accumulate<0, LANE_ROWS, LC>(d, s, key);
    fold.give_first(d);
    query[0] = behind<0, LC>(query[0], d, lane);
    accumulate<0, 6, LC>(output.f, s, query);
    fold.get_first(d);
    fold.give_second(d);
    query[6] = behind<0, LC / 2>(query[6], d, lane);
    accumulate<6, 13, LC>(output.f, s, query);
    w[0] = __fmaf_rn(-scalars.error, fold.get_second(d), value);
    if (!LEAF) query[13] = behind<0, 1>(query[13], w, lane);
    accumulate<13, LANE_ROWS, LC>(output.f, s, query);
    load_vector(query, next.query(lane));
    if (LEAF) {
        load_vector(key, next.key(lane));
    } else {
        spread<LC>(w);
        decay_rows<0, 8, LC>(s, scalars.decay);
        // The next query by now: loads at the end of a row would be waited for.
        scalars.decay = behind<0, LANE_ROWS, 4>(scalars.decay, query, lane);
        decay_rows<8, LANE_ROWS, LC>(s, scalars.decay);
        take_in<LC>(s, key, w, next.key(lane), lane);
    }
    output.read = scalars.read;
    output.written = __fmul_rn(scalars.direct, w[0]);
}

// A pending row: `visit` without an output.
template <int LC>
__device__ __forceinline__ void advance(float (&s)[LC][LANE_ROWS], LaneVector& key, RowAt<LC> row,
                                        RowAt<LC> next, const Lane& lane) {
    Scalars scalars = row.scalars(lane);
    const float value = row.value(lane);
    float d[LC], w[LC];
    Fold<LC> fold;
    accumulate<0, LANE_ROWS, LC>(d, s, key);
    fold.give_first(d);
    scalars.decay = behind<LC / 2, LC>(scalars.decay, d, lane);
    decay_rows<0, 6, LC>(s, scalars.decay);
    fold.get_first(d);
    fold.give_second(d);
    scalars.decay = behind<0, LC / 2>(scalars.decay, d, lane);
    decay_rows<6, 12, LC>(s, scalars.decay);
    w[0] = __fmaf_rn(-scalars.error, fold.get_second(d), value);
    spread<LC>(w);
    decay_rows<12, LANE_ROWS, LC>(s, scalars.decay);
    take_in<LC>(s, key, w, next.key(lane), lane);
}

// Address of piece j of column c, from the lane's first on, of the stored state of a block's columns,
// [COLUMNS][KEY_DIM].
__device__ __forceinline__ uint32_t piece_at(const Lane& lane, int c, int j) {
    return (lane.column + c) * (KEY_DIM / 4) + j * SHARE + lane.share;
}

// Starts to copy share `turn` of eight of the lane's pieces of a stored state to a slot in shared
// memory; nothing where `turn` is no such share. All at once would fill the queues to memory and
// hold up the warp. Not by a branch, which would part what stands in front of it from what stands
// behind it.
constexpr uint32_t STATE_TURNS = 8;
template <int LC>
__device__ __forceinline__ void fetch_state(uint32_t slot, const float4* state, uint32_t turn,
                                            const Lane& lane) {
    constexpr uint32_t COUNT = LANE_PIECES<LC> / STATE_TURNS;
    const uint32_t piece = turn * COUNT, to = slot + threadIdx.x * 16;
    const float4* from = state + (piece_at(lane, 0, 0) + piece * SHARE);
#pragma unroll
    for (uint32_t x = 0; x < COUNT; x++) {
        const uint32_t place = (piece + x) ^ (lane.turn * PIECES);
        copy16_async_if(to + place * THREADS * 16, from + x * SHARE, turn < STATE_TURNS);
    }
}

// A state is written once in a step: kept out of the way of what caches can hold. Registers are
// turned back first, so that eight lanes write a line together.
template <int LC>
__device__ __forceinline__ void store_state(const float (&s)[LC][LANE_ROWS], float4* state,
                                            const Lane& lane) {
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        float column[LC][4];
#pragma unroll
        for (int x = 0; x < 4 * LC; x++) column[x / 4][x % 4] = s[x / 4][4 * j + x % 4];
#pragma unroll
        for (int bit = 1; bit < LC; bit *= 2) {
            const bool turned = lane.turn & bit;
#pragma unroll
            for (int x = 0; x < 4 * LC; x++) {
                float &low = column[x / 4][x % 4], &high = column[x / 4 ^ bit][x % 4];
                if (x / 4 & bit) continue;
                const float kept = low;
                low = turned ? high : low;
                high = turned ? kept : high;
            }
        }
#pragma unroll
        for (int c = 0; c < LC; c++) __stcs(state + piece_at(lane, c, j), get_piece(column[c]));
    }
}

// To and from a slot, [pieces of a lane][THREADS] in shared or global memory.
template <int LC>
__device__ __forceinline__ void save(const float (&s)[LC][LANE_ROWS], float4* slot) {
#pragma unroll
    for (int x = 0; x < LANE_PIECES<LC>; x++) {
        slot[x * THREADS + threadIdx.x] = get_piece(s[x / PIECES] + x % PIECES * 4);
    }
}

template <int LC>
__device__ __forceinline__ void restore(float (&s)[LC][LANE_ROWS], const float4* slot) {
#pragma unroll
    for (int x = 0; x < LANE_PIECES<LC>; x++) {
        put_piece(s[x / PIECES] + x % PIECES * 4, slot[x * THREADS + threadIdx.x]);
    }
}
