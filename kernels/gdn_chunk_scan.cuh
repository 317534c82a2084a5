// From chunk to chunk (gdn_chunk.cuh). A block takes 64 columns of a value head of a sequence, a warp
// 16 of them.
//
// Everything is transposed, columns of v against rows of the chunk or against keys: S, X, N of a
// warp's columns stay in its registers from the first chunk to the last, since the accumulators of
// one product are the left operand of the next. Warps share k, q, T, P as right operands.
#pragma once
#include "gdn_chunk.cuh"

struct alignas(16) ScanShared {
    // Of this chunk and of the next.
    bf16 key[2][CHUNK * KEY_DIM];
    Factors factors[2];
    bf16 query[CHUNK * KEY_DIM];
    bf16 value[CHUNK * COLUMNS];
    uint4 transform[MATRIX_PIECES];
    uint4 attention[MATRIX_PIECES];
};

// The part of a sequence that a block works on.
struct Item {
    Sequence sequence;
    uint32_t head;
    uint32_t key_head;
    uint32_t slice;
};

// 16 columns of v against all keys, or against the rows of a chunk, eight at a time.
using State = float[KEY_DIM / 8][4];
using Rows = float[CHUNK / 8][4];

__device__ __forceinline__ size_t matrix_of(const GdnChunkParams& p, const Item& item,
                                            uint32_t chunk) {
    return (size_t)(item.sequence.first_chunk + chunk) * p.sizes.value_heads + item.head;
}

template <int PIECES>
__device__ __forceinline__ void fetch_pieces(void* to, const void* from) {
    const uint32_t shared = shared_address(static_cast<uint4*>(to) + threadIdx.x);
    const uint4* global = static_cast<const uint4*>(from) + threadIdx.x;
#pragma unroll
    for (int x = 0; x < PIECES / THREADS; x++) {
        copy16_async(shared + x * THREADS * 16, global + x * THREADS);
    }
    if (PIECES % THREADS > 0 && threadIdx.x < PIECES % THREADS) {
        copy16_async(shared + PIECES / THREADS * THREADS * 16,
                     global + PIECES / THREADS * THREADS);
    }
}

// What the beginning of a chunk needs and its end too.
__device__ __forceinline__ void fetch_keys(ScanShared& shared, const GdnChunkParams& p,
                                           const Item& item, uint32_t chunk) {
    if (chunk >= item.sequence.chunks) return;
    fetch_tile<16>(shared.key[chunk % 2], p, place_of(item.sequence, chunk),
                   key_width(p.sizes) + item.key_head * KEY_DIM);
    fetch_pieces<FACTOR_PIECES>(&shared.factors[chunk % 2],
                                p.factors + matrix_of(p, item, chunk));
}

// What only its first half needs.
__device__ __forceinline__ void fetch_first(ScanShared& shared, const GdnChunkParams& p,
                                            const Item& item, uint32_t chunk) {
    if (chunk >= item.sequence.chunks) return;
    const Place place = place_of(item.sequence, chunk);
    fetch_tile<16>(shared.query, p, place, item.key_head * KEY_DIM);
    fetch_tile<8>(shared.value, p, place,
                  2 * key_width(p.sizes) + item.head * VALUE_DIM + item.slice * COLUMNS);
    fetch_pieces<MATRIX_PIECES>(shared.transform,
                                p.matrices + matrix_of(p, item, chunk) * CHUNK_PIECES);
}

// What only its second half needs.
__device__ __forceinline__ void fetch_second(ScanShared& shared, const GdnChunkParams& p,
                                             const Item& item, uint32_t chunk) {
    const size_t from = matrix_of(p, item, chunk) * CHUNK_PIECES + MATRIX_PIECES;
    fetch_pieces<MATRIX_PIECES>(shared.attention, p.matrices + from);
}

// Right operands of 32 rows of the chunk and 16 keys, of k and of q.
struct ReadOperands {
    uint32_t key[2][4];
    uint32_t query[2][4];
};

