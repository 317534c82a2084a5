// Attention of the target in a step: plain, chain and tree.
//
// A unit of work is one piece of one sequence's context under one KV head, for as many nodes as
// the block's rows hold, or fewer where there would be fewer units than blocks. Blocks take units until none is left; the last pieces, which are the
// longest, come first. The tiles in front of the committed length are the same for all rows of the
// block; the tile of the committed length and the one behind it are gathered per node.
#include "attention_gather.cuh"
#include "attention_partial.cuh"

struct TreeAttentionParams {
    Batch batch;
    Slots slots;
    Kv kv;
    const uint64_t* ancestors;  // [rows]
    const bf16* query;          // [rows, heads, head_dim]
    const bf16* gate;           // [rows, gate_stride], see merge
    bf16* out;                  // [rows, heads, head_dim]
    Partials partials;
    uint32_t gate_stride;
    uint32_t ring_slots;
};

// Pages of the longest piece, of the window's first page before it and its second behind it.
constexpr uint32_t UNIT_PAGES = 2048 / PAGE_TOKENS + 2;

// Units of a sequence of which each takes `nodes` nodes: pieces x KV heads x chunks of nodes.
__device__ __forceinline__ uint32_t count_units(const TreeAttentionParams& p,
                                                const Sequence& sequence, uint32_t nodes) {
    const uint32_t splits = split_of(sequence.length + sequence.rows - 1) + 1;
    return splits * p.kv.heads * ((sequence.rows + nodes - 1) / nodes);
}

// Nodes of a unit. A short context has few pieces: there a pair of warps a unit, on more
// multiprocessors, is through sooner. A long one is read as few times as possible.
__device__ __forceinline__ uint32_t nodes_of_unit(const TreeAttentionParams& p,
                                                  const Sequence& sequence, uint32_t pairs,
                                                  uint32_t pair_rows) {
    const uint32_t group = p.partials.heads / p.kv.heads, blocks = gridDim.x / p.batch.live[1];
    uint32_t used = 1;
    while (used < pairs && count_units(p, sequence, used * pair_rows / group) > blocks) used *= 2;
    return used * pair_rows / group;
}

// What a block works on; lives in shared memory.
struct Unit {
    Sequence sequence;
    uint32_t split, head, node, nodes;  // nodes node .. node + nodes of the sequence
    uint32_t group;                     // query heads of a node
    uint32_t begin, end;                // tiles
    uint32_t page;                      // number of the first page at hand
    uint32_t stride, offset;            // values from one cache index to the next, and to the head

    // For one whole warp, of a block with `pairs` pairs of `pair_rows` rows.
    __device__ __forceinline__ Unit(const TreeAttentionParams& p, const uint32_t* first,
                                    uint32_t unit, uint32_t pairs, uint32_t pair_rows)
        : sequence(p.batch, p.slots, sequence_of(first, p.batch.live[1], unit)) {
        group = p.partials.heads / p.kv.heads;
        const uint32_t most = nodes_of_unit(p, sequence, pairs, pair_rows);
        const uint32_t chunks = (sequence.rows + most - 1) / most;
        uint32_t place = unit - first[sequence_of(first, p.batch.live[1], unit)];
        node = place % chunks * most;
        nodes = min(most, sequence.rows - node);
        place /= chunks;
        head = place % p.kv.heads;
        split = split_of(sequence.length + sequence.rows - 1) - place / p.kv.heads;
        uint32_t deepest = 0;
        for (uint32_t i = threadIdx.x % 32; i < nodes; i += 32) {
            deepest = max(deepest, __popcll(p.ancestors[sequence.start + node + i]) - 1);
        }
        deepest = __reduce_max_sync(~0u, deepest);
        begin = split_begin(split) / TILE_KEYS;
        end = min(split_begin(split + 1), sequence.length + deepest + TILE_KEYS) / TILE_KEYS;
        page = min(begin, committed_tile());
        stride = p.kv.heads * p.kv.head_dim;
        offset = head * p.kv.head_dim;
    }

    // Whether this thread's pair of warps has rows.
    template <class S>
    __device__ __forceinline__ bool active() const {
        return Lane().pair * S::PAIR_ROWS < nodes * group;
    }

    __device__ __forceinline__ uint32_t committed_tile() const { return sequence.length / TILE_KEYS; }

    // Slots of the window from the tile of the committed length on.
    __device__ __forceinline__ uint32_t window_slots() const {
        return (sequence.length % TILE_KEYS + sequence.rows + SLOT_ROWS - 1) / SLOT_ROWS;
    }

    // Slots of a tile's keys, and of its values.
    __device__ __forceinline__ uint32_t slots(uint32_t tile) const {
        return tile < committed_tile() ? 2 : window_slots();
    }

    __device__ __forceinline__ uint32_t query_slots() const {
        return (nodes * group + SLOT_ROWS - 1) / SLOT_ROWS;
    }
};

