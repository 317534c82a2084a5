// Gated DeltaNet over trees: a depth-first scan with the state in registers.
//
// A block takes 64 columns of a value head of a sequence at a time: it loads the state, replays the
// rows that the last step accepted, then visits the rows. The state after row 0 is stored (row 0 is
// always accepted). Nothing else of a state leaves the multiprocessor. Prompts: gdn_chunk.cu.
#include "gdn_plan.cuh"
#include "gdn_scan.cuh"

// As the launch has it (crates/ops/src/cuda/gdn_scan.rs).
static_assert(sizeof(Shared) == 65808, "shared memory of a block");

struct GdnScanParams {
    Batch batch;
    Tree tree;
    const uint32_t* pending;
    GdnSizes sizes;
    float* state;
    const bf16* pending_kv;
    const float* pending_gate;
    const float* pending_scale;
    const bf16* qkv;
    const float* gate;
    const float* scale;
    bf16* out;
    // [blocks][SCAN_SLOTS_MAX - 1][STATE_PIECES].
    float4* deep;
};

// The part of a sequence that a block works on.
struct Item {
    uint32_t slot;
    uint32_t start;
    uint32_t rows;
    uint32_t head;
    uint32_t key_head;
    uint32_t slice;
    uint32_t pending;
};

// Where rows lie: addresses of row 0 and strides in values.
struct Source {
    const bf16* key;
    const bf16* query;
    const bf16* value;
    size_t stride;
    const float* gate;
    size_t gate_stride;
    const float* scale;
    size_t scale_stride;
};

__device__ __forceinline__ Item item_of(const GdnScanParams& p, uint32_t number) {
    const uint32_t heads = p.sizes.value_heads;
    const uint32_t sequence = number / (heads * SLICES), part = number % (heads * SLICES);
    Item item;
    item.slot = p.batch.sequence_slot[sequence];
    item.start = p.batch.sequence_start[sequence];
    item.rows = item.slot == NONE ? 0 : p.batch.sequence_rows[sequence];
    item.head = part / SLICES;
    item.key_head = item.head / (heads / p.sizes.key_heads);
    item.slice = part % SLICES;
    item.pending = item.rows == 0 ? 0 : min(p.pending[item.slot], DEPTH_MAX);
    return item;
}

__device__ __forceinline__ Source nodes_of(const GdnScanParams& p, const Item& item) {
    const uint32_t key = key_width(p.sizes), all = channels(p.sizes);
    const bf16* qkv = p.qkv + (size_t)item.start * all;
    return {qkv + key + item.key_head * KEY_DIM,
            qkv + item.key_head * KEY_DIM,
            qkv + 2 * key + item.head * VALUE_DIM + item.slice * COLUMNS,
            all,
            p.gate + ((size_t)item.start * p.sizes.value_heads + item.head) * 2,
            p.sizes.value_heads * 2,
            p.scale + ((size_t)item.start * p.sizes.key_heads + item.key_head) * SCALES,
            p.sizes.key_heads * SCALES};
}

__device__ __forceinline__ Source pending_of(const GdnScanParams& p, const Item& item) {
    const uint32_t key = key_width(p.sizes), stride = key + value_width(p.sizes);
    const size_t first = (size_t)item.slot * DEPTH_MAX;
    const bf16* kv = p.pending_kv + first * stride;
    return {kv + item.key_head * KEY_DIM,
            nullptr,
            kv + key + item.head * VALUE_DIM + item.slice * COLUMNS,
            stride,
            p.pending_gate + (first * p.sizes.value_heads + item.head) * 2,
            p.sizes.value_heads * 2,
            p.pending_scale + first * p.sizes.key_heads + item.key_head,
            p.sizes.key_heads};
}

template <int BYTES>
__device__ __forceinline__ void copy_small_async(void* shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(shared)),
                 "l"(global), "n"(BYTES));
}

