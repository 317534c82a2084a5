// Attention of the drafter: cached context, then the block's own keys and values.
//
// Units of work, pieces of the context and their merging are those of tree_attention.cu. All rows
// of a block see the same keys, so the tiles behind the committed length are put together from the
// cache and the block's buffers; what a row may not see is masked.
#include "attention_partial.cuh"
#include "attention_ring.cuh"

struct DraftAttentionParams {
    Batch batch;
    Slots slots;
    Kv kv;
    const bf16* query;         // [rows, heads, head_dim]
    const bf16* block_keys;    // [rows, kv heads, head_dim]
    const bf16* block_values;  // [rows, kv heads, head_dim]
    bf16* out;                 // [rows, heads, head_dim]
    Partials partials;
    uint32_t window;  // 0: none
    uint32_t causal;
    uint32_t ring_slots;
};

// Positions first .. end.
struct Range {
    uint32_t first, end;
};

// What position `position` of a sequence with `all` positions sees.
__device__ __forceinline__ Range seen(const DraftAttentionParams& p, uint32_t position,
                                      uint32_t all) {
    const uint32_t first = p.window && position + 1 > p.window ? position + 1 - p.window : 0;
    if (p.causal) return {first, position + 1};
    return {first, p.window ? min(all, position + p.window) : all};
}

// What a block works on: consecutive rows of one sequence; lives in shared memory.
struct DraftUnit {
    Sequence sequence;
    uint32_t split, head, token, tokens, group;
    uint32_t begin, end;  // tiles
    Range all;            // what every row sees of the unit's tiles
    uint32_t stride, offset;

    __device__ __forceinline__ DraftUnit(const DraftAttentionParams& p, const uint32_t* first,
                                         uint32_t unit, uint32_t rows_max) {
        const uint32_t number = sequence_of(first, p.batch.live[1], unit);
        sequence = Sequence(p.batch, p.slots, number);
        group = p.partials.heads / p.kv.heads;
        const uint32_t most = rows_max / group, chunks = (sequence.rows + most - 1) / most;
        uint32_t place = unit - first[number];
        token = place % chunks * most;
        tokens = min(most, sequence.rows - token);
        place /= chunks;
        head = place % p.kv.heads;
        const uint32_t positions = sequence.length + sequence.rows;
        split = split_of(positions - 1) - place / p.kv.heads;
        const Range early = seen(p, sequence.length + token, positions);
        const Range late = seen(p, sequence.length + token + tokens - 1, positions);
        begin = max(split_begin(split), early.first) / TILE_KEYS;
        end = (min(split_begin(split + 1), late.end) + TILE_KEYS - 1) / TILE_KEYS;
        all = {late.first, early.end};
        stride = p.kv.heads * p.kv.head_dim;
        offset = head * p.kv.head_dim;
    }

    __device__ __forceinline__ bool masked(uint32_t tile) const {
        return tile * TILE_KEYS < all.first || (tile + 1) * TILE_KEYS > all.end;
    }

    template <class S>
    __device__ __forceinline__ bool active() const {
        return Lane().pair * S::PAIR_ROWS < tokens * group;
    }
};

template <class S>
struct DraftShared {
    Exchange<S> exchange;
    DraftUnit unit;
    uint32_t pages[2048 / PAGE_TOKENS];
    uint32_t next;
};
// As the launch counts shared memory.
static_assert(sizeof(DraftShared<AttentionShape<128, 4, 2>>) == 64 * 152 + 192, "DraftShared");

// Units of a sequence: pieces that some row sees x KV heads x chunks of rows.
template <class S>
__device__ __forceinline__ uint32_t units_of(const DraftAttentionParams& p, uint32_t number) {
    const Sequence sequence(p.batch, p.slots, number);
    if (sequence.rows == 0) return 0;
    const uint32_t positions = sequence.length + sequence.rows;
    const uint32_t most = S::ROWS / (p.partials.heads / p.kv.heads);
    const uint32_t first = split_of(seen(p, sequence.length, positions).first);
    const uint32_t splits = split_of(positions - 1) + 1 - first;
    return splits * p.kv.heads * ((sequence.rows + most - 1) / most);
}

// Streams the keys and values of a unit's tiles.
template <class S>
struct DraftLoader {
    const DraftAttentionParams& p;
    const DraftUnit& unit;
    const uint32_t* pages;  // from tile `unit.begin` on
    uint32_t next;          // tile * 4 + slot of the tile, keys first

