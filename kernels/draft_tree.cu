// The draft tree of a sequence and the drafter's blocks. References: crates/ops/src/draft_tree.rs
// and draft_blocks.rs.
#include "device.cuh"
#include "exp.cuh"
#include "tables.cuh"

constexpr uint32_t ALL_LANES = 0xffffffffu;
constexpr int NODES_MAX = TREE_ROWS_MAX - 1;
constexpr int RANK_BITS = 4;
constexpr int PHI_TREES = 4;
constexpr int PHI_CHAINS = 3;
constexpr int PREDICTION_LEN = PHI_TREES + PHI_CHAINS;
constexpr int BUILD_THREADS = 128;

struct BuildTreeParams {
    const uint32_t* ids;    // [blocks, block_size, k]; depth d of block b is row 1 + d
    const float* logprobs;  // [blocks, block_size, k]
    const uint32_t* block;  // [sequences]
    const uint32_t* chain;  // [sequences]
    Slots slots;
    Batch batch;
    uint32_t* padding;  // [rows]
    float* prediction;  // [sequences, PREDICTION_LEN]
    uint32_t block_size;
    uint32_t k;
};

// Ranks of a node from depth 1 on, RANK_BITS each from the top, 0 = absent; its depth in the low
// bits, which no rank uses. Unsigned order is lexicographic order of the tuples, a prefix first.
using Ranks = uint64_t;
static_assert(DEPTH_MAX * RANK_BITS + 4 <= 64 && DEPTH_MAX < 16 && TOPK_MAX < 1 << RANK_BITS, "");

constexpr int PLACES = 16;  // of a depth in shared memory

struct BuildShared {
    // [DEPTH_MAX + 1, PLACES] by depth - 1 and rank - 1; -inf where there is no candidate.
    float logprobs[(DEPTH_MAX + 1) * PLACES];
    uint32_t ids[(DEPTH_MAX + 1) * PLACES];
    Ranks ranks[NODES_MAX];
    float score[NODES_MAX];
    float mass[NODES_MAX];  // probability of the path to the node
    float chain_mass[DEPTH_MAX];
    uint8_t parent[NODES_MAX];   // 0 = the root, else 1 + the parent's place in order of choice
    uint8_t row[1 + NODES_MAX];  // by the same number
    int depths;                  // depths that may hold nodes
    int nodes;                   // best nodes found
    int chain;                   // nodes of the chain
};

// What a segment is made of.
struct Draft {
    uint32_t start, rows, root, is_chain;
};

__device__ __forceinline__ bool has_mass(float logprob) {
    return logprob > -INFINITY;
}

// Order of total_cmp as unsigned order; above 0 for every number but NaN.
__device__ __forceinline__ uint32_t order_of(float score) {
    const uint32_t bits = __float_as_uint(score);
    return bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000u);
}

__device__ __forceinline__ float score_of(uint32_t order) {
    return __uint_as_float(order & 0x80000000u ? order ^ 0x80000000u : ~order);
}

__device__ __forceinline__ int depth_of(Ranks ranks) {
    return (int)(ranks & 15);
}

// One at the rank of a depth of 1 to 16.
__device__ __forceinline__ Ranks rank_unit(int depth) {
    return (Ranks)1 << (64 - RANK_BITS * depth);
}

// Where the rank of the node's own depth lies; 0 for the root.
__device__ __forceinline__ int rank_shift(int depth) {
    return (64 - RANK_BITS * depth) & 63;
}

// A place of the frontier: the best child of one chosen node (or of the root) that is not chosen.
struct Open {
    uint32_t order = 0;  // of its score; 0 = none
    Ranks ranks = 0;
    float above = 0.0f;  // score of the parent
};

// Order of a child with this log-probability, 0 if it has no mass.
__device__ __forceinline__ uint32_t child_order(float above, float logprob) {
    return has_mass(logprob) ? order_of(__fadd_rn(above, logprob)) : 0;
}

