// Attention with one warp per row and group of query heads: keys in position order, a key and its
// value read once for all query heads that share them. References: crates/ops/src/attention.rs,
// draft_attention.rs.
//
// Keys are taken in groups of GROUP absolute positions, keys that a row does not see with weight 0.
// Trees and blocks are cut at fixed absolute positions (`split_begin`); the parts are merged in
// ascending order by a second kernel. So the bits of a row depend on its own keys and their
// positions only.
#include "device.cuh"
#include "tables.cuh"

constexpr int WARPS = 4;
constexpr int GROUP = 4;

// Which cache rows a warp reads.
enum Mode : uint32_t { TREE = 0, CHUNK = 1, BLOCK = 2 };

struct RowAttentionParams {
    Batch batch;
    Slots slots;
    Kv cache;
    const bf16* query;         // [rows, heads, head_dim]
    const bf16* gate;          // TREE, CHUNK: head h at h * 2 * head_dim + head_dim
    const bf16* block_keys;    // BLOCK: [rows, kv_heads, head_dim]
    const bf16* block_values;  // BLOCK
    bf16* out;                 // [rows, heads, head_dim]
    float* partial;            // [rows, heads, splits, head_dim + 2]: out, largest, sum
    uint32_t gate_row_stride;
    uint32_t heads;
    uint32_t causal;  // BLOCK: block rows up to its own only
    uint32_t before;  // BLOCK: positions p - r < before are seen
    uint32_t after;   // BLOCK: positions r - p < after are seen
    uint32_t splits;  // of the longest context; 0 = no cut, the result goes to out
    float scale;      // 1 / sqrt(head_dim)
};

// Splits are short where contexts are, for enough blocks, and long behind, for few parts.
constexpr uint32_t SHORT = 64;
constexpr uint32_t SHORT_SPLITS = 32;
constexpr uint32_t LONG = 1024;

__device__ __forceinline__ uint32_t split_begin(uint32_t split) {
    if (split <= SHORT_SPLITS) return split * SHORT;
    return SHORT_SPLITS * SHORT + (split - SHORT_SPLITS) * LONG;
}

template <int PER_LANE>
struct alignas(2 * PER_LANE) Vector {
    uint32_t words[PER_LANE / 2];
};

template <int PER_LANE>
__device__ __forceinline__ Vector<PER_LANE> load(const bf16* from) {
    return *reinterpret_cast<const Vector<PER_LANE>*>(from + threadIdx.x % 32 * PER_LANE);
}

template <int PER_LANE>
__device__ __forceinline__ void widen(float (&x)[PER_LANE], const Vector<PER_LANE>& vector) {
#pragma unroll
    for (int i = 0; i < PER_LANE / 2; i++) {
        x[2 * i] = __uint_as_float(vector.words[i] << 16);
        x[2 * i + 1] = __uint_as_float(vector.words[i] & 0xffff0000u);
    }
}

// What a warp knows of its row.
struct Row {
    uint32_t slot;
    uint32_t start;   // first row of the segment in the batch
    uint32_t length;  // committed tokens
    uint32_t first;   // first visible position
    uint32_t end;     // one past the last
};

// The row of the segment that holds position length + depth on this row's path.
using Path = uint8_t[WARPS][TREE_ROWS_MAX];

template <Mode MODE>
__device__ __forceinline__ void visible(Row& row, const RowAttentionParams& p, uint32_t index,
                                        uint32_t rows, const uint32_t depth) {
    row.first = 0;
    if (MODE == TREE) row.end = row.length + depth + 1;
    if (MODE == CHUNK) row.end = row.length + index + 1;
    if (MODE == BLOCK) {
        const uint32_t position = row.length + index, all = row.length + rows;
        row.first = position + 1 > p.before ? position + 1 - p.before : 0;
        row.end = p.causal ? position + 1 : all - position > p.after ? position + p.after : all;
    }
}

// Keys and values of one position.
template <Mode MODE>
__device__ __forceinline__ void source(const bf16*& keys, const bf16*& values, const Row& row,
                                       const RowAttentionParams& p, const uint8_t* path,
                                       uint32_t t, uint32_t kv_head) {
    const uint32_t dim = p.cache.head_dim;
    if (MODE == BLOCK && t >= row.length) {
        const size_t at =
            (static_cast<size_t>(row.start + t - row.length) * p.cache.heads + kv_head) * dim;
        keys = p.block_keys + at;
        values = p.block_values + at;
        return;
    }
    const uint32_t index = MODE == TREE && t >= row.length ? row.length + path[t - row.length] : t;
    const size_t at = kv_offset(p.slots, p.cache, row.slot, index) + kv_head * dim;
    keys = p.cache.keys + at;
    values = p.cache.values + at;
}

// Softmax of what was seen so far: weights are relative to e^largest.
template <int PER_LANE>
struct Online {
    float largest;
    float sum;
    float out[PER_LANE];
};

