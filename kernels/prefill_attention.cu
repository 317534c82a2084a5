// Attention of the target over a chunk of a prompt, whose keys and values are in the cache.
//
// A block has 96 rows: the query heads of one KV head for some consecutive tokens. It passes over
// all tiles up to its last token; the last ones are masked per row. Blocks of later tokens, which
// have more to do, start first.
#include "attention_ring.cuh"
#include "attention_splits.cuh"

using Rows96 = AttentionShape<256, 4, 3>;

struct PrefillAttentionParams {
    Batch batch;
    Slots slots;
    Kv kv;
    const bf16* query;  // [rows, heads, head_dim]
    const bf16* gate;   // [rows, gate_stride]: head h, value j at column h * 2 * DIM + DIM + j
    bf16* out;          // [rows, heads, head_dim]
    uint32_t heads;
    uint32_t gate_stride;
    uint32_t ring_slots;
};

// Page numbers at hand: the half in use and the next. The latter is fetched so many tiles after
// the former came into use; threads are never further apart than a ring.
constexpr uint32_t PAGES_HALF = 64;
constexpr uint32_t PAGES_LATE = 16;

// Consecutive tokens of one sequence, under one KV head.
struct Chunk {
    Sequence sequence;
    uint32_t head, group, token, tokens;

    __device__ __forceinline__ uint32_t position() const { return sequence.length + token; }
    __device__ __forceinline__ uint32_t tiles() const {
        return (position() + tokens + TILE_KEYS - 1) / TILE_KEYS;
    }
    __device__ __forceinline__ uint32_t rows() const { return tokens * group; }
};

template <class S>
struct PrefillShared {
    Exchange<S> exchange;
    Chunk chunk;
    uint32_t pages[2 * PAGES_HALF];
};
// As the launch counts shared memory.
static_assert(sizeof(PrefillShared<Rows96>) == 96 * 152 + 544, "PrefillShared");

// The chunk of a block; without tokens where there is none. Numbered from the last one on.
__device__ __forceinline__ Chunk chunk_of(const PrefillAttentionParams& p, uint32_t rows_max) {
    const uint32_t group = p.heads / p.kv.heads, most = rows_max / group;
    const uint32_t sequences = p.batch.live[1];
    uint32_t place = blockIdx.y;
    for (uint32_t number = sequences; number-- > 0;) {
        const Sequence sequence(p.batch, p.slots, number);
        const uint32_t chunks = (sequence.rows + most - 1) / most;
        if (place < chunks) {
            const uint32_t token = (chunks - 1 - place) * most;
            return {sequence, blockIdx.x, group, token, min(most, sequence.rows - token)};
        }
        place -= chunks;
    }
    return {Sequence(), 0, group, 0, 0};
}

// Streams keys and values of the tiles from the first position on.
template <class S>
struct PrefillLoader {
    const PrefillAttentionParams& p;
    const Chunk& chunk;
    uint32_t* pages;
    uint32_t next = 0;  // tile * 4 + slot of the tile, keys first

    __device__ __forceinline__ PrefillLoader(const PrefillAttentionParams& p, const Chunk& chunk,
                                             uint32_t* pages)
        : p(p), chunk(chunk), pages(pages) {
        fetch_pages(0, 2 * PAGES_HALF);
        __syncthreads();
    }

    __device__ __forceinline__ void fetch_pages(uint32_t first, uint32_t count) const {
        const uint32_t* table = p.slots.block_table +
                                static_cast<size_t>(chunk.sequence.slot) * p.slots.pages_max;
        for (uint32_t i = thread_number(); i < count; i += S::THREADS) {
            const uint32_t page = first + i;
            if (page < chunk.tiles()) pages[page % (2 * PAGES_HALF)] = table[page];
        }
    }

    __device__ __forceinline__ bool more() const { return next < chunk.tiles() * 4; }

    __device__ __forceinline__ void copy(uint32_t slot) {
        const uint32_t tile = next / 4, stride = p.kv.heads * S::DIM;
        const uint32_t first = tile * TILE_KEYS + next % 2 * SLOT_ROWS;
        const uint64_t row = pages[tile % (2 * PAGES_HALF)] * static_cast<uint64_t>(PAGE_TOKENS) +
                             first % PAGE_TOKENS;
        const bf16* rows =
            (next % 4 < 2 ? p.kv.keys : p.kv.values) + row * stride + chunk.head * S::DIM;
        const uint32_t end = chunk.sequence.length + chunk.sequence.rows;
        copy_rows<S>(slot, rows, stride, end > first ? end - first : 0);
        ++next;
        // The half before this one is used up, by slower threads too: the next one takes its place.
        const uint32_t late = next - 4 * PAGES_LATE;
        if (late % (4 * PAGES_HALF) == 0) fetch_pages(late / 4 + PAGES_HALF, PAGES_HALF);
    }
};