// The lane that holds the greatest order, ties to the smallest ranks; `top` is that order.
__device__ __forceinline__ int best_lane(uint32_t order, Ranks ranks, uint32_t top) {
    uint32_t tied = __ballot_sync(ALL_LANES, order == top);
    if (tied & (tied - 1)) {
        uint32_t high = order == top ? (uint32_t)(ranks >> 32) : ALL_LANES;
        const uint32_t least_high = __reduce_min_sync(ALL_LANES, high);
        const bool among = order == top && high == least_high;
        const uint32_t low = among ? (uint32_t)ranks : ALL_LANES;
        const uint32_t least_low = __reduce_min_sync(ALL_LANES, low);
        tied = __ballot_sync(ALL_LANES, among && low == least_low);
    }
    return __ffs(tied) - 1;
}

// One warp. Place n of the frontier belongs to node n in order of choice (0 = the root) and lies
// in lane n % 32: when its child is chosen as node m, it moves on to the next sibling, and place m
// opens with the first child of node m. Every lane works out what would follow its own best place
// while the warp compares them.
__device__ void search(BuildShared& s) {
    const int lane = threadIdx.x & 31, depths = s.depths;
    Open low, high;  // places lane and lane + 32
    if (lane == 0 && depths > 0) low = {child_order(0.0f, s.logprobs[0]), rank_unit(1) + 1, 0.0f};
    int chosen = 0;
    while (chosen < NODES_MAX) {
        const bool is_high =
            high.order > low.order || (high.order == low.order && high.ranks < low.ranks);
        const Open best = is_high ? high : low;
        const int depth = depth_of(best.ranks);
        const int rank = (int)(best.ranks >> rank_shift(depth)) & 15;
        const uint32_t sibling =
            child_order(best.above, s.logprobs[((depth + 15) & 15) * PLACES + rank]);
        uint32_t child = child_order(score_of(best.order), s.logprobs[depth * PLACES]);
        if (depth >= depths) child = 0;

        const uint32_t top = __reduce_max_sync(ALL_LANES, best.order);
        if (top == 0) break;
        const int winner = best_lane(best.order, best.ranks, top);
        const Ranks ranks = __shfl_sync(ALL_LANES, best.ranks, winner);
        child = __shfl_sync(ALL_LANES, child, winner);
        if (lane == winner) {
            s.ranks[chosen] = best.ranks;
            s.score[chosen] = score_of(top);
            s.parent[chosen] = (uint8_t)(lane + 32 * is_high);
            const Open next = {sibling, best.ranks + ((Ranks)1 << rank_shift(depth)), best.above};
            if (is_high) high = next;
            if (!is_high) low = next;
        }
        ++chosen;
        const Open opened = {child, (ranks + 1) | rank_unit(depth_of(ranks) + 1), score_of(top)};
        if (lane == (chosen & 31) && chosen < 32) low = opened;
        if (lane == (chosen & 31) && chosen >= 32) high = opened;
    }
    if (lane == 0) s.nodes = chosen;
}