// Address of this lane's row of block 0 of a tile of 64 rows, first keys: each lane gives the row of
// one 8 x 8 matrix.
__device__ __forceinline__ uint32_t read_address(const bf16* tile) {
    const uint32_t lane = threadIdx.x % 32;
    return tile_address<16>(tile, lane / 16 * 8 + lane % 8, lane / 8 % 2);
}
constexpr int BLOCK_BYTES = BLOCK * KEY_DIM * sizeof(bf16);

// Group `group` of 16 in the order in which they are used.
__device__ __forceinline__ void load(ReadOperands& b, uint32_t key_tile, uint32_t query_tile,
                                     int group) {
    const uint32_t key = key_tile ^ group / 2 * 32, query = query_tile ^ group / 2 * 32;
#pragma unroll
    for (int x = 0; x < 2; x++) {
        load_matrix_x4(b.key[x], key + (group % 2 * 2 + x) * BLOCK_BYTES);
        load_matrix_x4(b.query[x], query + (group % 2 * 2 + x) * BLOCK_BYTES);
    }
}

// key = S k^T, query = S q^T, and S <- decay S. Operands are loaded a group ahead.
__device__ __forceinline__ void read_state(Rows& key, Rows& query, State& s, float decay,
                                           uint32_t key_tile, uint32_t query_tile) {
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) key[n][e] = query[n][e] = 0;
    }
    constexpr int GROUPS = KEY_DIM / 16 * 2;
    ReadOperands b[2];
    SplitOperand a;
    load(b[0], key_tile, query_tile, 0);
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        const ReadOperands& now = b[group % 2];
        if (group + 1 < GROUPS) load(b[(group + 1) % 2], key_tile, query_tile, group + 1);
        if (group % 2 == 0) {
            split(a, s[group], s[group + 1]);
#pragma unroll
            for (int e = 0; e < 8; e++) s[group + e / 4][e % 4] *= decay;
        }
#pragma unroll
        for (int part = 0; part < 2; part++) {
            const uint32_t(&operand)[4] = part == 0 ? a.high : a.low;
#pragma unroll
            for (int x = 0; x < 4; x++) {
                const int n = group % 2 * 4 + x, y = x % 2 * 2;
                mma_bf16(key[n], operand, now.key[x / 2][y], now.key[x / 2][y + 1]);
                mma_bf16(query[n], operand, now.query[x / 2][y], now.query[x / 2][y + 1]);
            }
        }
    }
}

// Factors of rows 8 n + 2 (lane % 4) and of the next.
__device__ __forceinline__ float2 pair_of(const float (&factors)[CHUNK], int n) {
    return reinterpret_cast<const float2*>(factors)[4 * n + threadIdx.x % 4];
}

// x = v - factor x.
__device__ __forceinline__ void subtract_from_value(Rows& x, const bf16* value_tile,
                                                    const float (&factors)[CHUNK]) {
    constexpr int BYTES = BLOCK * COLUMNS * sizeof(bf16);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t address =
        tile_address<8>(value_tile, lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);
#pragma unroll
    for (int block = 0; block < BLOCK_ROWS; block++) {
        uint32_t v[4];
        load_matrix_x4_transposed(v, address + block * BYTES);
#pragma unroll
        for (int y = 0; y < 4; y++) {
            const int n = 2 * block + y / 2, e = y % 2 * 2;
            const float2 factor = pair_of(factors, n);
            x[n][e] = __fmaf_rn(-factor.x, x[n][e], low_bf16(v[y]));
            x[n][e + 1] = __fmaf_rn(-factor.y, x[n][e + 1], high_bf16(v[y]));
        }
    }
}

