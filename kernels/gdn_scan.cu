// Gated DeltaNet over trees: a depth-first scan with the state in registers.
//
// A block takes 64 or 128 columns of a value head of a sequence at a time: it loads the state,
// replays the rows that the last step accepted, then visits the rows. The state after row 0 is
// stored (row 0 is always accepted); nothing else of a state leaves the multiprocessor. While a
// block scans, its next item's state and first rows are on their way. Prompts: gdn_chunk.cu.
#include "gdn_plan.cuh"
#include "gdn_scan.cuh"

struct GdnScanParams {
    Batch batch;
    Tree tree;
    const uint32_t* pending;
    GdnSizes sizes;
    // 0, which the compiler must not know (see `Lane`).
    uint32_t zero;
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

// Values that all threads have in common (see `common` of one).
__device__ __forceinline__ Item common(const Item& item) {
    return {common(item.slot),     common(item.start), common(item.rows),   common(item.head),
            common(item.key_head), common(item.slice), common(item.pending)};
}

template <int LC>
struct Shared {
    RawRow<LC> raw[CHUNK];
    Row<LC> rows[CHUNK];
    // One word more than there can be visits, since the next one is read ahead.
    uint32_t plan[TREE_ROWS_MAX + 1];
    // Visits behind which the slot is free.
    uint32_t slot_free;
    Item next;
    // A saved state, or the next item's on its way. Other saved ones go to global memory.
    alignas(16) float4 slot[STATE_PIECES<LC>];
};

// As the launch has it (crates/ops/src/cuda/gdn_scan.rs).
static_assert(sizeof(Shared<4>) == 62768 && sizeof(Shared<8>) == 99632, "a block's shared memory");

// Item `number` of those before `end`; behind them are items without rows.
template <int LC>
__device__ __forceinline__ Item item_of(const GdnScanParams& p, uint32_t number, uint32_t end) {
    const uint32_t heads = p.sizes.value_heads, parts = heads * SLICES<LC>;
    const uint32_t sequence = number / parts, part = number % parts;
    Item item = {};
    if (number >= end) return item;
    const uint32_t rows = p.batch.sequence_rows[sequence];
    item.slot = p.batch.sequence_slot[sequence];
    item.start = p.batch.sequence_start[sequence];
    item.head = part / SLICES<LC>;
    item.key_head = item.head / (heads / p.sizes.key_heads);
    item.slice = part % SLICES<LC>;
    if (item.slot == NONE) return item;
    item.rows = rows;
    if (rows > 0) item.pending = min(p.pending[item.slot], DEPTH_MAX);
    return item;
}

// First of the item's columns within its row of values.
template <int LC>
__device__ __forceinline__ uint32_t column_of(const Item& item) {
    return item.head * VALUE_DIM + item.slice * COLUMNS<LC>;
}

template <int LC>
__device__ __forceinline__ Source nodes_of(const GdnScanParams& p, const Item& item) {
    const uint32_t key = key_width(p.sizes), all = channels(p.sizes);
    const bf16* qkv = p.qkv + (size_t)item.start * all;
    return {qkv + key + item.key_head * KEY_DIM,
            qkv + item.key_head * KEY_DIM,
            qkv + 2 * key + column_of<LC>(item),
            all,
            p.gate + ((size_t)item.start * p.sizes.value_heads + item.head) * 2,
            p.sizes.value_heads * 2,
            p.scale + ((size_t)item.start * p.sizes.key_heads + item.key_head) * SCALES,
            p.sizes.key_heads * SCALES,
            1};
}

template <int LC>
__device__ __forceinline__ Source pending_of(const GdnScanParams& p, const Item& item) {
    const uint32_t key = key_width(p.sizes), stride = key + value_width(p.sizes);
    const size_t first = (size_t)item.slot * DEPTH_MAX;
    const bf16* kv = p.pending_kv + first * stride;
    return {kv + item.key_head * KEY_DIM,
            kv + item.key_head * KEY_DIM,
            kv + key + column_of<LC>(item),
            stride,
            p.pending_gate + (first * p.sizes.value_heads + item.head) * 2,
            p.sizes.value_heads * 2,
            p.pending_scale + first * p.sizes.key_heads + item.key_head,
            p.sizes.key_heads,
            0};
}

// Of the item's state, in units of 16 bytes from the first one on.
template <int LC>
__device__ __forceinline__ uint32_t state_offset(const GdnScanParams& p, const Item& item) {
    const uint32_t head = item.slot * p.sizes.value_heads + item.head;
    return (head * SLICES<LC> + item.slice) * STATE_PIECES<LC>;
}

template <int LC>
__device__ __forceinline__ float4* state_at(const GdnScanParams& p, const Item& item) {
    return reinterpret_cast<float4*>(p.state) + state_offset<LC>(p, item);
}

// Slot `number` of this block, from 1 on.
template <int LC>
__device__ __forceinline__ float4* slot_at(const GdnScanParams& p, uint32_t number) {
    const size_t slot = (size_t)blockIdx.x * (SCAN_SLOTS_MAX - 1) + number - 1;
    return p.deep + slot * STATE_PIECES<LC>;
}

// What a block carries from item to item.
template <int LC>
struct Scan {
    const GdnScanParams& p;
    Shared<LC>& shared;
    Lane lane;
    // Whether the wait is behind.
    bool waited;
    // Whether the item's own first rows are on their way.
    bool copied;
    // Where the sequence begins whose plan stands in shared memory.
    uint32_t planned;
};

// Rows of more than a chunk are copied in the order of the plan. Those of one chunk are copied in
// their own order, since the plan takes as long.
__device__ __forceinline__ bool needs_plan(const Item& item) {
    return item.rows > CHUNK;
}

// Starts to copy the rows of the chunk of visits that begins at `first`.
template <int LC>
__device__ __forceinline__ void fetch_nodes(Scan<LC>& scan, const Item& item,
                                            uint32_t first) {
    const bool by_plan = needs_plan(item);
    const uint32_t* plan = scan.shared.plan + first;
    fetch(scan.shared.raw, nodes_of<LC>(scan.p, item), min(item.rows - first, CHUNK),
          [&](uint32_t n) { return by_plan ? plan_row(plan[n]) : first + n; });
}

// Starts to copy the rows that an item begins with: those to replay, or its own where the wait is
// behind and their order is known.
template <int LC>
__device__ __forceinline__ void fetch_first(Scan<LC>& scan, const Item& item) {
    const bool replays = item.pending > 0, by_plan = needs_plan(item) && !replays;
    const bool known = scan.waited && (!by_plan || scan.planned == item.start);
    scan.copied = !replays && item.rows > 0 && known;
    if (!replays && !scan.copied) return;
    const Source source = replays ? pending_of<LC>(scan.p, item) : nodes_of<LC>(scan.p, item);
    const uint32_t* plan = scan.shared.plan;
    fetch(scan.shared.raw, source, replays ? item.pending : min(item.rows, CHUNK),
          [&](uint32_t n) { return by_plan ? plan_row(plan[n]) : n; });
}

// Makes the plan of the item's rows unless it is there, and starts to copy the first rows unless
// they are on their way.
template <int LC>
__device__ __forceinline__ void begin(Scan<LC>& scan, const Item& item) {
    const bool by_plan = needs_plan(item), makes = scan.planned != item.start;
    if (!by_plan && !scan.copied) fetch_nodes(scan, item, 0);
    if (makes && common(threadIdx.x / 32) == 0) {
        const int last = make_plan(scan.shared.plan, scan.p.tree, item.start, item.rows, CHUNK);
        if (threadIdx.x == 0) scan.shared.slot_free = last;
    }
    scan.planned = item.start;
    if (!by_plan || scan.copied) return;
    if (makes) __syncthreads();
    fetch_nodes(scan, item, 0);
}

// Replays the rows of the chunk.
template <int LC>
__device__ __forceinline__ void replay(float (&s)[LC][LANE_ROWS], const Row<LC>* rows,
                                       uint32_t count, const Lane& lane) {
    RowAt<LC> row = {shared_address(rows)};
    LaneVector key;
    load_vector(key, row.key(lane));
#pragma unroll 1
    for (uint32_t n = 0; n < count; n++) {
        // The last row stands in for the one behind it.
        const uint32_t step = n + 1 < count ? sizeof(Row<LC>) : 0;
        const RowAt<LC> next = {row.address + step};
        advance<LC>(s, key, row, next, lane);
        row = next;
    }
}

template <int LC>
__device__ __forceinline__ RowAt<LC> row_at(uint32_t chunk, uint32_t word) {
    return {chunk + plan_place(word) * static_cast<uint32_t>(sizeof(Row<LC>))};
}

// The visit of the item from which on its successor's state is copied, if it has one.
constexpr uint32_t NEVER = 1 << 20;
template <int LC>
__device__ __forceinline__ uint32_t copies_from(const Scan<LC>& scan) {
    return common(scan.shared.next.rows > 0 ? scan.shared.slot_free : NEVER);
}

// Starts to copy the state of an item from share `first` on.
template <int LC>
__device__ __forceinline__ void fetch_state_from(Scan<LC>& scan, const Item& item,
                                                 uint32_t first) {
    const uint32_t slot = shared_address(scan.shared.slot);
    const float4* state = state_at<LC>(scan.p, item);
#pragma unroll 1
    for (uint32_t turn = 0; turn < STATE_TURNS; turn++) {
        fetch_state<LC>(slot, state, turn >= first ? turn : STATE_TURNS, scan.lane);
    }
}

// What has to be done behind visit n.
template <int LC>
__device__ __forceinline__ void pause(Scan<LC>& scan, float (&s)[LC][LANE_ROWS],
                                      uint32_t n, uint32_t word, float4* state) {
    Shared<LC>& shared = scan.shared;
    const uint32_t from = plan_restore(word), to = plan_save(word);
    if (n == 0) store_state<LC>(s, state, scan.lane);
    if (to == 0) save<LC>(s, shared.slot);
    if (to != 0 && to != NO_SLOT) save<LC>(s, slot_at<LC>(scan.p, to));
    if (from == 0) restore<LC>(s, shared.slot);
    if (from != 0 && from != NO_SLOT) restore<LC>(s, slot_at<LC>(scan.p, from));
}

// Where the visits of a chunk stand.
template <int LC>
struct Visits {
    LaneVector key;
    LaneVector query;
    // Of the last visit, and where it goes: bytes from the item's first output.
    Output<LC> output;
    uint32_t at;
    // This visit's, and the next one's.
    uint32_t word;
    uint32_t after;
    RowAt<LC> row;
};

// One visit. The output of the one in front is finished meanwhile, since other work fills its wait
// for lanes, and share `turn` of the state `coming` is copied.
template <bool LEAF, int LC>
__device__ __forceinline__ void visit_row(Scan<LC>& scan, float (&s)[LC][LANE_ROWS],
                                          Visits<LC>& visits, uint32_t next_word,
                                          uint32_t chunk, char* out, bool writes,
                                          const float4* coming, uint32_t turn) {
    const uint32_t row_bytes = value_width(scan.p.sizes) * sizeof(bf16);
    const uint32_t slot = shared_address(scan.shared.slot);
    // One word more than there are visits can be read; its place lies in the chunk.
    visits.after = common(scan.shared.plan[next_word]);
    const RowAt<LC> next = row_at<LC>(chunk, visits.after);
    const bf16 o = __float2bfloat16_rn(finish(visits.output));
    if (writes) *reinterpret_cast<bf16*>(out + visits.at) = o;
    fetch_state<LC>(slot, coming, turn, scan.lane);
    visits.at = (scan.lane.column + scan.lane.turn) * sizeof(bf16) +
                plan_row(visits.word) * row_bytes;
    visit<LEAF>(s, visits.key, visits.query, visits.row, next, scan.lane, visits.output);
    visits.row = next;
}

// Visits first .. first + rows, whose rows stand in the chunk. Outputs go to `out` and on.
template <int LC>
__device__ __forceinline__ void visit_rows(Scan<LC>& scan, float (&s)[LC][LANE_ROWS],
                                           uint32_t first, uint32_t rows, char* out,
                                           float4* state) {
    const uint32_t chunk = shared_address(scan.shared.rows);
    const bool writer = LC == 8 || scan.lane.share % 2 == 0;
    const uint32_t copied_from = copies_from(scan);
    const float4* coming = state_at<LC>(scan.p, scan.shared.next);
    Visits<LC> visits = {};
    visits.word = common(scan.shared.plan[first]);
    visits.row = row_at<LC>(chunk, visits.word);
    load_vector(visits.key, visits.row.key(scan.lane));
    load_vector(visits.query, visits.row.query(scan.lane));
#pragma unroll 1
    for (uint32_t n = 0; n < rows; n++) {
        const uint32_t next = first + n + 1;
        const bool writes = writer && n > 0;
        const uint32_t turn = first + n - copied_from;
        if (visits.word & PLAN_LEAF) {
            visit_row<true>(scan, s, visits, next, chunk, out, writes, coming, turn);
        } else {
            visit_row<false>(scan, s, visits, next, chunk, out, writes, coming, turn);
        }
        if (__builtin_expect(visits.word & PLAN_PAUSE, 0)) {
            pause(scan, s, first + n, visits.word, state);
        }
        visits.word = visits.after;
    }
    const bf16 o = __float2bfloat16_rn(finish(visits.output));
    if (writer) *reinterpret_cast<bf16*>(out + visits.at) = o;
}

// What comes in front of an item's own rows: starts to copy them, and replays. In this order, unless
// the wait is still ahead.
template <int LC>
__device__ __forceinline__ void prepare(Scan<LC>& scan, float (&s)[LC][LANE_ROWS],
                                        const Item& item) {
    Shared<LC>& shared = scan.shared;
    const uint32_t early = common(!scan.waited), pending = common(item.pending);
    if (pending > 0) land(shared.rows, shared.raw, pending);
    else copy_wait_all();
    restore<LC>(s, shared.slot);
#pragma unroll 1
    for (uint32_t turn = 0; turn < 2; turn++) {
        if (turn != early) {
            if (pending > 0) replay<LC>(s, shared.rows, pending, scan.lane);
            continue;
        }
        if (early) pdl_wait();
        begin(scan, item);
    }
    scan.waited = true;
}

// Scans an item, whose state and first rows are on their way; then those of item `following` are.
template <int LC>
__device__ __forceinline__ void scan_item(Scan<LC>& scan, const Item& item,
                                          uint32_t following, uint32_t end) {
    const GdnScanParams& p = scan.p;
    Shared<LC>& shared = scan.shared;
    if (threadIdx.x == 0) shared.next = item_of<LC>(p, following, end);
    LaneState<LC> s;
    prepare(scan, s, item);
    const uint32_t width = value_width(p.sizes);
    bf16* out = p.out + (size_t)item.start * width + column_of<LC>(item);
#pragma unroll 1
    for (uint32_t first = 0; first < item.rows; first += CHUNK) {
        const uint32_t rows = min(item.rows - first, CHUNK);
        land(shared.rows, shared.raw, rows);
        if (first + CHUNK < item.rows) fetch_nodes(scan, item, first + CHUNK);
        else fetch_first(scan, shared.next);
        visit_rows(scan, s, first, rows, reinterpret_cast<char*>(out), state_at<LC>(p, item));
    }
    const uint32_t done = item.rows - copies_from(scan);
    if (done < STATE_TURNS) fetch_state_from(scan, shared.next, done);
}

template <int LC>
__device__ __forceinline__ void scan_items(const GdnScanParams& p) {
    extern __shared__ __align__(128) unsigned char memory[];
    Shared<LC>& shared = *reinterpret_cast<Shared<LC>*>(memory);
    pdl_launch();
    // The tables that tell which sequence has which slot and rows are filled in front of a step, or
    // before anything behind `write_shared` starts.
    // Blocks without work leave at once, without the wait: they would hold places that the next
    // kernel's blocks then take in an uneven way. Block 0 always waits, and a kernel has not ended
    // before all of its blocks have.
    const uint32_t items = common(p.batch.live[1]) * p.sizes.value_heads * SLICES<LC>;
    if (blockIdx.x > 0 && blockIdx.x >= items) return;
    // Neighbours mostly are of the same sequence, whose plan then is at hand.
    const uint32_t blocks = min(gridDim.x, items);
    const uint32_t end = common(blocks == 0 ? 0 : (blockIdx.x + 1) * items / blocks);
    uint32_t number = common(blocks == 0 ? 0 : blockIdx.x * items / blocks);
    Scan<LC> scan = {p, shared, this_lane<LC>(p.zero), false, false, NONE};
    Item item = common(item_of<LC>(p, number, end));
#pragma unroll 1
    for (bool fetched = false; number < end; number++) {
        if (item.rows > 0) {
            if (!fetched) {
                fetch_state_from(scan, item, 0);
                fetch_first(scan, item);
            }
            scan_item(scan, item, number + 1, end);
            item = common(shared.next);
            fetched = true;
            __syncthreads();
        } else {
            item = common(item_of<LC>(p, number + 1, end));
            fetched = false;
        }
    }
    if (!scan.waited) pdl_wait();
}

extern "C" __global__ void __launch_bounds__(THREADS, 3)
    gdn_scan_tree(const __grid_constant__ GdnScanParams p) {
    scan_items<4>(p);
}

// More columns at a time: fewer instructions for each, where there are items enough.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    gdn_scan_tree_wide(const __grid_constant__ GdnScanParams p) {
    scan_items<8>(p);
}
