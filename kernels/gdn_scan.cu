// Gated DeltaNet over trees and chunks: a depth-first scan with the state in registers.
//
// A group of four warps takes 64 columns of a value head of a sequence at a time: it loads the
// state, replays the rows that the last step accepted, then visits the rows. Of a tree the state
// after row 0 is stored (row 0 is always accepted), of a chunk the state after the last row. Nothing
// else of a state leaves the multiprocessor.
//
// A block fills a multiprocessor with up to three groups, and work is dealt to the first groups of
// all blocks before the second ones: blocks of one group each would be placed on whichever
// multiprocessors the kernel in front leaves first, two or three on some and none on others.
#include "gdn_scan.cuh"

constexpr int GROUPS_MAX = 3;

// As the launch has it (crates/ops/src/cuda/gdn_scan.rs).
static_assert(sizeof(Shared) == 64528, "shared memory of a group");

struct GdnScanParams {
    Batch batch;
    Tree tree;
    const uint32_t* pending;
    GdnSizes sizes;
    // 1: trees, 0: chunks.
    uint32_t is_tree;
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
    // [blocks][groups][SCAN_SLOTS_MAX - 1][STATE_PIECES].
    float4* deep;
};

// The part of a sequence that a group works on.
struct Item {
    uint32_t slot;
    uint32_t start;
    uint32_t rows;
    uint32_t head;
    uint32_t key_head;
    uint32_t slice;
    uint32_t pending;
};

__device__ __forceinline__ Item item_of(const GdnScanParams& p, uint32_t number) {
    const uint32_t heads = p.sizes.value_heads;
    const uint32_t sequence = number / (heads * SLICES), part = number % (heads * SLICES);
    Item item;
    const uint32_t rows = p.batch.sequence_rows[sequence];
    item.slot = common(p.batch.sequence_slot[sequence]);
    item.start = common(p.batch.sequence_start[sequence]);
    item.rows = item.slot == NONE ? 0 : common(rows);
    item.head = part / SLICES;
    item.key_head = item.head / (heads / p.sizes.key_heads);
    item.slice = part % SLICES;
    item.pending = item.rows == 0 ? 0 : min(common(p.pending[item.slot]), DEPTH_MAX);
    return item;
}

// What a group carries through an item.
struct Scan {
    const GdnScanParams& p;
    Shared& shared;
    Item item;
    Lane lane;
    LaneState s;
};

// Threads of the group meet.
__device__ __forceinline__ void meet() {
    asm volatile("bar.sync %0, %1;" ::"r"(threadIdx.x / THREADS + 1), "n"(THREADS) : "memory");
}

// Where rows lie: the addresses of row 0 and strides in values. A pending row has no query: its key
// and 1 / |k| stand in for what makes an output, which nobody writes.
struct Source {
    const bf16* key;
    const bf16* query;
    const bf16* value;
    uint32_t stride;
    const float* gate;
    uint32_t gate_stride;
    const float* query_factor;
    const float* key_factor;
    const float* product;
    uint32_t scale_stride;
};

__device__ __forceinline__ Source nodes_of(const GdnScanParams& p, const Item& item) {
    const uint32_t key = key_width(p.sizes), all = channels(p.sizes);
    const bf16* qkv = p.qkv + (size_t)item.start * all;
    const float* scale =
        p.scale + ((size_t)item.start * p.sizes.key_heads + item.key_head) * SCALES;
    return {qkv + key + item.key_head * KEY_DIM,
            qkv + item.key_head * KEY_DIM,
            qkv + 2 * key + item.head * VALUE_DIM + item.slice * COLUMNS,
            all,
            p.gate + ((size_t)item.start * p.sizes.value_heads + item.head) * 2,
            p.sizes.value_heads * 2,
            scale,
            scale + 1,
            scale + 2,
            p.sizes.key_heads * SCALES};
}

