// The draft tree of a sequence and the drafter's blocks. References: crates/ops/src/draft_tree.rs
// and draft_blocks.rs.
#include "block_scan.cuh"
#include "device.cuh"
#include "exp.cuh"
#include "tables.cuh"

constexpr uint32_t ALL_LANES = 0xffffffffu;
constexpr int NODES_MAX = TREE_ROWS_MAX - 1;
constexpr int PHI_TREES = 4;
constexpr int PHI_CHAINS = 3;
constexpr int PREDICTION_LEN = PHI_TREES + PHI_CHAINS;
constexpr int BUILD_THREADS = 128;

// Candidates in shared memory: [DEPTH_MAX + 1, PLACES] by depth - 1 and rank - 1.
constexpr int PLACES = 16;
constexpr int CANDIDATES = (DEPTH_MAX + 1) * PLACES;
static_assert(TOPK_MAX < PLACES && CANDIDATES <= 256, "");

// Log-probabilities are at most 0, so scores are, and never -0: a smaller word is a larger score,
// down to -inf.
constexpr uint32_t NO_MASS = 0xff800000u;

struct alignas(8) Node {
    uint32_t place;  // its candidate, and its parent << 8: 0 = the root, else 1 + place in order
    uint32_t score;
};

// What a sequence that shares rows has found.
struct Found {
    uint32_t count;
    uint32_t unused;
    Node nodes[NODES_MAX];  // in order of choice; of the chain where that is drafted
};
static_assert(sizeof(Found) == 512, "as the launch has it (crates/ops/src/cuda/build_tree.rs)");

struct BuildTreeParams {
    const uint32_t* ids;       // [blocks, block_size, k]; depth d of block b is row 1 + d
    const float* logprobs;     // [blocks, block_size, k]
    const uint32_t* block;     // [sequences]
    const uint32_t* chain;     // [sequences]
    const uint32_t* rows;      // [sequences]
    const uint32_t* rows_max;  // [sequences]
    Slots slots;
    Batch batch;
    uint32_t* live_rows;  // live[0] of the batch
    Found* found;         // [sequences], null: rows are not shared
    uint32_t* padding;    // [rows]
    float* prediction;    // [sequences, PREDICTION_LEN]
    uint32_t block_size;
    uint32_t k;
};

struct BuildShared {
    float logprobs[CANDIDATES + 1];  // -inf where there is no candidate
    uint32_t ids[CANDIDATES];
    Node nodes[NODES_MAX];      // in order of choice
    uint64_t ranks[NODES_MAX];  // see ranks_of
    float mass[NODES_MAX];      // probability of the path to the node
    float chain_mass[DEPTH_MAX];
    uint32_t chain_score[DEPTH_MAX];
    uint8_t row[1 + NODES_MAX];  // by 0 = the root, else 1 + place in order of choice
    int depths;                  // depths that may hold nodes
    int count;                   // best nodes found
    int chain;                   // nodes of the chain
};

// What a segment is made of.
struct Draft {
    uint32_t start, rows, root, is_chain;
};

// Ranks of a node from depth 1 on, four bits each from the top, 0 = absent: unsigned order is
// lexicographic order of the tuples, a prefix before its extensions.
__device__ uint64_t ranks_of(const BuildShared& s, uint32_t place) {
    uint64_t ranks = 0;
    while (true) {
        const uint32_t depth = (place & 255) / PLACES, rank = place % PLACES + 1;
        ranks |= (uint64_t)rank << (60 - 4 * depth);
        if (place < 256) return ranks;
        place = s.nodes[(place >> 8) - 1].place;
    }
}

// A place of the frontier: the best child of one chosen node (or of the root) that is not chosen.
struct Open {
    uint32_t score = NO_MASS;
    uint32_t candidate = 0;
    float above = 0.0f;  // score of the parent
};

// The place that comes first among those of `top`: the smallest tuple.
__device__ __noinline__ int first_of_equals(const BuildShared& s, Open low, Open high,
                                            uint32_t top) {
    const uint32_t lane = threadIdx.x & 31;
    uint64_t ranks = ~0ull;
    bool is_high = false;
    __syncwarp();  // other lanes wrote the nodes
    if (low.score == top) ranks = ranks_of(s, low.candidate | lane << 8);
    if (high.score == top) {
        const uint64_t others = ranks_of(s, high.candidate | (lane + 32) << 8);
        is_high = others < ranks;
        ranks = min(ranks, others);
    }
    const uint32_t most = (uint32_t)(ranks >> 32), least = __reduce_min_sync(ALL_LANES, most);
    const uint32_t rest = most == least ? (uint32_t)ranks : ALL_LANES;
    const bool first = rest == __reduce_min_sync(ALL_LANES, rest) && most == least;
    const int winner = __ffs(__ballot_sync(ALL_LANES, first)) - 1;
    return winner + 32 * __shfl_sync(ALL_LANES, (int)is_high, winner);
}

