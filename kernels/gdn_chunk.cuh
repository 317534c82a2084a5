// Gated DeltaNet over prompts in chunks of 64 rows (the WY representation of the delta rule).
//
// Of a chunk of a head, with rows k_i, q_i, v_i as they stand behind the convolution, r_i = 1 / |k_i|
// and p_i = 1 / (|q_i| sqrt(128)), G_i the sum of the log decays g up to row i of the chunk,
// D_ij = e^(G_i - G_j) for j <= i and 0 above, and S the state in front of it:
//
//     A_ij = beta_i r_i r_j (k_i.k_j) D_ij for j < i         T = (I + A)^-1 diag(beta)
//     P_ij = p_i r_j (q_i.k_j) D_ij for j <= i
//     X_i  = v_i - r_i e^G_i (k_i S)                         N = T X
//     o_i  = p_i e^G_i (q_i S) + (P N)_i                     S <- e^G_C S + sum k_i r_i e^(G_C-G_i) N_i
//
// gdn_chunk_transform makes T and P of all chunks at once, gdn_chunk_scan goes from chunk to chunk.
//
// Every product runs on tensor cores, bf16 into f32. k, q and v are bf16 and enter as they are. What
// is f32 (S, X, N, T, P) enters as a sum of two bf16, which leaves a relative error of 2^-18: an
// f32 rounded once to bf16 would put 2.4e-6 (normalised squared error) on the state, half of what an
// output may differ.
//
// Chunks start at positions that are multiples of 64, wherever the rows of a call start. A chunk
// whose rows come in two calls is the one exception to "bits depend on the sequence alone": calls
// end at multiples of 64 or with the prompt.
#pragma once
#include "gdn.cuh"

constexpr int CHUNK = 64;
constexpr int THREADS = 128;
constexpr int WARPS = THREADS / 32;
// Columns of v that a block of the scan takes, 16 a warp.
constexpr int COLUMNS = 64;
constexpr int SLICES = VALUE_DIM / COLUMNS;
// T and P: blocks of 16 x 16 on and under the diagonal, block row after block row.
constexpr int BLOCK = 16;
constexpr int BLOCK_ROWS = CHUNK / BLOCK;
constexpr int BLOCKS = BLOCK_ROWS * (BLOCK_ROWS + 1) / 2;
// A block in 16-byte pieces: [high, low][lane], the B operands of two m16n8k16.
constexpr int BLOCK_PIECES = 2 * 32;
constexpr int MATRIX_PIECES = BLOCKS * BLOCK_PIECES;
// T, then P.
constexpr int CHUNK_PIECES = 2 * MATRIX_PIECES;

// What a row of a chunk multiplies with: r e^G, p e^G, r e^(G_C - G); and e^G_C in all of `decay`.
struct alignas(16) Factors {
    float read_key[CHUNK];
    float read_query[CHUNK];
    float write[CHUNK];
    float decay[CHUNK];
};
constexpr int FACTOR_PIECES = sizeof(Factors) / 16;

struct GdnChunkParams {
    Batch batch;
    const uint32_t* length;
    const uint32_t* pending;
    GdnSizes sizes;
    float* state;
    bf16* conv;
    const bf16* pending_kv;
    const float* pending_gate;
    const float* pending_scale;
    const bf16* mixed;
    const bf16* qkv;
    const float* gate;
    const float* scale;
    bf16* out;
    // [chunks][value_heads][CHUNK_PIECES]
    uint4* matrices;
    // [chunks][value_heads]
    Factors* factors;
};

// Rows of a sequence in this call, cut into chunks.
struct Sequence {
    uint32_t slot;
    uint32_t start;
    uint32_t rows;
    // Rows of its first chunk that lie in front of this call.
    uint32_t before;
    uint32_t chunks;
    // Number of its first chunk in `matrices` and `factors`. Segments lie in the order of their
    // sequences, and one of n rows has at most n / 64 + 2 chunks.
    uint32_t first_chunk;
};