template <class S>
struct TreeShared {
    Exchange<S> exchange;
    uint64_t ancestors[TREE_ROWS_MAX];
    Unit unit;
    uint32_t pages[UNIT_PAGES];
    uint32_t next;  // unit
};
// As the launch counts shared memory.
static_assert(sizeof(TreeShared<AttentionShape<256, 4, 3>>) == 96 * 152 + 712, "TreeShared");

template <class S>
__device__ __forceinline__ uint32_t units_of(const TreeAttentionParams& p, uint32_t number) {
    const Sequence sequence(p.batch, p.slots, number);
    if (sequence.rows == 0) return 0;
    return count_units(p, sequence, nodes_of_unit(p, sequence, S::GROUPS, S::PAIR_ROWS));
}

// Streams the keys and values of a unit's tiles.
template <class S>
struct TreeLoader {
    const TreeAttentionParams& p;
    const Unit& unit;
    const uint32_t* pages;
    uint32_t next;  // tile * 8 + slot of the tile, keys first

    __device__ __forceinline__ TreeLoader(const TreeAttentionParams& p, const Unit& unit,
                                          const uint32_t* pages)
        : p(p), unit(unit), pages(pages), next(unit.begin * 8) {}

    __device__ __forceinline__ bool more() const { return next < unit.end * 8; }

    __device__ __forceinline__ void copy(uint32_t slot) {
        const uint32_t tile = next / 8, part = next % 8, slots = unit.slots(tile);
        const bool keys = part < slots;
        const uint32_t first = min(tile, unit.committed_tile()) * TILE_KEYS +
                          (keys ? part : part - slots) * SLOT_ROWS;
        const uint64_t row = pages[first / PAGE_TOKENS - unit.page] *
                                 static_cast<uint64_t>(PAGE_TOKENS) +
                             first % PAGE_TOKENS;
        const bf16* rows = (keys ? p.kv.keys : p.kv.values) + row * unit.stride + unit.offset;
        copy_rows<S>(slot, rows, unit.stride, unit.sequence.length + unit.sequence.rows - first);
        next = part + 1 == 2 * slots ? (tile + 1) * 8 : next + 1;
    }
};

// Tables of a unit, in shared memory from the next barrier on.
template <class S>
__device__ __forceinline__ void prepare(const TreeAttentionParams& p, const Unit& unit,
                                        TreeShared<S>& shared) {
    const uint32_t last = unit.end > unit.committed_tile()
                         ? (unit.sequence.length + unit.sequence.rows - 1) / PAGE_TOKENS
                         : unit.end - 1;
    const uint32_t* table =
        p.slots.block_table + static_cast<size_t>(unit.sequence.slot) * p.slots.pages_max;
    for (uint32_t i = threadIdx.x; i < last + 1 - unit.page; i += S::THREADS) {
        shared.pages[i] = table[unit.page + i];
    }
    for (uint32_t i = threadIdx.x; i < unit.nodes; i += S::THREADS) {
        shared.ancestors[i] = p.ancestors[unit.sequence.start + unit.node + i];
    }
    shared.exchange.clear();
    __syncthreads();
}

// The window at slot `first` of the ring, for a tail tile.
template <class S>
__device__ __forceinline__ Window window_of(const TreeAttentionParams& p, const Unit& unit,
                                            const TreeShared<S>& shared, uint32_t tile,
                                            uint32_t ring, uint32_t first) {
    return Window{ring,
                  p.ring_slots,
                  first,
                  unit.sequence.length % TILE_KEYS,
                  (tile - unit.committed_tile()) * TILE_KEYS,
                  unit.group,
                  unit.nodes,
                  shared.ancestors};
}

template <class S>
__device__ __forceinline__ void run_unit(const TreeAttentionParams& p, const Unit& unit,
                                         TreeShared<S>& shared, uint32_t ring_base) {
    copy_queries<S>(p.query, unit.sequence.start + unit.node, p.partials.heads, unit.head,
                    unit.group, unit.nodes, ring_base);
    TreeLoader<S> loader(p, unit, shared.pages);
    Ring<S, TreeLoader<S>> ring(ring_base, p.ring_slots, unit.query_slots(), loader);
    Queries<S> queries;
    Running<S> running;
    clear(running);
    ring.take(unit.query_slots());
    load_queries(queries, ring_base, unit.query_slots() * SLOT_ROWS);
    for (uint32_t tile = unit.begin; tile < unit.end; ++tile) {
        const uint32_t parity = (tile - unit.begin) & 1;
        const bool tail = tile >= unit.committed_tile();
        const uint32_t keys = ring.take(unit.slots(tile));
        if (unit.active<S>()) {
            Scores<S> scores;
            if (tail) {
                score_tail(scores, queries, window_of(p, unit, shared, tile, ring_base, keys));
            } else {
                score(scores, queries, ring.address(keys + Lane().half));
            }
            weigh(running, scores, shared.exchange, parity);
        }
        const uint32_t slot = ring.take(unit.slots(tile));
        if (!unit.active<S>()) {
            idle_pair();
            continue;
        }
        if (tail) {
            gather_tail(running, shared.exchange,
                        window_of(p, unit, shared, tile, ring_base, slot));
        } else {
            const uint32_t values[2] = {ring.address(slot), ring.address(slot + 1)};
            gather_values(running, shared.exchange, values);
        }
    }
    if (!unit.active<S>()) return;
    store_partial(p.partials, running, shared.exchange, (unit.end - unit.begin) & 1,
                  unit.nodes * unit.group,
                  [&](uint32_t row) {
                      const uint32_t node = row / unit.group;
                      return p.partials.index(unit.split,
                                              unit.sequence.start + unit.node + node,
                                              unit.head * unit.group + row - node * unit.group);
                  });
}