__device__ __forceinline__ Source pending_of(const GdnScanParams& p, const Item& item) {
    const uint32_t key = key_width(p.sizes), stride = key + value_width(p.sizes);
    const size_t first = (size_t)item.slot * DEPTH_MAX;
    const bf16* kv = p.pending_kv + first * stride;
    const float* scale = p.pending_scale + first * p.sizes.key_heads + item.key_head;
    return {kv + item.key_head * KEY_DIM,
            kv + item.key_head * KEY_DIM,
            kv + key + item.head * VALUE_DIM + item.slice * COLUMNS,
            stride,
            p.pending_gate + (first * p.sizes.value_heads + item.head) * 2,
            p.sizes.value_heads * 2,
            scale,
            scale,
            scale,
            p.sizes.key_heads};
}

__device__ __forceinline__ void copy4_async(void* shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(shared)),
                 "l"(global));
}

// Starts to copy row `row` of the source to raw row `to`: a lane has 16 bytes of k or q, lanes 0-7
// also 16 bytes of v, lanes 8-12 a scalar each.
__device__ __forceinline__ void fetch_row(RawRow& to, const Source& source, uint32_t row) {
    const uint32_t lane = threadIdx.x % 32;
    const size_t at = (size_t)row * source.stride;
    const bf16* head = lane < 16 ? source.key : source.query - KEY_DIM;
    copy16_async(shared_address(to.key_query + lane * 8), head + at + lane * 8);
    const float* gate = source.gate + (size_t)row * source.gate_stride;
    const size_t scale = (size_t)row * source.scale_stride;
    if (lane < COLUMNS / 8) {
        copy16_async(shared_address(to.value + lane * 8), source.value + at + lane * 8);
    } else if (lane < 10) {
        copy4_async(&to.decay_log + (lane - 8), gate + (lane - 8));
    } else if (lane == 10) {
        copy4_async(&to.query_factor, source.query_factor + scale);
    } else if (lane == 11) {
        copy4_async(&to.key_factor, source.key_factor + scale);
    } else if (lane == 12) {
        copy4_async(&to.product, source.product + scale);
    }
}

// Starts to copy `rows` rows, row_of(0), row_of(1), ...: each warp every fourth.
template <class RowOf>
__device__ __forceinline__ void fetch(Shared& shared, const Source& source, uint32_t rows,
                                      RowOf row_of) {
#pragma unroll 1
    for (uint32_t n = threadIdx.x % THREADS / 32; n < rows; n += WARPS) {
        fetch_row(shared.raw[n], source, row_of(n));
    }
    copy_commit();
}

__device__ __forceinline__ void widen(float* to, const bf16* from, float factor) {
    float values[8];
    unpack_bf16(values, *reinterpret_cast<const uint4*>(from));
    float4* out = reinterpret_cast<float4*>(to);
    out[0] = make_float4(__fmul_rn(values[0], factor), __fmul_rn(values[1], factor),
                         __fmul_rn(values[2], factor), __fmul_rn(values[3], factor));
    out[1] = make_float4(__fmul_rn(values[4], factor), __fmul_rn(values[5], factor),
                         __fmul_rn(values[6], factor), __fmul_rn(values[7], factor));
}

// Waits for the copies and turns raw rows into rows. A warp turns what it copied itself, so warps
// meet only before they overwrite the rows of the last chunk and before they read these.
__device__ __forceinline__ void land(Shared& shared, uint32_t rows) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x % THREADS / 32;
    copy_wait<0>();
    meet();
#pragma unroll 1
    for (uint32_t n = warp; n < rows; n += WARPS) {
        const RawRow& raw = shared.raw[n];
        widen(shared.rows[n].key + lane * 8, raw.key_query + lane * 8, 1.0f);
        if (lane < COLUMNS / 8) {
            widen(shared.rows[n].value + lane * 8, raw.value + lane * 8,
                  __fmul_rn(raw.key_factor, raw.beta));
        }
    }
    const uint32_t n = warp + lane * WARPS;
    if (lane < CHUNK / WARPS && n < rows) {
        const RawRow& raw = shared.raw[n];
        const float decay = expf(raw.decay_log);
        const float strength = __fmul_rn(__fmul_rn(raw.key_factor, raw.beta), raw.key_factor);
        *reinterpret_cast<float4*>(&shared.rows[n].decay) =
            make_float4(decay, __fmul_rn(strength, decay), __fmul_rn(raw.query_factor, decay),
                        __fmul_rn(raw.query_factor, raw.product));
    }
    meet();
}