    __device__ __forceinline__ DraftLoader(const DraftAttentionParams& p, const DraftUnit& unit,
                                           const uint32_t* pages)
        : p(p), unit(unit), pages(pages), next(unit.begin * 4) {}

    __device__ __forceinline__ bool more() const { return next < unit.end * 4; }

    __device__ __forceinline__ void copy(uint32_t slot) {
        const uint32_t tile = next / 4, first = tile * TILE_KEYS + next % 2 * SLOT_ROWS;
        const uint32_t length = unit.sequence.length, end = length + unit.sequence.rows;
        const bool keys = next % 4 < 2;
        const bf16* block = (keys ? p.block_keys : p.block_values) +
                            static_cast<size_t>(unit.sequence.start) * unit.stride + unit.offset;
        const uint32_t valid = end > first ? end - first : 0;
        if (first >= length) {
            copy_rows<S>(slot, block + static_cast<size_t>(first - length) * unit.stride,
                         unit.stride, valid);
        } else {
            const uint64_t row = pages[tile - unit.begin] * static_cast<uint64_t>(PAGE_TOKENS) +
                                 first % PAGE_TOKENS;
            const bf16* cached = (keys ? p.kv.keys : p.kv.values) + row * unit.stride + unit.offset;
            if (first + SLOT_ROWS <= length) {
                copy_rows<S>(slot, cached, unit.stride, SLOT_ROWS);
            } else {
                copy_seam(slot, cached, length - first, block, valid);
            }
        }
        ++next;
    }

    // The slot in which the cache ends after `cached_rows` rows and the block begins.
    __device__ __forceinline__ void copy_seam(uint32_t slot, const bf16* cached,
                                              uint32_t cached_rows, const bf16* block,
                                              uint32_t valid) const {
        constexpr uint32_t COLUMNS = S::DIM / 8;
        const uint32_t column = threadIdx.x % COLUMNS;
        for (uint32_t i = threadIdx.x / COLUMNS; i < SLOT_ROWS; i += S::THREADS / COLUMNS) {
            const bf16* row = i < cached_rows ? cached + i * unit.stride
                                              : block + (i - cached_rows) * unit.stride;
            copy16_async_or_zero(slot + i * S::ROW_BYTES + swizzled(column, i & 7),
                                 row + 8 * column, i < valid);
        }
    }
};

// -inf for what a row may not see.
template <class S>
__device__ __forceinline__ void mask_unseen(Scores<S>& scores, const DraftAttentionParams& p,
                                            const DraftUnit& unit, uint32_t tile) {
    const Lane at;
    const uint32_t key = tile * TILE_KEYS + at.half * SLOT_ROWS + at.row;
    const uint32_t positions = unit.sequence.length + unit.sequence.rows;
#pragma unroll
    for (uint32_t n = 0; n < S::TILES; ++n) {
#pragma unroll
        for (uint32_t j = 0; j < 2; ++j) {
            const uint32_t row = at.pair * S::PAIR_ROWS + 8 * n + 2 * at.column + j;
            const uint32_t position = unit.sequence.length + unit.token + row / unit.group;
            const Range range = seen(p, position, positions);
#pragma unroll
            for (uint32_t k = 0; k < 4; ++k) {
                if (key + 8 * k < range.first || key + 8 * k >= range.end) {
                    scores.c[k / 2][n][2 * (k % 2) + j] = -INFINITY;
                }
            }
        }
    }
}

template <class S>
__device__ __forceinline__ void prepare(const DraftAttentionParams& p, const DraftUnit& unit,
                                        DraftShared<S>& shared) {
    const uint32_t* table = p.slots.block_table +
                            static_cast<size_t>(unit.sequence.slot) * p.slots.pages_max +
                            unit.begin;
    const uint32_t cached = (unit.sequence.length + TILE_KEYS - 1) / TILE_KEYS;
    for (uint32_t i = threadIdx.x; unit.begin + i < min(unit.end, cached); i += S::THREADS) {
        shared.pages[i] = table[i];
    }
    shared.exchange.clear();
    __syncthreads();
}