// Starts to copy `rows` rows, row_of(0), row_of(1), ... of the source.
template <bool NODES, class RowOf>
__device__ __forceinline__ void fetch(Shared& shared, const Source& source, uint32_t rows,
                                      RowOf row_of) {
    constexpr uint32_t HEAD_PIECES = KEY_DIM / 8, VALUE_PIECES = COLUMNS / 8;
    constexpr uint32_t KEY_PIECES = NODES ? 2 * HEAD_PIECES : HEAD_PIECES;
    for (uint32_t x = threadIdx.x; x < rows * KEY_PIECES; x += THREADS) {
        const uint32_t to = x / KEY_PIECES, piece = x % KEY_PIECES;
        const bf16* from = piece < HEAD_PIECES ? source.key : source.query - KEY_DIM;
        copy16_async(shared_address(shared.raw[to].key_query + piece * 8),
                     from + row_of(to) * source.stride + piece * 8);
    }
    for (uint32_t x = threadIdx.x; x < rows * VALUE_PIECES; x += THREADS) {
        const uint32_t to = x / VALUE_PIECES, piece = x % VALUE_PIECES;
        copy16_async(shared_address(shared.raw[to].value + piece * 8),
                     source.value + row_of(to) * source.stride + piece * 8);
    }
    if (threadIdx.x < rows) {
        const size_t row = row_of(threadIdx.x);
        RawScalars& to = shared.raw_scalars[threadIdx.x];
        const float* scale = source.scale + row * source.scale_stride;
        copy_small_async<8>(&to.decay_log, source.gate + row * source.gate_stride);
        copy_small_async<4>(&to.key_factor, NODES ? scale + 1 : scale);
        if (NODES) {
            copy_small_async<4>(&to.query_factor, scale);
            copy_small_async<4>(&to.product, scale + 2);
        }
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

// Waits for the copies and turns raw row raw_of(n) into row n of the chunk.
template <bool NODES, class RawOf>
__device__ __forceinline__ void land(Shared& shared, uint32_t rows, RawOf raw_of) {
    constexpr uint32_t HEAD_PIECES = KEY_DIM / 8, VALUE_PIECES = COLUMNS / 8;
    constexpr uint32_t KEY_PIECES = NODES ? 2 * HEAD_PIECES : HEAD_PIECES;
    copy_wait<0>();
    __syncthreads();
    for (uint32_t x = threadIdx.x; x < rows * KEY_PIECES; x += THREADS) {
        const uint32_t to = x / KEY_PIECES, at = x % KEY_PIECES * 8;
        widen(shared.rows[to].key_query + at, shared.raw[raw_of(to)].key_query + at, 1.0f);
    }
    for (uint32_t x = threadIdx.x; x < rows * VALUE_PIECES; x += THREADS) {
        const uint32_t to = x / VALUE_PIECES, at = x % VALUE_PIECES * 8;
        const RawScalars& raw = shared.raw_scalars[raw_of(to)];
        widen(shared.rows[to].value + at, shared.raw[raw_of(to)].value + at,
              __fmul_rn(raw.key_factor, raw.beta));
    }
    if (threadIdx.x < rows) {
        const RawScalars& raw = shared.raw_scalars[raw_of(threadIdx.x)];
        const float decay = expf(raw.decay_log);
        const float strength = __fmul_rn(__fmul_rn(raw.key_factor, raw.beta), raw.key_factor);
        RowScalars& to = shared.scalars[threadIdx.x];
        to.decay = decay;
        to.error = __fmul_rn(strength, decay);
        if (NODES) {
            to.read = __fmul_rn(raw.query_factor, decay);
            to.direct = __fmul_rn(raw.query_factor, raw.product);
        }
    }
    __syncthreads();
}

// What the scan of an item carries.
struct Scan {
    const GdnScanParams& p;
    Shared& shared;
    Lane lane;
    // Offset of the item's state in units of 16 bytes, and of its first output.
    uint32_t state;
    uint32_t out;
    LaneState s;
};

__device__ __forceinline__ float4 value_of(const Scan& scan, uint32_t row) {
    return *reinterpret_cast<const float4*>(scan.shared.rows[row].value + scan.lane.column);
}

__device__ __forceinline__ void replay(Scan& scan, uint32_t rows) {
    LaneVector key;
    const Shared& shared = scan.shared;
    load_vector(key, shared.rows[0].key_query, scan.lane.share);
#pragma unroll 1
    for (uint32_t n = 0; n < rows; n++) {
        advance(scan.s, key, shared.scalars[n], value_of(scan, n), shared.rows[n + 1], scan.lane);
    }
}

// Slot `number` of this block, from 1 on.
__device__ __forceinline__ float4* slot_at(const Scan& scan, uint32_t number) {
    const size_t slot = (size_t)blockIdx.x * (SCAN_SLOTS_MAX - 1) + number - 1;
    return scan.p.deep + slot * STATE_PIECES;
}

__device__ __forceinline__ float4* state_at(const Scan& scan) {
    return reinterpret_cast<float4*>(scan.p.state) + scan.state;
}

// Visits first .. first + rows of the plan, whose rows stand in the chunk; the state is stored after
// the first of all.
__device__ __forceinline__ void scan_chunk(Scan& scan, uint32_t first, uint32_t rows) {
    Shared& shared = scan.shared;
    const Lane& lane = scan.lane;
    LaneVector key, query;
    uint32_t word = shared.plan[first];
    load_vector(key, shared.rows[0].key_query, lane.share);
    load_vector(query, shared.rows[0].key_query + KEY_DIM, lane.share);
#pragma unroll 1
    for (uint32_t n = 0; n < rows; n++) {
        const uint32_t now = word, from = plan_restore(now), to = plan_save(now);
        word = shared.plan[first + n + 1];
        if (__builtin_expect(from != NO_SLOT, 0)) {
            if (from == 0) restore(scan.s, shared.slot);
            else restore(scan.s, slot_at(scan, from));
        }
        const float o = visit(scan.s, key, query, shared.scalars[n], value_of(scan, n),
                              shared.rows[n + 1], lane, plan_is_leaf(now));
        const uint32_t row = plan_row(now);
        const uint32_t column = lane.column + lane.share / 2;
        if (lane.share % 2 == 0) {
            scan.p.out[scan.out + row * value_width(scan.p.sizes) + column] =
                __float2bfloat16_rn(o);
        }
        if (__builtin_expect(to != NO_SLOT, 0)) {
            if (to == 0) save(scan.s, shared.slot);
            else save(scan.s, slot_at(scan, to));
        }
        if (__builtin_expect(first + n == 0, 0)) store_state(scan.s, state_at(scan), lane);
    }
}

// Starts to copy the first chunk of the item's rows. A tree that fits one chunk is copied in the
// order of its rows, since the plan is not known yet.
__device__ __forceinline__ void begin(Shared& shared, const GdnScanParams& p, const Item& item,
                                      const Source& nodes) {
    const bool planned = item.rows > CHUNK;
    if (threadIdx.x < 32 && planned) {
        make_plan(shared.plan, p.tree, item.start, item.rows);
    }
    if (planned) __syncthreads();
    fetch<true>(shared, nodes, min(item.rows, CHUNK), [&](uint32_t n) {
        return planned ? plan_row(shared.plan[n]) : n;
    });
    if (threadIdx.x < 32 && !planned) {
        make_plan(shared.plan, p.tree, item.start, item.rows);
    }
}

__device__ __forceinline__ void scan_item(Shared& shared, const GdnScanParams& p, const Item& item,
                                          bool& waited) {
    const uint32_t heads = p.sizes.value_heads;
    const uint32_t column = item.head * VALUE_DIM + item.slice * COLUMNS;
    Scan scan = {p, shared, this_lane(),
                 (item.slot * heads * VALUE_DIM + column) * (KEY_DIM / 4),
                 item.start * heads * VALUE_DIM + column};
    load_state(scan.s, state_at(scan), scan.lane);
    const Source nodes = nodes_of(p, item);
    if (item.pending > 0) {
        fetch<false>(shared, pending_of(p, item), item.pending, [](uint32_t n) { return n; });
        land<false>(shared, item.pending, [](uint32_t n) { return n; });
    }
    if (waited) begin(shared, p, item, nodes);
    replay(scan, item.pending);
    if (!waited) {
        pdl_wait();
        waited = true;
        begin(shared, p, item, nodes);
    }
    const bool in_row_order = item.rows <= CHUNK;
    for (uint32_t first = 0; first < item.rows; first += CHUNK) {
        const uint32_t rows = min(item.rows - first, CHUNK), next = first + CHUNK;
        land<true>(shared, rows, [&](uint32_t n) {
            return in_row_order ? plan_row(shared.plan[n]) : n;
        });
        if (next < item.rows) {
            fetch<true>(shared, nodes, min(item.rows - next, CHUNK), [&](uint32_t n) {
                return plan_row(shared.plan[next + n]);
            });
        }
        scan_chunk(scan, first, rows);
    }
    __syncthreads();
}

__device__ __forceinline__ void scan(const GdnScanParams& p) {
    extern __shared__ __align__(128) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    pdl_launch();
    // The tables that tell which sequence has which slot and rows are filled in front of a step.
    // Blocks without work leave at once, without the wait: they would hold places that the next
    // kernel's blocks then take in an uneven way. Block 0 always waits, and a kernel has not ended
    // before all of its blocks have.
    const uint32_t items = p.batch.live[1] * p.sizes.value_heads * SLICES;
    if (blockIdx.x > 0 && blockIdx.x >= items) return;
    // The state and the pending rows are of an earlier step: loaded and replayed in front of the wait.
    bool waited = false;
    for (uint32_t number = blockIdx.x; number < items; number += gridDim.x) {
        const Item item = item_of(p, number);
        if (item.rows > 0) scan_item(shared, p, item, waited);
    }
    if (!waited) pdl_wait();
}

extern "C" __global__ void __launch_bounds__(THREADS, 3)
    gdn_scan_tree(const __grid_constant__ GdnScanParams p) {
    scan(p);
}
