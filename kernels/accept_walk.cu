// What follows the target's choices: the walk, the state that moves on, the result for the host.
// References: crates/ops/src/accept_walk.rs, advance.rs, step_result.rs.
#include "device.cuh"
#include "tables.cuh"

constexpr uint32_t ALL_LANES = 0xffffffffu;
constexpr int WALK_THREADS = TREE_ROWS_MAX;

struct AcceptWalkParams {
    Batch batch;
    Tree tree;
    Slots slots;
    const uint32_t* choice;  // [rows]
    Walk walk;
    uint32_t first;
};

struct WalkShared {
    uint32_t token[TREE_ROWS_MAX];
    uint32_t choice[TREE_ROWS_MAX];
    int32_t first_child[TREE_ROWS_MAX];
    int32_t next_sibling[TREE_ROWS_MAX];
    int32_t accepted[TREE_ROWS_MAX];  // child that has the chosen token, -1 = none
    uint32_t stop_ids[STOP_IDS_MAX];
};

// Code of the reason why token number j of this step ends the sequence, 0 = it does not.
__device__ uint32_t cut_reason(const AcceptWalkParams& p, const WalkShared& s, uint32_t slot,
                               int j, uint32_t token) {
    const SamplingRow& limits = p.slots.sampling[slot];
    const uint64_t before = (uint64_t)p.slots.emitted[slot] + j;
    const uint64_t context = (uint64_t)p.slots.length[slot] + (p.first == 0) + j;
    bool is_stop = false;
    for (uint32_t i = 0; i < limits.stop_count; ++i) is_stop |= s.stop_ids[i] == token;
    if (is_stop && before >= limits.tokens_min) return 1;
    if (before + 1 >= limits.tokens_max) return 2;
    return context + 1 >= limits.context_max ? 3 : 0;
}

// One warp: from row 0 along accepted children, then the cut.
__device__ void walk(const AcceptWalkParams& p, const WalkShared& s, uint32_t sequence,
                     uint32_t slot) {
    const int lane = threadIdx.x;
    int row = 0, mine = 0, length = 0;
    while (true) {
        if (lane == length) mine = row;
        ++length;
        const int next = p.first != 0 || length == EMIT_MAX ? -1 : s.accepted[row];
        if (next < 0) break;
        row = next;
    }
    const bool on_path = lane < length;
    const uint32_t token = s.choice[mine];
    uint32_t reason = on_path ? cut_reason(p, s, slot, lane, token) : 0;
    const uint32_t cuts = __ballot_sync(ALL_LANES, reason != 0);
    const int last = cuts ? __ffs(cuts) - 1 : length - 1;
    reason = __shfl_sync(ALL_LANES, reason, last);
    if (on_path) {
        p.walk.path[(size_t)sequence * EMIT_MAX + lane] = (uint32_t)mine;
        p.walk.tokens[(size_t)sequence * EMIT_MAX + lane] = token;
    }
    if (lane == 0) {
        // The token of the cut has a row of its own if it was accepted.
        p.walk.path_rows[sequence] = (uint32_t)min(last + 2, length);
        p.walk.emitted[sequence] = (uint32_t)(last + 1);
        p.walk.reason[sequence] = reason;
    }
}

// One block per sequence, one thread per row.
extern "C" __global__ void __launch_bounds__(WALK_THREADS)
    accept_walk(const __grid_constant__ AcceptWalkParams p) {
    __shared__ WalkShared s;
    const uint32_t sequence = blockIdx.x;
    const int row = threadIdx.x;
    pdl_launch();
    pdl_wait();
    const uint32_t slot = p.batch.sequence_slot[sequence];
    const uint32_t start = p.batch.sequence_start[sequence];
    const int rows = (int)min(p.batch.sequence_rows[sequence], (uint32_t)TREE_ROWS_MAX);
    if (sequence >= p.batch.live[1]) return;
    for (int i = row; i < STOP_IDS_MAX; i += WALK_THREADS) {
        s.stop_ids[i] = p.slots.stop_ids[(size_t)slot * STOP_IDS_MAX + i];
    }
    if (row < rows) {
        s.choice[row] = p.choice[start + row];
        if (p.first == 0) {
            s.token[row] = p.batch.token[start + row];
            s.first_child[row] = p.tree.first_child[start + row];
            s.next_sibling[row] = p.tree.next_sibling[start + row];
        }
    }
    __syncthreads();
    if (row < rows && p.first == 0) {
        int child = s.first_child[row];
        while (child >= 0 && s.token[child] != s.choice[row]) child = s.next_sibling[child];
        s.accepted[row] = child;
    }
    __syncthreads();
    if (row < 32) walk(p, s, sequence, slot);
}