// Takes the next unit; one without nodes when there is none. One warp.
template <class S>
__device__ __forceinline__ void next_unit(const TreeAttentionParams& p, TreeShared<S>& shared,
                                          const uint32_t* first, uint32_t sequences) {
    __syncwarp();
    const uint32_t number = shared.next;
    __syncwarp();
    if (threadIdx.x == 0) {
        shared.next = first[sequences] > gridDim.x ? gridDim.x + atomicAdd(&units_taken, 1) : NONE;
        shared.unit.nodes = 0;
    }
    if (number >= first[sequences]) return;
    const Unit unit(p, first, number, S::GROUPS, S::PAIR_ROWS);
    if (threadIdx.x == 0) shared.unit = unit;
}

template <class S>
__device__ __forceinline__ void attend(const TreeAttentionParams& p) {
    extern __shared__ __align__(128) unsigned char memory[];
    TreeShared<S>& shared = *reinterpret_cast<TreeShared<S>*>(memory + p.ring_slots * S::SLOT_BYTES);
    uint32_t* first = reinterpret_cast<uint32_t*>(&shared + 1);
    pdl_launch();
    pdl_wait();
    const uint32_t sequences = p.batch.live[1];
    if (threadIdx.x < 32) {
        number_units(first, sequences, [&](uint32_t number) { return units_of<S>(p, number); });
    }
    __syncthreads();
    if (threadIdx.x == 0) shared.next = blockIdx.x;
    for (;;) {
        if (threadIdx.x < 32) next_unit(p, shared, first, sequences);
        __syncthreads();
        if (shared.unit.nodes == 0) return;
        prepare(p, shared.unit, shared);
        run_unit(p, shared.unit, shared, shared_address(memory));
        __syncthreads();
    }
}

// Rows of a block: 8, 24, 48 or 96.
using Rows8 = AttentionShape<256, 1, 1>;
using Rows24 = AttentionShape<256, 1, 3>;
using Rows48 = AttentionShape<256, 2, 3>;
using Rows96 = AttentionShape<256, 4, 3>;

extern "C" __global__ void __launch_bounds__(Rows8::THREADS) tree_attention_8(
    const __grid_constant__ TreeAttentionParams p) {
    attend<Rows8>(p);
}

extern "C" __global__ void __launch_bounds__(Rows24::THREADS) tree_attention_24(
    const __grid_constant__ TreeAttentionParams p) {
    attend<Rows24>(p);
}

extern "C" __global__ void __launch_bounds__(Rows48::THREADS) tree_attention_48(
    const __grid_constant__ TreeAttentionParams p) {
    attend<Rows48>(p);
}

extern "C" __global__ void __launch_bounds__(Rows96::THREADS) tree_attention_96(
    const __grid_constant__ TreeAttentionParams p) {
    attend<Rows96>(p);
}

// out = merged / sum * sigmoid(gate); grid (heads, rows). The gate of head h, value j stands at
// column h * 2 * DIM + DIM + j.
extern "C" __global__ void __launch_bounds__(MERGE_THREADS) tree_attention_merge(
    const __grid_constant__ TreeAttentionParams p) {
    using S = Rows8;
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
    const uint32_t position = sequence.length + __popcll(p.ancestors[row]) - 1;
    const float2 value = merge<S>(shared, p.partials, 0, split_of(position) + 1, row, head);
    if (threadIdx.x >= S::DIM / 2) return;
    const bf16* gate = p.gate + static_cast<size_t>(row) * p.gate_stride + head * 2 * S::DIM +
                       S::DIM + 2 * threadIdx.x;
    bf16* out = p.out + (static_cast<size_t>(row) * p.partials.heads + head) * S::DIM +
                2 * threadIdx.x;
    const __nv_bfloat162 g = *reinterpret_cast<const __nv_bfloat162*>(gate);
    *reinterpret_cast<__nv_bfloat162*>(out) =
        __floats2bfloat162_rn(__fmul_rn(value.x, sigmoid(__low2float(g))),
                              __fmul_rn(value.y, sigmoid(__high2float(g))));
}