// out += x M^T for 16 rows of the chunk in x, block column `column` of M = T or P.
template <int COLUMN>
__device__ __forceinline__ void multiply_blocks(Rows& out, const SplitOperand& x,
                                                const uint4* matrix) {
    constexpr int COUNT = BLOCK_ROWS - COLUMN;
    uint4 high[COUNT], low[COUNT];
#pragma unroll
    for (int y = 0; y < COUNT; y++) {
        const uint4* from = matrix + block_number(COLUMN + y, COLUMN) * BLOCK_PIECES;
        high[y] = from[threadIdx.x % 32];
        low[y] = from[32 + threadIdx.x % 32];
    }
#pragma unroll
    for (int part = 0; part < 3; part++) {
        const uint32_t(&operand)[4] = part == 2 ? x.low : x.high;
#pragma unroll
        for (int y = 0; y < COUNT; y++) {
            const uint4& b = part == 1 ? low[y] : high[y];
            mma_bf16(out[2 * (COLUMN + y)], operand, b.x, b.y);
            mma_bf16(out[2 * (COLUMN + y) + 1], operand, b.z, b.w);
        }
    }
}

// Columns COLUMN .. 4 of T.
template <int COLUMN>
__device__ __forceinline__ void transform_rows(Rows& out, const Rows& x, const uint4* matrix) {
    SplitOperand a;
    split(a, x[2 * COLUMN], x[2 * COLUMN + 1]);
    multiply_blocks<COLUMN>(out, a, matrix);
    if constexpr (COLUMN + 1 < BLOCK_ROWS) transform_rows<COLUMN + 1>(out, x, matrix);
}

// Address of this lane's row of block 0 of k for the transposed operands of `write_rows`.
__device__ __forceinline__ uint32_t write_address(const bf16* key_tile) {
    const uint32_t lane = threadIdx.x % 32;
    return tile_address<16>(key_tile, lane % 16, lane / 16);
}

// s += (factor n)^T k for rows 16 COLUMN .. 16 COLUMN + 16.
template <int COLUMN>
__device__ __forceinline__ void write_rows(State& s, Rows& n, uint32_t key_tile,
                                           const float (&factors)[CHUNK]) {
#pragma unroll
    for (int y = 2 * COLUMN; y < 2 * COLUMN + 2; y++) {
        const float2 factor = pair_of(factors, y);
        n[y][0] *= factor.x;
        n[y][1] *= factor.y;
        n[y][2] *= factor.x;
        n[y][3] *= factor.y;
    }
    SplitOperand a;
    split(a, n[2 * COLUMN], n[2 * COLUMN + 1]);
#pragma unroll
    for (int pair = 0; pair < KEY_DIM / 16; pair += 4) {
        uint32_t b[4][4];
#pragma unroll
        for (int x = 0; x < 4; x++) {
            load_matrix_x4_transposed(b[x],
                                      (key_tile ^ (pair + x) * 32) + COLUMN * BLOCK_BYTES);
        }
#pragma unroll
        for (int part = 0; part < 2; part++) {
            const uint32_t(&operand)[4] = part == 0 ? a.high : a.low;
#pragma unroll
            for (int x = 0; x < 4; x++) {
                mma_bf16(s[2 * (pair + x)], operand, b[x][0], b[x][1]);
                mma_bf16(s[2 * (pair + x) + 1], operand, b[x][2], b[x][3]);
            }
        }
    }
}

// Columns COLUMN .. 4 of P into out, and the same rows into s.
template <int COLUMN>
__device__ __forceinline__ void attend_and_write(Rows& out, State& s, Rows& n, const uint4* matrix,
                                                 uint32_t key_tile, const Factors& factors) {
    SplitOperand a;
    split(a, n[2 * COLUMN], n[2 * COLUMN + 1]);
    multiply_blocks<COLUMN>(out, a, matrix);
    write_rows<COLUMN>(s, n, key_tile, factors.write);
    if constexpr (COLUMN + 1 < BLOCK_ROWS) {
        attend_and_write<COLUMN + 1>(out, s, n, matrix, key_tile, factors);
    }
}