struct Context {
    uint32_t* live;
    uint32_t* source;
    uint32_t* slot;
    uint32_t* position;
};

struct AdvanceParams {
    Batch batch;
    Walk walk;
    Slots slots;
    Context context;
    uint32_t first;
};

// One warp per sequence: each finds its place in the context list from the path lengths of those
// before it, which no warp changes.
extern "C" __global__ void __launch_bounds__(32)
    advance(const __grid_constant__ AdvanceParams p) {
    const uint32_t sequence = blockIdx.x, lane = threadIdx.x;
    pdl_launch();
    pdl_wait();
    const uint32_t live = p.batch.live[1];
    if (live == 0 && sequence == 0 && lane == 0) p.context.live[0] = 0;
    if (sequence >= live) return;
    const uint32_t slot = p.batch.sequence_slot[sequence];
    const uint32_t emitted = p.walk.emitted[sequence];
    const uint32_t rows = p.first ? 0 : p.walk.path_rows[sequence];
    uint32_t place = 0;
    if (!p.first) {
        for (uint32_t i = lane; i < sequence; i += 32) place += p.walk.path_rows[i];
        place = __reduce_add_sync(ALL_LANES, place);
    }
    const uint32_t length = p.slots.length[slot];
    const size_t entry = (size_t)sequence * EMIT_MAX + lane;
    if (lane < rows) {
        p.context.source[place + lane] = p.batch.sequence_start[sequence] + p.walk.path[entry];
        p.context.slot[place + lane] = slot;
        p.context.position[place + lane] = length + lane;
    }
    if (lane < emitted) {
        const uint32_t token = p.walk.tokens[entry];
        atomicAdd(&p.slots.generated[(size_t)slot * p.slots.vocab_rows + token], 1u);
        if (lane == emitted - 1) p.slots.root[slot] = token;
    }
    if (lane != 0) return;
    p.slots.emitted[slot] += emitted;
    if (!p.first) {
        p.slots.length[slot] = length + rows;
        p.slots.pending[slot] = rows - min(rows, 1u);
    }
    if (sequence == live - 1) p.context.live[0] = place + rows;
}

constexpr int PREDICTION_LEN = 7;
constexpr int RESULT_HEAD = 6;
constexpr int RESULT_WORDS = RESULT_HEAD + EMIT_MAX + PREDICTION_LEN;
static_assert(RESULT_WORDS <= 32, "one lane per word");

struct StepResultParams {
    Batch batch;
    Walk walk;
    const uint32_t* padding;     // [rows]
    const uint32_t* prediction;  // [sequences, PREDICTION_LEN], bits of f32
    const uint32_t* finite;      // [rows]
    uint32_t* out;               // [sequences, RESULT_WORDS]
};

// One warp per sequence, one lane per word.
extern "C" __global__ void __launch_bounds__(32)
    step_result(const __grid_constant__ StepResultParams p) {
    const uint32_t sequence = blockIdx.x, lane = threadIdx.x;
    pdl_launch();
    pdl_wait();
    const uint32_t start = p.batch.sequence_start[sequence];
    const uint32_t rows = p.batch.sequence_rows[sequence];
    const uint32_t emitted = p.walk.emitted[sequence];
    const uint32_t reason = p.walk.reason[sequence], path_rows = p.walk.path_rows[sequence];
    if (sequence >= p.batch.live[1]) return;
    uint32_t padded = 0;
    for (uint32_t i = lane; i < rows; i += 32) padded += p.padding[start + i] != 0;
    padded = __reduce_add_sync(ALL_LANES, padded);
    bool finite = true;
    if (lane < emitted) {
        finite = p.finite[start + p.walk.path[(size_t)sequence * EMIT_MAX + lane]] == 1;
    }
    finite = __all_sync(ALL_LANES, finite);
    const uint32_t head[RESULT_HEAD] = {emitted, reason, path_rows, rows, padded, finite};
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < RESULT_HEAD; ++i) word = lane == i ? head[i] : word;
    const uint32_t token = lane - RESULT_HEAD, value = token - EMIT_MAX;
    if (token < emitted) word = p.walk.tokens[(size_t)sequence * EMIT_MAX + token];
    if (value < PREDICTION_LEN) word = p.prediction[(size_t)sequence * PREDICTION_LEN + value];
    if (lane < RESULT_WORDS) p.out[(size_t)sequence * RESULT_WORDS + lane] = word;
}