__device__ __forceinline__ float load_shared(uint32_t address) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
}

// One warp. Place n of the frontier belongs to node n in order of choice (0 = the root) and lies
// in lane n % 32: when its child is chosen as node m, it moves on to the next sibling, and place m
// opens with the first child of node m. Every lane loads what would follow its own best place
// while the warp compares them.
__device__ void search(BuildShared& s) {
    const int lane = threadIdx.x & 31;
    const uint32_t logprobs = shared_address(s.logprobs), nodes = shared_address(s.nodes);
    Open low, high;  // places lane and lane + 32
    if (lane == 0) low = {__float_as_uint(__fadd_rn(0.0f, s.logprobs[0])), 0, 0.0f};
    int chosen = 0;
    while (chosen < NODES_MAX) {
        bool is_high = high.score < low.score;
        Open best = is_high ? high : low;
        // Behind the last rank and the last depth there are places without mass.
        float sibling = load_shared(logprobs + 4 * (best.candidate + 1));
        float child = load_shared(logprobs + 4 * ((best.candidate | (PLACES - 1)) + 1));
        const uint32_t top = __reduce_min_sync(ALL_LANES, best.score);
        if (top >= NO_MASS) break;
        const uint32_t lows = __ballot_sync(ALL_LANES, low.score == top);
        const uint32_t highs = __ballot_sync(ALL_LANES, high.score == top);
        int winner = __ffs(lows | highs) - 1;
        if ((lows & (lows - 1)) | (highs & (highs - 1)) | (lows != 0 && highs != 0)) {
            const int place = first_of_equals(s, low, high, top);
            winner = place & 31;
            is_high = place >= 32;
            best = is_high ? high : low;
            sibling = s.logprobs[best.candidate + 1];
            child = s.logprobs[(best.candidate | (PLACES - 1)) + 1];
        }
        const float score = __uint_as_float(top);
        const uint32_t candidate = __shfl_sync(ALL_LANES, best.candidate, winner);
        child = __shfl_sync(ALL_LANES, child, winner);
        if (lane == winner) {
            const uint32_t place = best.candidate | (uint32_t)(lane + 32 * is_high) << 8;
            asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(nodes + 8 * chosen), "r"(place),
                         "r"(top)
                         : "memory");
            const uint32_t next = __float_as_uint(__fadd_rn(best.above, sibling));
            if (is_high) high = {next, candidate + 1, best.above};
            if (!is_high) low = {next, candidate + 1, best.above};
        }
        ++chosen;
        const Open opened = {__float_as_uint(__fadd_rn(score, child)),
                             (candidate | (PLACES - 1)) + 1, score};
        if (lane == (chosen & 31) && chosen < 32) low = opened;
        if (lane == (chosen & 31) && chosen >= 32) high = opened;
    }
    if (lane == 0) s.count = chosen;
}

// One warp: the likeliest token of each depth.
__device__ void follow_chain(BuildShared& s) {
    const int lane = threadIdx.x & 31;
    const float logprob = lane <= DEPTH_MAX ? s.logprobs[lane * PLACES] : -INFINITY;
    float score = 0.0f, mine = -INFINITY;
    for (int depth = 0; depth < DEPTH_MAX; ++depth) {
        score = __fadd_rn(score, __shfl_sync(ALL_LANES, logprob, depth));
        if (lane == depth) mine = score;
    }
    const int length = __ffs(~__ballot_sync(ALL_LANES, mine > -INFINITY)) - 1;
    if (lane < length) {
        s.chain_mass[lane] = portable_exp(mine);
        s.chain_score[lane] = __float_as_uint(mine);
    }
    if (lane == 0) s.chain = length;
}

// Depths that are useful to a sequence: what it may still emit and what its context holds, less
// one for the target's own token.
__device__ __forceinline__ uint32_t useful_depth(const Slots& slots, uint32_t slot) {
    const SamplingRow& limits = slots.sampling[slot];
    const uint32_t emitted = slots.emitted[slot], length = slots.length[slot] + 1;
    const uint32_t to_emit = limits.tokens_max - min(emitted, limits.tokens_max);
    const uint32_t to_fill = limits.context_max - min(length, limits.context_max);
    const uint32_t most = min(to_emit, to_fill);
    return most - min(most, 1u);
}