__device__ __forceinline__ Sequence sequence_of(const GdnChunkParams& p, uint32_t number) {
    Sequence found;
    found.slot = p.batch.sequence_slot[number];
    found.start = p.batch.sequence_start[number];
    found.rows = found.slot == NONE ? 0 : p.batch.sequence_rows[number];
    found.before = found.rows == 0 ? 0 : p.length[found.slot] % CHUNK;
    found.chunks = found.rows == 0 ? 0 : (found.before + found.rows + CHUNK - 1) / CHUNK;
    found.first_chunk = found.start / CHUNK + 2 * number;
    return found;
}

// Where the rows of a chunk are: row n of it is row `origin` + n of the batch, modulo 2^32, if
// first <= n < end. Values of all rows are numbered in 32 bits.
struct Place {
    uint32_t origin;
    uint32_t first;
    uint32_t end;
};

__device__ __forceinline__ Place place_of(const Sequence& sequence, uint32_t chunk) {
    const uint32_t last = sequence.before + sequence.rows;
    return {sequence.start + chunk * CHUNK - sequence.before,
            chunk == 0 ? sequence.before : 0, min(last - chunk * CHUNK, CHUNK)};
}

__device__ __forceinline__ bool holds(const Place& place, uint32_t row) {
    return row >= place.first && row < place.end;
}

__device__ __forceinline__ bool is_whole(const Place& place) {
    return place.first == 0 && place.end == CHUNK;
}

// Address of 16-byte piece `piece` of a row of a tile with PIECES pieces a row. Eight rows at the
// same piece lie in different banks. Tiles are aligned to 256 bytes: the address of piece
// `piece` ^ x is that of `piece` ^ 16 x.
template <int PIECES>
__device__ __forceinline__ uint32_t tile_address(const bf16* tile, uint32_t row, uint32_t piece) {
    return shared_address(tile) + (row * PIECES + (piece ^ (row & 7))) * 16;
}

// Starts to copy columns from `column` of qkv of a chunk's rows to a tile; zeros for rows that the
// chunk lacks.
template <int PIECES>
__device__ __forceinline__ void fetch_tile(bf16* tile, const GdnChunkParams& p, const Place& place,
                                           uint32_t column) {
    // Rows at a time, a multiple of eight: all of a thread's pieces are swizzled alike.
    constexpr int ROWS = THREADS / PIECES;
    const uint32_t row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
    const uint32_t to = tile_address<PIECES>(tile, row, piece), stride = channels(p.sizes);
    // Values in front of the chunk's row 0, which may lie in front of the buffer, wrap around.
    const uint32_t from = (place.origin + row) * stride + column + piece * 8;
    if (is_whole(place)) {
#pragma unroll
        for (int x = 0; x < CHUNK / ROWS; x++) {
            copy16_async(to + x * THREADS * 16, p.qkv + (from + x * ROWS * stride));
        }
    } else {
#pragma unroll 1
        for (int x = 0; x < CHUNK / ROWS; x++) {
            const bool valid = holds(place, x * ROWS + row);
            copy16_async_or_zero(to + x * THREADS * 16,
                                 p.qkv + (valid ? from + x * ROWS * stride : 0), valid);
        }
    }
}

// x, y as high + low, each a pair of bf16.
__device__ __forceinline__ void split(uint32_t& high, uint32_t& low, float x, float y) {
    high = pack_bf16(x, y);
    low = pack_bf16(x - low_bf16(high), y - high_bf16(high));
}

// An A operand, 16 x 16, as the sum of two.
struct SplitOperand {
    uint32_t high[4];
    uint32_t low[4];
};

// From two accumulators that lie side by side.
__device__ __forceinline__ void split(SplitOperand& a, const float (&left)[4],
                                      const float (&right)[4]) {
    split(a.high[0], a.low[0], left[0], left[1]);
    split(a.high[1], a.low[1], left[2], left[3]);
    split(a.high[2], a.low[2], right[0], right[1]);
    split(a.high[3], a.low[3], right[2], right[3]);
}

// Number of block (row, column).
__device__ __forceinline__ constexpr int block_number(int row, int column) {
    return row * (row + 1) / 2 + column;
}
