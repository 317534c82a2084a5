// Attention of packed query rows over tiles of 64 keys, on tensor cores.
//
// The rows of one KV head (token * group + head in the group) stand side by side as columns of
// every product: scores are S = K Q^T (keys x rows), outputs O = V^T P (values x rows). A pair of
// warps owns TILES * 8 rows: in S each of the two takes 32 of the 64 keys, in O half of the values
// of a head; the weights P cross over in shared memory.
//
// What makes up the bits of a row: per score the contraction over a head in steps of 16; per tile
// the exact maximum of 64 scores; per half tile and per output the chunks of 16 keys in order. None
// of it depends on the row's place among the rows, on GROUPS or on TILES, and a key whose weight is
// zero changes nothing.
#pragma once
#include "device.cuh"

constexpr uint32_t TILE_KEYS = 64;
// Rows of one slot of the ring: half a tile of keys or values, or 32 rows of queries.
constexpr uint32_t SLOT_ROWS = 32;
constexpr uint32_t CHUNK_KEYS = 16;

template <uint32_t DIM_, uint32_t GROUPS_, uint32_t TILES_>
struct AttentionShape {
    static constexpr uint32_t DIM = DIM_;        // values per head
    static constexpr uint32_t GROUPS = GROUPS_;  // pairs of warps
    static constexpr uint32_t TILES = TILES_;    // 8-row tiles of a pair
    static constexpr uint32_t PAIR_ROWS = TILES * 8;
    static constexpr uint32_t ROWS = GROUPS * PAIR_ROWS;
    static constexpr uint32_t THREADS = GROUPS * 64;
    static constexpr uint32_t ROW_BYTES = DIM * 2;
    static constexpr uint32_t SLOT_BYTES = SLOT_ROWS * ROW_BYTES;
    static constexpr uint32_t STEPS = DIM / 16;   // of the contraction over a head
    static constexpr uint32_t STRIPS = DIM / 32;  // of 16 values in a warp's half of a head
};

// threadIdx.x, read anew each time: kept and what is made of it kept too, it costs registers that
// queries and outputs need.
__device__ __forceinline__ uint32_t thread_number() {
    uint32_t number;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
    return number;
}

// Where a thread stands. `row` and `column` are its place in an 8 x 8 matrix of an mma fragment.
struct Lane {
    uint32_t pair, half, lane, row, column;

    __device__ __forceinline__ Lane() {
        const uint32_t thread = thread_number();
        pair = thread / 64;
        half = thread / 32 % 2;
        lane = thread % 32;
        row = lane / 4;
        column = lane % 4;
    }
};

// B fragments of the pair's queries: kept in registers for all tiles.
template <class S>
struct Queries {
    uint32_t b[S::TILES][S::STEPS][2];
};

// Scores of 32 keys: c[m][n] holds keys 16 m + row (+ 8), rows 8 n + 2 column (+ 1).
template <class S>
struct Scores {
    float c[2][S::TILES][4];
};

// What has been gathered so far, relative to the running maximum: out[i][n] holds values
// 16 i + row (+ 8) of the warp's half of a head, rows 8 n + 2 column (+ 1).
template <class S>
struct Running {
    float out[S::STRIPS][S::TILES][4];
};

// What the warps of a pair tell each other. Rows of weights are swizzled like slots.
template <class S>
struct Exchange {
    bf16 weights[S::ROWS][TILE_KEYS];
    float top[2][S::ROWS];  // by half: maximum of the tile
    float max[2][S::ROWS];  // by parity of the tile: running maximum
    float sum[2][S::ROWS];  // by half: sum of the weights relative to the running maximum

    // Before the first tile: no key yet.
    __device__ __forceinline__ void clear() {
        for (uint32_t i = threadIdx.x; i < S::ROWS; i += S::THREADS) {
            max[0][i] = -INFINITY;
            sum[0][i] = sum[1][i] = 0.0f;
        }
    }
};

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1 / sqrt(DIM) in the exponent of 2.
template <class S>
__device__ constexpr float score_scale() {
    static_assert(S::DIM == 256 || S::DIM == 128, "head sizes of the target and the drafter");
    return 1.4426950408889634f * (S::DIM == 256 ? 0.0625f : 0.08838834764831845f);
}