// All threads: the block's candidates of the depths that may hold nodes: useful ones in front of
// the first that has a NaN.
__device__ void load_candidates(const BuildTreeParams& p, BuildShared& s, uint32_t sequence,
                                uint32_t slot) {
    constexpr int TURNS = CANDIDATES / BUILD_THREADS;
    const uint32_t block = p.block[sequence];
    const int depths = block == NONE ? 0 : (int)p.block_size - 1;
    const size_t first = ((size_t)block * p.block_size + 1) * p.k;
    const int rank = threadIdx.x % PLACES;
    float logprobs[TURNS];
    int unknown = DEPTH_MAX;
#pragma unroll
    for (int i = 0; i < TURNS; ++i) {
        const int depth = (threadIdx.x + i * BUILD_THREADS) / PLACES;
        const bool exists = depth < depths && rank < (int)p.k;
        const size_t from = first + depth * p.k + rank;
        logprobs[i] = exists ? p.logprobs[from] : -INFINITY;
        s.ids[threadIdx.x + i * BUILD_THREADS] = exists ? p.ids[from] : 0;
        if (isnan(logprobs[i])) unknown = min(unknown, depth);
    }
    if (threadIdx.x == 0) {
        s.depths = (int)min(useful_depth(p.slots, slot), (uint32_t)DEPTH_MAX);
        s.logprobs[CANDIDATES] = -INFINITY;
    }
    __syncthreads();
    if (unknown < DEPTH_MAX) atomicMin(&s.depths, unknown);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TURNS; ++i) {
        const int depth = (threadIdx.x + i * BUILD_THREADS) / PLACES;
        s.logprobs[threadIdx.x + i * BUILD_THREADS] = depth < s.depths ? logprobs[i] : -INFINITY;
    }
    __syncthreads();
}

// One warp: sums of the masses in order of choice.
__device__ void predict(BuildShared& s, float* prediction) {
    const int lane = threadIdx.x & 31;
    for (int i = lane; i < s.count; i += 32) {
        s.mass[i] = portable_exp(__uint_as_float(s.nodes[i].score));
    }
    __syncwarp();
    if (lane >= PREDICTION_LEN) return;
    const bool is_tree = lane < PHI_TREES;
    // Budgets 7, 15, 31, 63 and lengths 3, 7, 15.
    const int most = is_tree ? (8 << lane) - 1 : (4 << (lane - PHI_TREES)) - 1;
    const float* mass = is_tree ? s.mass : s.chain_mass;
    const int count = min(most, is_tree ? s.count : s.chain);
    float sum = 0.0f;
#pragma unroll 4
    for (int i = 0; i < count; ++i) sum = __fadd_rn(sum, mass[i]);
    prediction[lane] = sum;
}

// Node i of a chain is the likeliest candidate of its depth, below node i - 1.
__device__ __forceinline__ uint32_t chain_place(int i) {
    return (uint32_t)(i * PLACES | i << 8);
}

// Of the threads that write a segment.
__device__ __forceinline__ void segment_barrier() {
    asm volatile("bar.sync 1, %0;" ::"n"(TREE_ROWS_MAX) : "memory");
}

// Threads 0 .. TREE_ROWS_MAX: row 0, the first nodes in depth-first order, padding.
__device__ void write_segment(const BuildTreeParams& p, BuildShared& s, const Draft& draft) {
    const int i = threadIdx.x, rows = (int)draft.rows;
    const int count = min(draft.is_chain ? s.chain : s.count, rows - 1);
    const bool is_node = i < count;
    Node node = {chain_place(i), 0};
    if (is_node && !draft.is_chain) node = s.nodes[i];
    if (is_node) s.ranks[i] = ranks_of(s, draft.is_chain ? i * PLACES : node.place);
    if (i == 0) s.row[0] = 0;
    segment_barrier();
    if (is_node) {
        int row = 1;
        for (int j = 0; j < count; ++j) row += s.ranks[j] < s.ranks[i];
        s.row[1 + i] = (uint8_t)(draft.is_chain ? i + 1 : row);
    }
    segment_barrier();
    if (i >= rows) return;
    // Threads of nodes write the nodes' rows, the last thread row 0, the others padding.
    uint32_t row = i + 1 == rows ? 0 : i + 1, token = draft.root, depth = row != 0;
    int32_t parent = row == 0 ? -1 : 0;
    if (is_node) {
        const uint32_t candidate = node.place & 255;
        row = s.row[1 + i];
        token = s.ids[candidate];
        depth = candidate / PLACES + 1;
        parent = s.row[node.place >> 8];
    }
    const uint32_t at = draft.start + row;
    p.batch.token[at] = token;
    p.batch.parent[at] = parent;
    p.batch.depth[at] = depth;
    p.padding[at] = row != 0 && !is_node;
}