// The next GROUP keys, for G query heads.
template <Mode MODE, int PER_LANE, int G>
__device__ __forceinline__ void add_group(Online<PER_LANE> (&online)[G], const Row& row,
                                          const RowAttentionParams& p,
                                          const float (&q)[G][PER_LANE], const uint8_t* path,
                                          uint32_t group, uint32_t kv_head) {
    Vector<PER_LANE> keys[GROUP], values[GROUP];
    bool seen[GROUP];
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        const uint32_t t = group + i;
        keys[i] = values[i] = {};
        seen[i] = t >= row.first && t < row.end;
        if (!seen[i]) continue;
        const bf16 *key, *value;
        source<MODE>(key, value, row, p, path, t, kv_head);
        keys[i] = load<PER_LANE>(key);
        values[i] = load<PER_LANE>(value);
    }
    float weight[G][GROUP];
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        float k[PER_LANE];
        widen(k, keys[i]);
#pragma unroll
        for (int g = 0; g < G; g++) {
            float dot = 0.0f;
#pragma unroll
            for (int j = 0; j < PER_LANE; j++) dot = fmaf(q[g][j], k[j], dot);
            dot = warp_sum(dot) * p.scale;
            weight[g][i] = seen[i] ? dot : -INFINITY;
        }
    }
#pragma unroll
    for (int g = 0; g < G; g++) {
        float largest = online[g].largest;
#pragma unroll
        for (int i = 0; i < GROUP; i++) largest = fmaxf(largest, weight[g][i]);
        // Nothing seen so far: all weights are 0.
        const float base = largest == -INFINITY ? 0.0f : largest;
        const float rescale = expf(online[g].largest - base);
        online[g].largest = largest;
        online[g].sum *= rescale;
#pragma unroll
        for (int j = 0; j < PER_LANE; j++) online[g].out[j] *= rescale;
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
            weight[g][i] = expf(weight[g][i] - base);
            online[g].sum += weight[g][i];
        }
    }
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        float v[PER_LANE];
        widen(v, values[i]);
#pragma unroll
        for (int g = 0; g < G; g++) {
#pragma unroll
            for (int j = 0; j < PER_LANE; j++) {
                online[g].out[j] = fmaf(weight[g][i], v[j], online[g].out[j]);
            }
        }
    }
}

template <int PER_LANE>
__device__ __forceinline__ void write(const Online<PER_LANE>& online, const RowAttentionParams& p,
                                      uint32_t row, uint32_t head) {
    constexpr int HEAD_DIM = 32 * PER_LANE;
    float gate[PER_LANE];
    if (p.gate) {
        const bf16* from = p.gate + static_cast<size_t>(row) * p.gate_row_stride +
                           head * 2 * HEAD_DIM + HEAD_DIM;
        widen(gate, load<PER_LANE>(from));
    }
    Vector<PER_LANE> packed;
#pragma unroll
    for (int i = 0; i < PER_LANE / 2; i++) {
        float pair[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            pair[j] = online.out[2 * i + j] / online.sum;
            if (p.gate) pair[j] *= sigmoid(gate[2 * i + j]);
        }
        const __nv_bfloat162 narrow = __floats2bfloat162_rn(pair[0], pair[1]);
        packed.words[i] = *reinterpret_cast<const uint32_t*>(&narrow);
    }
    bf16* to = p.out + (static_cast<size_t>(row) * p.heads + head) * HEAD_DIM;
    reinterpret_cast<Vector<PER_LANE>*>(to)[threadIdx.x % 32] = packed;
}

// One part of a row and head: [head_dim] outputs, then largest and sum.
template <int PER_LANE>
__device__ __forceinline__ float* part_at(const RowAttentionParams& p, uint32_t row, uint32_t head,
                                          uint32_t split) {
    const size_t part = (static_cast<size_t>(row) * p.heads + head) * p.splits + split;
    return p.partial + part * (32 * PER_LANE + 2);
}

template <int PER_LANE>
__device__ __forceinline__ void keep(const Online<PER_LANE>& online, float* part) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < PER_LANE; j++) part[j * 32 + lane] = online.out[j];
    if (lane < 2) part[32 * PER_LANE + lane] = lane == 0 ? online.largest : online.sum;
}

// The row of a block of threads; false for padding.
template <Mode MODE>
__device__ __forceinline__ bool find_row(Row& row, const RowAttentionParams& p, uint32_t index) {
    if (index >= p.batch.live[0]) return false;
    const uint32_t sequence = p.batch.row_sequence[index];
    if (sequence == NONE || p.batch.sequence_slot[sequence] == NONE) return false;
    row.slot = p.batch.sequence_slot[sequence];
    row.start = p.batch.sequence_start[sequence];
    row.length = p.slots.length[row.slot];
    const uint32_t depth = MODE == TREE ? p.batch.depth[index] : 0;
    visible<MODE>(row, p, index - row.start, p.batch.sequence_rows[sequence], depth);
    return true;
}