template <class S>
__device__ __forceinline__ void run_unit(const DraftAttentionParams& p, const DraftUnit& unit,
                                         DraftShared<S>& shared, uint32_t ring_base) {
    const uint32_t query_slots = (unit.tokens * unit.group + SLOT_ROWS - 1) / SLOT_ROWS;
    copy_queries<S>(p.query, unit.sequence.start + unit.token, p.partials.heads, unit.head,
                    unit.group, unit.tokens, ring_base);
    DraftLoader<S> loader(p, unit, shared.pages);
    Ring<S, DraftLoader<S>> ring(ring_base, p.ring_slots, query_slots, loader);
    Queries<S> queries;
    Running<S> running;
    clear(running);
    ring.take(query_slots);
    load_queries(queries, ring_base, query_slots * SLOT_ROWS);
    uint32_t parity = 0;
    for (uint32_t tile = unit.begin; tile < unit.end; ++tile, parity ^= 1) {
        const uint32_t keys = ring.take(2);
        if (unit.active<S>()) {
            Scores<S> scores;
            score(scores, queries, ring.address(keys + Lane().half));
            if (unit.masked(tile)) mask_unseen(scores, p, unit, tile);
            weigh(running, scores, shared.exchange, parity);
        }
        const uint32_t slot = ring.take(2);
        if (!unit.active<S>()) {
            idle_pair();
            continue;
        }
        const uint32_t values[2] = {ring.address(slot), ring.address(slot + 1)};
        gather_values(running, shared.exchange, values);
    }
    if (!unit.active<S>()) return;
    store_partial(p.partials, running, shared.exchange, parity, unit.tokens * unit.group,
                  [&](uint32_t row) {
                      const uint32_t token = row / unit.group;
                      return p.partials.index(unit.split,
                                              unit.sequence.start + unit.token + token,
                                              unit.head * unit.group + row - token * unit.group);
                  });
}

// Takes the next unit; one without tokens when there is none. One warp.
template <class S>
__device__ __forceinline__ void next_unit(const DraftAttentionParams& p, DraftShared<S>& shared,
                                          const uint32_t* first, uint32_t sequences) {
    if (threadIdx.x != 0) return;
    const uint32_t number = shared.next;
    shared.next = first[sequences] > gridDim.x ? gridDim.x + atomicAdd(&units_taken, 1) : NONE;
    shared.unit.tokens = 0;
    if (number < first[sequences]) shared.unit = DraftUnit(p, first, number, S::ROWS);
}

template <class S>
__device__ __forceinline__ void attend(const DraftAttentionParams& p) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<DraftShared<S>*>(memory + p.ring_slots * S::SLOT_BYTES);
    uint32_t* first = reinterpret_cast<uint32_t*>(&shared + 1);
    pdl_launch();
    pdl_wait();
    const uint32_t sequences = p.batch.live[1];
    if (threadIdx.x < 32) {
        number_units(first, sequences, [&](uint32_t number) { return units_of<S>(p, number); });
    }
    if (threadIdx.x == 0) shared.next = blockIdx.x;
    __syncthreads();
    for (;;) {
        next_unit(p, shared, first, sequences);
        __syncthreads();
        if (shared.unit.tokens == 0) return;
        prepare(p, shared.unit, shared);
        run_unit(p, shared.unit, shared, shared_address(memory));
        __syncthreads();
    }
}

using Rows32 = AttentionShape<128, 2, 2>;
using Rows64 = AttentionShape<128, 4, 2>;

extern "C" __global__ void __launch_bounds__(Rows32::THREADS) draft_attention_32(
    const __grid_constant__ DraftAttentionParams p) {
    attend<Rows32>(p);
}

extern "C" __global__ void __launch_bounds__(Rows64::THREADS) draft_attention_64(
    const __grid_constant__ DraftAttentionParams p) {
    attend<Rows64>(p);
}

// out = merged / sum; grid (heads, rows).
extern "C" __global__ void __launch_bounds__(MERGE_THREADS) draft_attention_merge(
    const __grid_constant__ DraftAttentionParams p) {
    using S = Rows64;
    __shared__ MergeShared<S::DIM> shared;
    pdl_launch();
    pdl_wait();
    const uint32_t head = blockIdx.x, row = blockIdx.y;
    if (head == 0 && row == 0 && threadIdx.x == 0) units_taken = 0;
    if (row >= p.batch.live[0]) return;
    const uint32_t number = p.batch.row_sequence[row];
    if (number == NONE) return;
    const Sequence sequence(p.batch, p.slots, number);
    if (sequence.rows == 0) return;
    const Range range = seen(p, sequence.length + row - sequence.start,
                             sequence.length + sequence.rows);
    const float2 value = merge<S>(shared, p.partials, split_of(range.first),
                                  split_of(range.end - 1) + 1, row, head);
    if (threadIdx.x >= S::DIM / 2) return;
    bf16* out = p.out + (static_cast<size_t>(row) * p.partials.heads + head) * S::DIM +
                2 * threadIdx.x;
    *reinterpret_cast<__nv_bfloat162*>(out) = __floats2bfloat162_rn(value.x, value.y);
}