// All threads: the best nodes and the chain. Warp 0 searches while warp 1 follows the chain.
__device__ __forceinline__ void find_nodes(const BuildTreeParams& p, BuildShared& s,
                                           uint32_t sequence, uint32_t slot) {
    load_candidates(p, s, sequence, slot);
    if (threadIdx.x / 32 == 0) search(s);
    if (threadIdx.x / 32 == 1) follow_chain(s);
    __syncthreads();
}

// One block per sequence. Warps 0 and 1 write the segment while warp 2 writes the prediction.
extern "C" __global__ void __launch_bounds__(BUILD_THREADS)
    build_tree(const __grid_constant__ BuildTreeParams p) {
    __shared__ BuildShared s;
    const uint32_t sequence = blockIdx.x;
    pdl_launch();
    pdl_wait();
    const uint32_t slot = p.batch.sequence_slot[sequence];
    Draft draft = {p.batch.sequence_start[sequence], p.batch.sequence_rows[sequence], 0,
                   p.chain[sequence]};
    if (sequence >= p.batch.live[1]) return;
    draft.root = p.slots.root[slot];
    find_nodes(p, s, sequence, slot);
    const int warp = threadIdx.x / 32;
    if (warp < 2) {
        write_segment(p, s, draft);
    } else if (warp == 2) {
        predict(s, p.prediction + (size_t)sequence * PREDICTION_LEN);
    }
}

// Where rows are shared, three kernels: every sequence finds its nodes, one block deals the rows
// and cuts the segments, and every sequence writes its own.
//
// One block per sequence.
extern "C" __global__ void __launch_bounds__(BUILD_THREADS)
    find_shared(const __grid_constant__ BuildTreeParams p) {
    __shared__ BuildShared s;
    const uint32_t sequence = blockIdx.x;
    pdl_launch();
    pdl_wait();
    const uint32_t slot = p.batch.sequence_slot[sequence];
    const bool is_chain = p.chain[sequence] != 0;
    if (sequence >= p.batch.live[1]) return;
    find_nodes(p, s, sequence, slot);
    const int i = threadIdx.x, count = is_chain ? s.chain : s.count;
    Found& found = p.found[sequence];
    if (i < count) found.nodes[i] = is_chain ? Node{chain_place(i), s.chain_score[i]} : s.nodes[i];
    if (i == 0) found.count = (uint32_t)count;
    if (i / 32 == 2) predict(s, p.prediction + (size_t)sequence * PREDICTION_LEN);
}

constexpr int DEAL_THREADS = 512;
constexpr int SCORE_BITS = 32;

struct DealShared {
    ScanShared scan;
    uint32_t sums[SCORE_BITS + 1];
    uint32_t start[DEAL_THREADS];
};

// Sum over the block; every turn has a place of its own, zero before.
__device__ __forceinline__ uint32_t sum_of_turn(DealShared& s, int turn, uint32_t own) {
    own = __reduce_add_sync(ALL_LANES, own);
    if (threadIdx.x % 32 == 0) atomicAdd(&s.sums[turn], own);
    __syncthreads();
    return s.sums[turn];
}

// Sum of the values of lower threads; total gets the sum of all.
__device__ __forceinline__ uint32_t sum_below(DealShared& s, uint32_t own, uint32_t& total) {
    Tally all;
    const Tally below = block_exclusive_sum({own, 0}, all, s.scan);
    total = all.count;
    return below.count;
}