// Slot `number` of this group, from 1 on.
__device__ __forceinline__ float4* slot_at(const Scan& scan, uint32_t number) {
    const uint32_t group = blockIdx.x * (blockDim.x / THREADS) + threadIdx.x / THREADS;
    const size_t slot = (size_t)group * (SCAN_SLOTS_MAX - 1) + number - 1;
    return scan.p.deep + slot * STATE_PIECES;
}

__device__ __forceinline__ float4* state_at(const Scan& scan) {
    const Item& item = scan.item;
    const size_t head = (size_t)item.slot * scan.p.sizes.value_heads + item.head;
    return reinterpret_cast<float4*>(scan.p.state) + (head * SLICES + item.slice) * STATE_PIECES;
}

// Visits plan[0 .. rows]; outputs go to `out` and on. The state is stored behind visit `stored`.
__device__ __forceinline__ void visit_rows(Scan& scan, const uint32_t* plan, uint32_t rows,
                                           bf16* out, uint32_t stored) {
    const Lane& lane = scan.lane;
    const uint32_t chunk = shared_address(scan.shared.rows);
    const uint32_t width = value_width(scan.p.sizes);
    LaneVector key, query;
    uint32_t word = common(plan[0]);
    load_vector(key, chunk + plan_place(word) * sizeof(Row), lane);
    load_vector(query, chunk + plan_place(word) * sizeof(Row) + offsetof(Row, query), lane);
#pragma unroll 1
    for (uint32_t n = 0; n < rows; n++) {
        const uint32_t next = common(plan[n + 1]), from = plan_restore(word), to = plan_save(word);
        if (__builtin_expect(from != NO_SLOT, 0)) {
            if (from == 0) restore(scan.s, scan.shared.slot);
            else restore(scan.s, slot_at(scan, from));
        }
        const float o = visit(scan.s, key, query, chunk + plan_place(word) * sizeof(Row),
                              chunk + plan_place(next) * sizeof(Row), lane, word & PLAN_LEAF);
        if (!(word & PLAN_SILENT) && lane.share % 2 == 0) {
            out[plan_row(word) * width] = __float2bfloat16_rn(o);
        }
        if (__builtin_expect(to != NO_SLOT, 0)) {
            if (to == 0) save(scan.s, scan.shared.slot);
            else save(scan.s, slot_at(scan, to));
        }
        if (__builtin_expect(n == stored, 0)) store_state(scan.s, state_at(scan), lane);
        word = next;
    }
}

// The history of this item's share of the channels becomes the last three rows of
// [history; mixed].
__device__ __forceinline__ void roll_history(const GdnScanParams& p, const Item& item) {
    const uint32_t all = channels(p.sizes), items = p.sizes.value_heads * SLICES;
    bf16* history = p.conv + (size_t)item.slot * HISTORY * all;
    const bf16* mixed = p.mixed + (size_t)item.start * p.sizes.mixed_stride;
    const uint32_t part = item.head * SLICES + item.slice;
    for (uint32_t x = part * THREADS + threadIdx.x % THREADS; x < all / 8; x += items * THREADS) {
        uint4 last[HISTORY];
#pragma unroll
        for (uint32_t t = 0; t < HISTORY; t++) {
            const uint32_t entry = item.rows + t;
            const bf16* from = entry < HISTORY
                                   ? history + (size_t)entry * all
                                   : mixed + (size_t)(entry - HISTORY) * p.sizes.mixed_stride;
            last[t] = *reinterpret_cast<const uint4*>(from + x * 8);
        }
#pragma unroll
        for (uint32_t t = 0; t < HISTORY; t++) {
            *reinterpret_cast<uint4*>(history + (size_t)t * all + x * 8) = last[t];
        }
    }
}

// Rows of a chunk in the order in which they stand.
__device__ __forceinline__ void list_plan(Shared& shared, uint32_t flags) {
    const uint32_t n = threadIdx.x % THREADS;
    if (n < CHUNK) shared.plan[n] = list_word(n, flags);
}