// Lets the two warps of a pair meet; barrier 0 is the block's.
__device__ __forceinline__ void pair_barrier(uint32_t pair) {
    asm volatile("bar.sync %0, 64;" ::"r"(pair + 1) : "memory");
}

// A pair without rows passes a barrier a tile, as the others do. Nothing needs it, but tools that
// watch for races lose track of warps that leave out barriers of others.
__device__ __forceinline__ void idle_pair() { pair_barrier(Lane().pair); }

// The row of a 16-row operand that a lane names to ldmatrix, and the 16-byte column it starts at:
// plain for keys (16 keys x 16 values), transposed for values (16 values x 16 keys).
__device__ __forceinline__ uint32_t key_row(uint32_t lane) { return lane & 15; }
__device__ __forceinline__ uint32_t key_column(uint32_t lane) { return lane >> 4; }
__device__ __forceinline__ uint32_t value_row(uint32_t lane) { return (lane & 7) + ((lane >> 4) << 3); }
__device__ __forceinline__ uint32_t value_column(uint32_t lane) { return (lane >> 3) & 1; }

// Byte offset of 16-byte column `column` in a row of which the low three bits of the number are
// `swizzle`.
__device__ __forceinline__ uint32_t swizzled(uint32_t column, uint32_t swizzle) {
    return (column ^ swizzle) << 4;
}

// The address 2 * step columns further on in the same row. Rows start at multiples of 128 bytes, so
// the swizzle of the low columns is an exclusive or on the address: one register serves all steps.
__device__ __forceinline__ uint32_t advance(uint32_t address, uint32_t step) {
    return (address ^ ((step & 3) << 5)) + (step >> 2) * 128;
}

template <class S>
__device__ __forceinline__ void clear(Running<S>& running) {
#pragma unroll
    for (uint32_t n = 0; n < S::TILES; ++n) {
#pragma unroll
        for (uint32_t i = 0; i < S::STRIPS; ++i) {
#pragma unroll
            for (uint32_t c = 0; c < 4; ++c) running.out[i][n][c] = 0.0f;
        }
    }
}

template <class S>
__device__ __forceinline__ void clear(Scores<S>& scores) {
#pragma unroll
    for (uint32_t m = 0; m < 2; ++m) {
#pragma unroll
        for (uint32_t n = 0; n < S::TILES; ++n) {
#pragma unroll
            for (uint32_t c = 0; c < 4; ++c) scores.c[m][n][c] = 0.0f;
        }
    }
}

// Reads the pair's rows from `rows` rows at `from`; what lies behind them is never stored.
template <class S>
__device__ __forceinline__ void load_queries(Queries<S>& queries, uint32_t from, uint32_t rows) {
    const Lane at;
#pragma unroll
    for (uint32_t n = 0; n < S::TILES; ++n) {
        const uint32_t row = min(at.pair * S::PAIR_ROWS + n * 8, rows - 8) + (at.lane & 7);
        const uint32_t start = from + row * S::ROW_BYTES + swizzled(at.lane >> 3, row & 7);
#pragma unroll
        for (uint32_t step = 0; step < S::STEPS; step += 2) {
            uint32_t r[4];
            load_matrix_x4(r, advance(start, step));
            queries.b[n][step][0] = r[0];
            queries.b[n][step][1] = r[1];
            queries.b[n][step + 1][0] = r[2];
            queries.b[n][step + 1][1] = r[3];
        }
    }
}