// The first of nodes low .. high whose score has the bit; all have the same bits above it. Words
// of scores never fall in order of choice.
__device__ __forceinline__ uint32_t first_with(const Node* nodes, uint32_t low, uint32_t high,
                                               int bit) {
    if (low < high && (nodes[high - 1].score >> bit & 1) == 0) return high;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (nodes[middle].score >> bit & 1) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

// All threads, one per sequence, that has `count` nodes: how many of them are among the best `left`
// of all. The score of the last of those is found bit by bit: nodes before `low` are among them,
// nodes from `high` on are not, and all in between have its upper bits.
__device__ uint32_t nodes_dealt(DealShared& s, const Node* nodes, uint32_t count, uint32_t left) {
    uint32_t low = 0, high = count;
    for (int bit = SCORE_BITS - 1; bit >= 0; --bit) {
        const uint32_t middle = first_with(nodes, low, high, bit);
        const uint32_t better = sum_of_turn(s, bit, middle - low);
        if (better >= left) {
            high = middle;
        } else {
            low = middle;
            left -= better;
        }
    }
    uint32_t total;
    const uint32_t before = sum_below(s, high - low, total);
    return low + min(high - low, left - min(left, before));
}

// One block, one thread per sequence.
extern "C" __global__ void __launch_bounds__(DEAL_THREADS)
    deal_rows(const __grid_constant__ BuildTreeParams p) {
    __shared__ DealShared s;
    const uint32_t sequence = threadIdx.x;
    pdl_launch();
    for (uint32_t turn = threadIdx.x; turn <= SCORE_BITS; turn += blockDim.x) s.sums[turn] = 0;
    __syncthreads();
    pdl_wait();
    const uint32_t sequences = p.batch.live[1];
    const bool exists = sequence < sequences;
    uint32_t rows = exists ? p.rows[sequence] : 0;
    const uint32_t most = exists ? min(p.rows_max[sequence], (uint32_t)TREE_ROWS_MAX) : 0;
    const bool shares = most > 0;
    const uint32_t left = sum_of_turn(s, SCORE_BITS, shares ? rows - 1 : 0);
    const Found& found = p.found[shares ? sequence : 0];
    const uint32_t count = shares ? min(found.count, most - 1) : 0;
    const uint32_t dealt = nodes_dealt(s, found.nodes, count, left);
    if (shares) rows = 1 + dealt;
    uint32_t total;
    const uint32_t start = sum_below(s, rows, total);
    s.start[sequence] = start;
    if (exists) {
        p.batch.sequence_start[sequence] = start;
        p.batch.sequence_rows[sequence] = rows;
    }
    if (sequence == 0) *p.live_rows = total;
    __syncthreads();
    for (uint32_t row = threadIdx.x; row < p.batch.rows_max; row += blockDim.x) {
        uint32_t low = 0, high = sequences;  // the sequence is one of low .. high
        while (low + 1 < high) {
            const uint32_t middle = (low + high) / 2;
            if (s.start[middle] <= row) {
                low = middle;
            } else {
                high = middle;
            }
        }
        p.batch.row_sequence[row] = row < total ? low : NONE;
    }
}

// One block per sequence.
extern "C" __global__ void __launch_bounds__(BUILD_THREADS)
    write_shared(const __grid_constant__ BuildTreeParams p) {
    __shared__ BuildShared s;
    const uint32_t sequence = blockIdx.x;
    pdl_wait();
    // Not before the rows are dealt: kernels behind this one take segments and live rows for tables
    // that the host filled, and read them in front of their wait.
    pdl_launch();
    const uint32_t slot = p.batch.sequence_slot[sequence];
    Draft draft = {p.batch.sequence_start[sequence], p.batch.sequence_rows[sequence], 0,
                   p.chain[sequence]};
    if (sequence >= p.batch.live[1]) return;
    draft.root = p.slots.root[slot];
    const Found& found = p.found[sequence];
    const uint32_t count = found.count, block = p.block[sequence];
    const size_t first = ((size_t)block * p.block_size + 1) * p.k;
    for (uint32_t i = threadIdx.x; i < CANDIDATES; i += BUILD_THREADS) {
        const uint32_t depth = i / PLACES, rank = i % PLACES;
        const bool exists = count > 0 && depth + 1 < p.block_size && rank < p.k;
        if (exists) s.ids[i] = p.ids[first + depth * p.k + rank];
    }
    if (threadIdx.x < count) s.nodes[threadIdx.x] = found.nodes[threadIdx.x];
    if (threadIdx.x == 0) s.count = s.chain = (int)count;
    __syncthreads();
    if (threadIdx.x < TREE_ROWS_MAX) write_segment(p, s, draft);
}

struct DraftBlocksParams {
    Slots slots;
    Batch batch;
    uint32_t mask_token;
    uint32_t block_size;
};

// One block per segment.
extern "C" __global__ void __launch_bounds__(32)
    draft_blocks(const __grid_constant__ DraftBlocksParams p) {
    const uint32_t block = blockIdx.x;
    pdl_launch();
    pdl_wait();
    const uint32_t slot = p.batch.sequence_slot[block];
    const uint32_t start = p.batch.sequence_start[block];
    if (block >= p.batch.live[1]) return;
    for (uint32_t i = threadIdx.x; i < p.block_size; i += 32) {
        p.batch.token[start + i] = i == 0 ? p.slots.root[slot] : p.mask_token;
    }
}