// -inf behind the row's own position.
template <class S>
__device__ __forceinline__ void mask_future(Scores<S>& scores, const Chunk& chunk,
                                            uint32_t tile) {
    const Lane at;
    const uint32_t key = tile * TILE_KEYS + at.half * SLOT_ROWS + at.row;
#pragma unroll
    for (uint32_t n = 0; n < S::TILES; ++n) {
#pragma unroll
        for (uint32_t j = 0; j < 2; ++j) {
            const uint32_t row = at.pair * S::PAIR_ROWS + 8 * n + 2 * at.column + j;
            const uint32_t position = chunk.position() + row / chunk.group;
#pragma unroll
            for (uint32_t k = 0; k < 4; ++k) {
                if (key + 8 * k > position) scores.c[k / 2][n][2 * (k % 2) + j] = -INFINITY;
            }
        }
    }
}

// Two f32 of one 8 x 8 matrix (two rows of an output fragment), transposed.
__device__ __forceinline__ float2 transpose(float x, float y) {
    const uint32_t a = __float_as_uint(x), b = __float_as_uint(y);
    const uint32_t low = transpose(__byte_perm(a, b, 0x5410));
    const uint32_t high = transpose(__byte_perm(a, b, 0x7632));
    return make_float2(__uint_as_float(__byte_perm(low, high, 0x5410)),
                       __uint_as_float(__byte_perm(low, high, 0x7632)));
}

// out = gathered / sum * sigmoid(gate).
template <class S>
__device__ __forceinline__ void store_outputs(const PrefillAttentionParams& p, const Chunk& chunk,
                                              const Running<S>& running,
                                              const Exchange<S>& exchange) {
    const Lane at;
#pragma unroll
    for (uint32_t n = 0; n < S::TILES; ++n) {
        const uint32_t row = at.pair * S::PAIR_ROWS + 8 * n + at.row, token = row / chunk.group;
        const bool live = row < chunk.rows();
        const float inverse = 1.0f / __fadd_rn(exchange.sum[0][row], exchange.sum[1][row]);
        const size_t line = chunk.sequence.start + chunk.token + token;
        const uint32_t head = chunk.head * chunk.group + row - token * chunk.group;
        const uint32_t column = at.half * (S::DIM / 2) + 2 * at.column;
        const bf16* gate = p.gate + line * p.gate_stride + (2 * head + 1) * S::DIM + column;
        bf16* out = p.out + (line * p.heads + head) * S::DIM + column;
#pragma unroll
        for (uint32_t i = 0; i < 2 * S::STRIPS; ++i) {
            const float* c = &running.out[i / 2][n][2 * (i % 2)];
            const float2 value = transpose(c[0], c[1]);
            if (live) {
                const __nv_bfloat162 g = *reinterpret_cast<const __nv_bfloat162*>(gate + 8 * i);
                *reinterpret_cast<__nv_bfloat162*>(out + 8 * i) = __floats2bfloat162_rn(
                    __fmul_rn(__fmul_rn(value.x, inverse), sigmoid(__low2float(g))),
                    __fmul_rn(__fmul_rn(value.y, inverse), sigmoid(__high2float(g))));
            }
        }
    }
}

template <class S>
__device__ __forceinline__ void run_chunk(const PrefillAttentionParams& p, const Chunk& chunk,
                                          PrefillShared<S>& shared, uint32_t ring_base) {
    const uint32_t query_slots = (chunk.rows() + SLOT_ROWS - 1) / SLOT_ROWS;
    shared.exchange.clear();
    copy_queries<S>(p.query, chunk.sequence.start + chunk.token, p.heads, chunk.head, chunk.group,
                    chunk.tokens, ring_base);
    PrefillLoader<S> loader(p, chunk, shared.pages);
    Ring<S, PrefillLoader<S>> ring(ring_base, p.ring_slots, query_slots, loader);
    Queries<S> queries;
    Running<S> running;
    clear(running);
    ring.take(query_slots);
    load_queries(queries, ring_base, query_slots * SLOT_ROWS);
    for (uint32_t tile = 0; tile < chunk.tiles(); ++tile) {
        const uint32_t keys = ring.take(2);
        Scores<S> scores;
        score(scores, queries, ring.address(keys + Lane().half));
        if ((tile + 1) * TILE_KEYS > chunk.position() + 1) mask_future(scores, chunk, tile);
        weigh(running, scores, shared.exchange, tile & 1);
        const uint32_t slot = ring.take(2);
        const uint32_t values[2] = {ring.address(slot), ring.address(slot + 1)};
        gather_values(running, shared.exchange, values);
    }
    store_outputs(p, chunk, running, shared.exchange);
}

// Grid (KV heads, chunks of all sequences at most).
extern "C" __global__ void __launch_bounds__(Rows96::THREADS) prefill_attention(
    const __grid_constant__ PrefillAttentionParams p) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<PrefillShared<Rows96>*>(
        memory + p.ring_slots * Rows96::SLOT_BYTES);
    pdl_launch();
    pdl_wait();
    if (threadIdx.x == 0) shared.chunk = chunk_of(p, Rows96::ROWS);
    __syncthreads();
    if (shared.chunk.tokens > 0) run_chunk(p, shared.chunk, shared, shared_address(memory));
}