// Starts to copy a chunk of the item's rows. Of a tree the plan says which they are, unless one
// chunk takes all: then they are copied in their own order, since the plan takes as long.
__device__ __forceinline__ void fetch_chunk(Scan& scan, uint32_t first) {
    const Shared& shared = scan.shared;
    const bool planned = scan.p.is_tree && scan.item.rows > CHUNK;
    fetch(scan.shared, nodes_of(scan.p, scan.item), min(scan.item.rows - first, CHUNK),
          [&](uint32_t n) { return planned ? plan_row(shared.plan[first + n]) : first + n; });
}

// Makes the plan of the item's rows and starts to copy the first of them.
__device__ __forceinline__ void begin(Scan& scan, bool& waited) {
    if (!waited) pdl_wait();
    waited = true;
    const Item& item = scan.item;
    const bool planned = scan.p.is_tree && item.rows > CHUNK;
    if (!planned) fetch_chunk(scan, 0);
    if (!scan.p.is_tree) list_plan(scan.shared, 0);
    else if (threadIdx.x % THREADS < 32) {
        make_plan(scan.shared.plan, scan.p.tree, item.start, item.rows, CHUNK);
    }
    if (planned) {
        meet();
        fetch_chunk(scan, 0);
    }
}

// Brings the state up to date with the rows that the last step accepted, then visits the item's
// rows chunk by chunk. One loop, so that its code is at hand when the rows arrive.
__device__ __forceinline__ void scan_item(Scan& scan, bool& waited) {
    const Item& item = scan.item;
    Shared& shared = scan.shared;
    const uint32_t width = value_width(scan.p.sizes);
    const uint32_t column = item.head * VALUE_DIM + item.slice * COLUMNS + scan.lane.column;
    bf16* out = scan.p.out + (size_t)item.start * width + column + scan.lane.share / 2;
    load_state(scan.s, state_at(scan), scan.lane);
    bool replays = item.pending > 0, begun = false;
    for (uint32_t first = 0; first < item.rows;) {
        if (replays) {
            fetch(shared, pending_of(scan.p, item), item.pending, [](uint32_t n) { return n; });
            list_plan(shared, PLAN_SILENT);
        } else if (!begun) {
            begin(scan, waited);
            begun = true;
        }
        const uint32_t rows = replays ? item.pending : min(item.rows - first, CHUNK);
        const uint32_t next = replays ? 0 : first + CHUNK;
        land(shared, rows);
        if (!replays && next < item.rows) fetch_chunk(scan, next);
        const bool in_plan = scan.p.is_tree && !replays;
        const uint32_t last = scan.p.is_tree ? 0 : item.rows - 1;
        visit_rows(scan, shared.plan + (in_plan ? first : 0), rows,
                   out + (in_plan ? 0 : (size_t)first * width), replays ? NONE : last - first);
        if (replays) meet();
        first = next;
        replays = false;
    }
    if (!scan.p.is_tree) roll_history(scan.p, item);
    meet();
}

// Grid: blocks of one to GROUPS_MAX groups, with `Shared` for each.
extern "C" __global__ void __launch_bounds__(THREADS* GROUPS_MAX, 1)
    gdn_scan(const __grid_constant__ GdnScanParams p) {
    extern __shared__ __align__(128) unsigned char memory[];
    pdl_launch();
    const uint32_t group = common(threadIdx.x / THREADS), thread = threadIdx.x % THREADS;
    const uint32_t groups = gridDim.x * (blockDim.x / THREADS);
    // The tables that tell which sequence has which slot and rows are filled in front of a step.
    const uint32_t items = common(p.batch.live[1]) * p.sizes.value_heads * SLICES;
    // A state and its pending rows are of an earlier step, so that both are read in front of the
    // wait; a prompt's chunks may follow each other without a step between them.
    bool waited = !p.is_tree;
    if (waited) pdl_wait();
    Scan scan = {p, reinterpret_cast<Shared*>(memory)[group], {},
                 {thread % SHARE, thread / SHARE * LANE_COLUMNS}};
    for (uint32_t n = blockIdx.x + group * gridDim.x; n < items; n += groups) {
        scan.item = item_of(p, n);
        if (scan.item.rows > 0) scan_item(scan, waited);
    }
    if (!waited) pdl_wait();
}