__device__ __forceinline__ void store_rows(const GdnChunkParams& p, const Item& item,
                                           const Place& place, const Rows& out) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, stride = value_width(p.sizes);
    const uint32_t column = item.head * VALUE_DIM + item.slice * COLUMNS + warp * 16 + lane % 4 * 2;
    const uint32_t to = (place.origin + lane / 4) * stride + column;
    const bool whole = is_whole(place);
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++) {
        const uint32_t left = transpose(pack_bf16(out[n][0], out[n][1]));
        const uint32_t right = transpose(pack_bf16(out[n][2], out[n][3]));
        if (whole || holds(place, 8 * n + lane / 4)) {
            uint32_t* at = reinterpret_cast<uint32_t*>(p.out + (to + 8 * n * stride));
            at[0] = left;
            at[4] = right;
        }
    }
}

// One chunk. Its tiles but P are under way.
__device__ __forceinline__ void scan_chunk(State& s, ScanShared& shared, const GdnChunkParams& p,
                                           const Item& item, uint32_t chunk) {
    const bf16* key_tile = shared.key[chunk % 2];
    const Factors& factors = shared.factors[chunk % 2];
    copy_wait<0>();
    __syncthreads();
    fetch_second(shared, p, item, chunk);
    fetch_keys(shared, p, item, chunk + 1);
    copy_commit();
    Rows x, out, n;
    read_state(x, out, s, factors.decay[0], read_address(key_tile), read_address(shared.query));
    subtract_from_value(x, shared.value, factors.read_key);
#pragma unroll
    for (int y = 0; y < CHUNK / 8; y++) {
        const float2 factor = pair_of(factors.read_query, y);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            n[y][e] = 0;
            out[y][e] *= e % 2 == 0 ? factor.x : factor.y;
        }
    }
    transform_rows<0>(n, x, shared.transform);
    copy_wait<0>();
    __syncthreads();
    fetch_first(shared, p, item, chunk + 1);
    copy_commit();
    attend_and_write<0>(out, s, n, shared.attention, write_address(key_tile), factors);
    store_rows(p, item, place_of(item.sequence, chunk), out);
}

// Two keys of a column: [column][key] of the stored state of the item's head.
__device__ __forceinline__ float2* state_at(const GdnChunkParams& p, const Item& item) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t head = (size_t)item.sequence.slot * p.sizes.value_heads + item.head;
    const uint32_t column = item.slice * COLUMNS + warp * 16 + lane / 4;
    return reinterpret_cast<float2*>(p.state + (head * VALUE_DIM + column) * KEY_DIM) + lane % 4;
}

__device__ __forceinline__ void load_state(State& s, const float2* from) {
#pragma unroll
    for (int m = 0; m < KEY_DIM / 8; m++) {
        const float2 top = from[m * 4], bottom = from[8 * KEY_DIM / 2 + m * 4];
        s[m][0] = top.x;
        s[m][1] = top.y;
        s[m][2] = bottom.x;
        s[m][3] = bottom.y;
    }
}

__device__ __forceinline__ void store_state(const State& s, float2* to) {
#pragma unroll
    for (int m = 0; m < KEY_DIM / 8; m++) {
        to[m * 4] = make_float2(s[m][0], s[m][1]);
        to[8 * KEY_DIM / 2 + m * 4] = make_float2(s[m][2], s[m][3]);
    }
}

// The item's rows, from the stored state to the stored state.
__device__ __forceinline__ void scan_item(ScanShared& shared, const GdnChunkParams& p,
                                          const Item& item) {
    fetch_keys(shared, p, item, 0);
    fetch_first(shared, p, item, 0);
    copy_commit();
    State s;
    load_state(s, state_at(p, item));
#pragma unroll 1
    for (uint32_t chunk = 0; chunk < item.sequence.chunks; chunk++) {
        scan_chunk(s, shared, p, item, chunk);
    }
    store_state(s, state_at(p, item));
}