// One warp: the likeliest token of each depth.
__device__ void follow_chain(BuildShared& s) {
    const int lane = threadIdx.x & 31;
    const float logprob = lane < s.depths ? s.logprobs[lane * PLACES] : -INFINITY;
    const int length = __ffs(~__ballot_sync(ALL_LANES, has_mass(logprob))) - 1;
    float score = 0.0f, mine = 0.0f;
    for (int depth = 0; depth < length; ++depth) {
        score = __fadd_rn(score, __shfl_sync(ALL_LANES, logprob, depth));
        if (lane == depth) mine = score;
    }
    if (lane < length) s.chain_mass[lane] = portable_exp(mine);
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

// All threads: the block's candidates, and the depths before the first that has a NaN.
__device__ void load_candidates(const BuildTreeParams& p, BuildShared& s, uint32_t sequence,
                                uint32_t slot) {
    const uint32_t block = p.block[sequence];
    const int depths = block == NONE ? 0 : (int)p.block_size - 1;
    const size_t first = ((size_t)block * p.block_size + 1) * p.k;
    int unknown = DEPTH_MAX;
    for (int i = threadIdx.x; i < (DEPTH_MAX + 1) * PLACES; i += BUILD_THREADS) {
        const int depth = i / PLACES, rank = i % PLACES;
        const bool exists = depth < depths && rank < (int)p.k;
        const size_t from = first + depth * p.k + rank;
        s.logprobs[i] = exists ? p.logprobs[from] : -INFINITY;
        s.ids[i] = exists ? p.ids[from] : 0;
        if (isnan(s.logprobs[i])) unknown = min(unknown, depth);
    }
    if (threadIdx.x == 0) {
        s.depths = min(depths, (int)min(useful_depth(p.slots, slot), (uint32_t)DEPTH_MAX));
    }
    __syncthreads();
    if (unknown < DEPTH_MAX) atomicMin(&s.depths, unknown);
    __syncthreads();
}

// One warp: sums of the masses in order of choice.
__device__ void predict(const BuildShared& s, float* prediction) {
    const int lane = threadIdx.x & 31;
    if (lane >= PREDICTION_LEN) return;
    const bool is_tree = lane < PHI_TREES;
    // Budgets 7, 15, 31, 63 and lengths 3, 7, 15.
    const int most = is_tree ? (8 << lane) - 1 : (4 << (lane - PHI_TREES)) - 1;
    const float* mass = is_tree ? s.mass : s.chain_mass;
    const int count = min(most, is_tree ? s.nodes : s.chain);
    float sum = 0.0f;
#pragma unroll 4
    for (int i = 0; i < count; ++i) sum = __fadd_rn(sum, mass[i]);
    prediction[lane] = sum;
}

// Threads 0..64: row 0, the first nodes in depth-first order, padding.
__device__ void write_segment(const BuildTreeParams& p, BuildShared& s, const Draft& draft) {
    const int i = threadIdx.x;
    const int rows = (int)draft.rows, nodes = draft.is_chain ? s.chain : s.nodes;
    const int count = min(nodes, rows - 1);
    int place = i;
    if (i < count && !draft.is_chain) {
        place = 0;
        for (int j = 0; j < count; ++j) place += s.ranks[j] < s.ranks[i];
    }
    if (i == 0) s.row[0] = 0;
    if (i < count) s.row[1 + i] = (uint8_t)(1 + place);
    asm volatile("bar.sync 1, %0;" ::"n"(TREE_ROWS_MAX) : "memory");  // these threads only
    if (i >= rows) return;
    // Threads of nodes write the nodes' rows; the last one's row 0; the others' are padding.
    uint32_t row = i + 1 == rows ? 0 : i + 1, token = draft.root, depth = row != 0;
    int32_t parent = row == 0 ? -1 : 0;
    if (i < count) {
        const Ranks ranks = draft.is_chain ? 0 : s.ranks[i];
        depth = (uint32_t)(draft.is_chain ? i + 1 : depth_of(ranks));
        const int rank = draft.is_chain ? 1 : (int)(ranks >> rank_shift((int)depth)) & 15;
        token = s.ids[(depth - 1) * PLACES + rank - 1];
        parent = draft.is_chain ? i : s.row[s.parent[i]];
        row = s.row[1 + i];
    }
    const uint32_t at = draft.start + row;
    p.batch.token[at] = token;
    p.batch.parent[at] = parent;
    p.batch.depth[at] = depth;
    p.padding[at] = row != 0 && i >= count;
}

// One block per sequence. Warp 0 searches while warp 1 follows the chain; then warps 0 and 1 write
// the segment while warp 2 writes the prediction.
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
    load_candidates(p, s, sequence, slot);
    const int warp = threadIdx.x / 32;
    if (warp == 0) search(s);
    if (warp == 1) follow_chain(s);
    __syncthreads();
    if (warp < 2) {
        write_segment(p, s, draft);
    } else if (warp == 2) {
        const int lane = threadIdx.x & 31;
        for (int i = lane; i < s.nodes; i += 32) s.mass[i] = portable_exp(s.score[i]);
        __syncwarp();
        predict(s, p.prediction + (size_t)sequence * PREDICTION_LEN);
    }
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