// Scores of the 32 keys in the slot at `keys`.
template <class S>
__device__ __forceinline__ void score(Scores<S>& scores, const Queries<S>& queries,
                                      uint32_t keys) {
    const Lane at;
    clear(scores);
    const uint32_t key =
        keys + key_row(at.lane) * S::ROW_BYTES + swizzled(key_column(at.lane), at.lane & 7);
#pragma unroll
    for (uint32_t step = 0; step < S::STEPS; ++step) {
#pragma unroll
        for (uint32_t m = 0; m < 2; ++m) {
            uint32_t a[4];
            load_matrix_x4(a, advance(key, step) + m * CHUNK_KEYS * S::ROW_BYTES);
#pragma unroll
            for (uint32_t n = 0; n < S::TILES; ++n) {
                mma_bf16(scores.c[m][n], a, queries.b[n][step][0], queries.b[n][step][1]);
            }
        }
    }
}

// Tells the other warp of the pair the maximum of every row over this warp's 32 keys.
template <class S>
__device__ __forceinline__ void share_maximum(const Scores<S>& scores, Exchange<S>& exchange,
                                              const Lane& at) {
    const uint32_t first = at.pair * S::PAIR_ROWS + 2 * at.column;
#pragma unroll
    for (uint32_t n = 0; n < S::TILES; ++n) {
        float top[2];
#pragma unroll
        for (uint32_t j = 0; j < 2; ++j) {
            top[j] = fmaxf(fmaxf(scores.c[0][n][j], scores.c[0][n][j + 2]),
                           fmaxf(scores.c[1][n][j], scores.c[1][n][j + 2]));
#pragma unroll
            for (uint32_t lanes = 4; lanes < 32; lanes *= 2) {
                top[j] = fmaxf(top[j], __shfl_xor_sync(~0u, top[j], lanes));
            }
        }
        if (at.row == 0) {
            *reinterpret_cast<float2*>(&exchange.top[at.half][first + 8 * n]) =
                make_float2(top[0], top[1]);
        }
    }
    pair_barrier(at.pair);
}

// The step from the running maximum of two rows to the one with this tile: `base` is the new
// maximum in the exponent of 2 (0 for a row without a key so far), the result the factors that
// what was gathered has to take: exactly 1 where the maximum stays, since a tile without a key of
// the row must leave no trace (base is rounded, old * scale - base is not).
template <class S>
__device__ __forceinline__ float2 move_maximum(Exchange<S>& exchange, const Lane& at, uint32_t n,
                                               uint32_t parity, float2& base) {
    constexpr float scale = score_scale<S>();
    const uint32_t row = at.pair * S::PAIR_ROWS + 8 * n + 2 * at.column;
    const float2 low = *reinterpret_cast<const float2*>(&exchange.top[0][row]);
    const float2 high = *reinterpret_cast<const float2*>(&exchange.top[1][row]);
    const float2 old = *reinterpret_cast<const float2*>(&exchange.max[parity][row]);
    const float2 now = make_float2(fmaxf(fmaxf(low.x, high.x), old.x),
                                   fmaxf(fmaxf(low.y, high.y), old.y));
    if (at.row == 0 && at.half == 0) {
        *reinterpret_cast<float2*>(&exchange.max[parity ^ 1][row]) = now;
    }
    base.x = now.x == -INFINITY ? 0.0f : __fmul_rn(now.x, scale);
    base.y = now.y == -INFINITY ? 0.0f : __fmul_rn(now.y, scale);
    return make_float2(now.x == old.x ? 1.0f : exp2_approx(__fmaf_rn(old.x, scale, -base.x)),
                       now.y == old.y ? 1.0f : exp2_approx(__fmaf_rn(old.y, scale, -base.y)));
}

// Brings what was gathered of one tile of rows to the new maximum.
template <class S>
__device__ __forceinline__ void rescale(Running<S>& running, uint32_t n, float2 factor) {
#pragma unroll
    for (uint32_t i = 0; i < S::STRIPS; ++i) {
#pragma unroll
        for (uint32_t c = 0; c < 4; c += 2) {
            running.out[i][n][c] = __fmul_rn(running.out[i][n][c], factor.x);
            running.out[i][n][c + 1] = __fmul_rn(running.out[i][n][c + 1], factor.y);
        }
    }
}