template <Mode MODE, int PER_LANE, int G>
__device__ __forceinline__ void attend(const RowAttentionParams& p) {
    constexpr int HEAD_DIM = 32 * PER_LANE;
    __shared__ Path paths;
    const uint32_t index = blockIdx.y, warp = threadIdx.x / 32;
    const uint32_t head = (blockIdx.x * WARPS + warp) * G;
    pdl_launch();
    pdl_wait();
    Row row;
    if (head >= p.heads || !find_row<MODE>(row, p, index)) return;
    uint32_t begin = row.first, end = row.end;
    if (p.splits) {
        begin = max(begin, split_begin(blockIdx.z));
        end = min(end, split_begin(blockIdx.z + 1));
        if (begin >= end) return;
    }
    uint8_t* path = paths[warp];
    if (MODE == TREE && end > row.length) {
        if (threadIdx.x % 32 == 0) {
            uint32_t node = index - row.start;
            for (uint32_t d = p.batch.depth[index]; d < TREE_ROWS_MAX; d--) {
                path[d] = node;
                node = p.batch.parent[row.start + node];
            }
        }
        __syncwarp();
    }
    float q[G][PER_LANE];
    Online<PER_LANE> online[G];
#pragma unroll
    for (int g = 0; g < G; g++) {
        const size_t at = (static_cast<size_t>(index) * p.heads + head + g) * HEAD_DIM;
        widen(q[g], load<PER_LANE>(p.query + at));
        online[g] = {-INFINITY, 0.0f, {}};
    }
    const uint32_t kv_head = head / (p.heads / p.cache.heads);
    for (uint32_t group = begin / GROUP * GROUP; group < end; group += GROUP) {
        add_group<MODE, PER_LANE, G>(online, row, p, q, path, group, kv_head);
    }
#pragma unroll
    for (int g = 0; g < G; g++) {
        if (p.splits) {
            keep<PER_LANE>(online[g], part_at<PER_LANE>(p, index, head + g, blockIdx.z));
        } else {
            write<PER_LANE>(online[g], p, index, head + g);
        }
    }
}

// One warp per row and head adds the parts of its splits in ascending order.
template <Mode MODE, int PER_LANE>
__device__ __forceinline__ void merge(const RowAttentionParams& p) {
    const uint32_t index = blockIdx.y, head = blockIdx.x * WARPS + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    pdl_launch();
    pdl_wait();
    Row row;
    if (head >= p.heads || !find_row<MODE>(row, p, index)) return;
    Online<PER_LANE> online = {-INFINITY, 0.0f, {}};
    for (uint32_t split = 0; split_begin(split) < row.end; split++) {
        if (split_begin(split + 1) <= row.first) continue;
        const float* part = part_at<PER_LANE>(p, index, head, split);
        const float part_largest = part[32 * PER_LANE], part_sum = part[32 * PER_LANE + 1];
        const float largest = fmaxf(online.largest, part_largest);
        const float rescale = expf(online.largest - largest);
        const float weight = expf(part_largest - largest);
        online.largest = largest;
        online.sum = fmaf(part_sum, weight, online.sum * rescale);
#pragma unroll
        for (int j = 0; j < PER_LANE; j++) {
            online.out[j] = fmaf(part[j * 32 + lane], weight, online.out[j] * rescale);
        }
    }
    write<PER_LANE>(online, p, index, head);
}

#define ATTEND(name, mode, per_lane, heads)                                       \
    extern "C" __global__ void __launch_bounds__(32 * WARPS)                      \
        row_attention_##name##_##heads(const __grid_constant__ RowAttentionParams p) { \
        attend<mode, per_lane, heads>(p);                                         \
    }
#define MERGE(name, mode, per_lane)                                               \
    extern "C" __global__ void __launch_bounds__(32 * WARPS)                      \
        row_attention_merge_##name(const __grid_constant__ RowAttentionParams p) { \
        merge<mode, per_lane>(p);                                                 \
    }

ATTEND(tree, TREE, 8, 6)
ATTEND(tree, TREE, 8, 4)
ATTEND(tree, TREE, 8, 2)
ATTEND(tree, TREE, 8, 1)
MERGE(tree, TREE, 8)
ATTEND(chunk, CHUNK, 8, 6)
ATTEND(chunk, CHUNK, 8, 4)
ATTEND(chunk, CHUNK, 8, 2)
ATTEND(chunk, CHUNK, 8, 1)
ATTEND(block, BLOCK, 4, 4)
ATTEND(block, BLOCK, 4, 2)
ATTEND(block, BLOCK, 4, 1)
MERGE(block, BLOCK, 4)