// Turns scores into weights 2^(scale (s - max)), rounded to bf16 and left in shared memory for
// both warps of the pair, and brings what was gathered to the new maximum. Sums take the rounded
// weights, so that numerator and denominator agree; a product with ones forms them.
template <class S>
__device__ __forceinline__ void weigh(Running<S>& running, const Scores<S>& scores,
                                      Exchange<S>& exchange, uint32_t parity) {
    constexpr float scale = score_scale<S>();
    constexpr uint32_t ONES = 0x3f803f80;
    const Lane at;
    share_maximum(scores, exchange, at);
    unsigned char* place = reinterpret_cast<unsigned char*>(
                               exchange.weights[at.pair * S::PAIR_ROWS + at.row]) +
                           4 * at.column;
    float* sums = &exchange.sum[at.half][at.pair * S::PAIR_ROWS + 2 * at.column];
#pragma unroll
    for (uint32_t n = 0; n < S::TILES; ++n) {
        asm volatile("" ::: "memory");  // one tile of rows at a time, for registers' sake
        float2 base;
        const float2 factor = move_maximum(exchange, at, n, parity, base);
        if (__any_sync(~0u, factor.x != 1.0f || factor.y != 1.0f)) rescale(running, n, factor);
        uint32_t weights[4];
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k) {  // 8 keys each
            const float* s = &scores.c[k / 2][n][2 * (k % 2)];
            const float low = exp2_approx(__fmaf_rn(s[0], scale, -base.x));
            const float high = exp2_approx(__fmaf_rn(s[1], scale, -base.y));
            weights[k] = transpose(pack_bf16(low, high));
            *reinterpret_cast<uint32_t*>(place + 8 * n * sizeof(exchange.weights[0]) +
                                         swizzled(4 * at.half + k, at.row)) = weights[k];
        }
        float2* sum = reinterpret_cast<float2*>(sums + 8 * n);
        float c[4] = {__fmul_rn(sum->x, factor.x), __fmul_rn(sum->y, factor.y), 0.0f, 0.0f};
        mma_bf16(c, {ONES, ONES, ONES, ONES}, weights[0], weights[1]);
        mma_bf16(c, {ONES, ONES, ONES, ONES}, weights[2], weights[3]);
        __syncwarp();
        if (at.row == 0) *sum = make_float2(c[0], c[1]);
    }
}

// B fragments of the weights of 32 keys (two chunks of 16), `part` 0 or 1 of the tile.
template <class S>
__device__ __forceinline__ void load_weights(uint32_t (&b)[S::TILES][4],
                                             const Exchange<S>& exchange, const Lane& at,
                                             uint32_t part) {
#pragma unroll
    for (uint32_t n = 0; n < S::TILES; ++n) {
        const uint32_t row = at.pair * S::PAIR_ROWS + n * 8 + (at.lane & 7);
        load_matrix_x4(b[n], shared_address(exchange.weights[row]) +
                                 swizzled(4 * part + (at.lane >> 3), row & 7));
    }
}

// Adds the weighted values of the tile whose halves lie in the slots at `values`.
template <class S>
__device__ __forceinline__ void gather_values(Running<S>& running, const Exchange<S>& exchange,
                                              const uint32_t (&values)[2]) {
    const Lane at;
    const uint32_t place = value_row(at.lane) * S::ROW_BYTES + at.half * S::DIM +
                           swizzled(value_column(at.lane), at.lane & 7);
#pragma unroll
    for (uint32_t part = 0; part < 2; ++part) {
        uint32_t b[S::TILES][4];
        load_weights(b, exchange, at, part);
        const uint32_t row = values[part] + place;
#pragma unroll
        for (uint32_t chunk = 0; chunk < 2; ++chunk) {
#pragma unroll
            for (uint32_t i = 0; i < S::STRIPS; ++i) {
                uint32_t a[4];
                load_matrix_x4_transposed(a, advance(row, i) + chunk * CHUNK_KEYS * S::ROW_BYTES);
#pragma unroll
                for (uint32_t n = 0; n < S::TILES; ++n) {
                    mma_bf16(running.out[i][n], a, b[n][2 * chunk], b[n][2 * chunk + 1]);
                }
            }
        }
    }
}
