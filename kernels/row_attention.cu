// Attention with one warp per row and query head: keys one by one in position order. References:
// crates/ops/src/attention.rs, draft_attention.rs.
//
// Keys are taken in groups of GROUP absolute positions [4 j, 4 j + 4), keys that a row does not see
// with weight 0, so the bits of a row depend on its own keys and their positions only.
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
    uint32_t gate_row_stride;
    uint32_t heads;
    uint32_t causal;  // BLOCK: block rows up to its own only
    uint32_t before;  // BLOCK: positions p - r < before are seen
    uint32_t after;   // BLOCK: positions r - p < after are seen
    float scale;      // 1 / sqrt(head_dim)
};

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

template <Mode MODE, int PER_LANE>
__device__ __forceinline__ void add_group(Online<PER_LANE>& online, const Row& row,
                                          const RowAttentionParams& p, const float (&q)[PER_LANE],
                                          const uint8_t* path, uint32_t group, uint32_t kv_head) {
    Vector<PER_LANE> values[GROUP];
    float score[GROUP];
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        const uint32_t t = group + i;
        score[i] = -INFINITY;
        values[i] = {};
        if (t < row.first || t >= row.end) continue;
        const bf16 *key, *value;
        source<MODE>(key, value, row, p, path, t, kv_head);
        float k[PER_LANE];
        widen(k, load<PER_LANE>(key));
        values[i] = load<PER_LANE>(value);
        float dot = 0.0f;
#pragma unroll
        for (int j = 0; j < PER_LANE; j++) dot = fmaf(q[j], k[j], dot);
        score[i] = warp_sum(dot) * p.scale;
    }
    float largest = online.largest;
#pragma unroll
    for (int i = 0; i < GROUP; i++) largest = fmaxf(largest, score[i]);
    if (largest == -INFINITY) return;
    const float rescale = expf(online.largest - largest);
    online.largest = largest;
    online.sum *= rescale;
#pragma unroll
    for (int j = 0; j < PER_LANE; j++) online.out[j] *= rescale;
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        const float weight = expf(score[i] - largest);
        float v[PER_LANE];
        widen(v, values[i]);
        online.sum += weight;
#pragma unroll
        for (int j = 0; j < PER_LANE; j++) online.out[j] = fmaf(weight, v[j], online.out[j]);
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

template <Mode MODE, int PER_LANE>
__device__ __forceinline__ void attend(const RowAttentionParams& p) {
    constexpr int HEAD_DIM = 32 * PER_LANE;
    __shared__ Path paths;
    const uint32_t index = blockIdx.y, warp = threadIdx.x / 32;
    const uint32_t head = blockIdx.x * WARPS + warp;
    pdl_launch();
    pdl_wait();
    if (index >= p.batch.live[0] || head >= p.heads) return;
    const uint32_t sequence = p.batch.row_sequence[index];
    if (sequence == NONE || p.batch.sequence_slot[sequence] == NONE) return;
    Row row;
    row.slot = p.batch.sequence_slot[sequence];
    row.start = p.batch.sequence_start[sequence];
    row.length = p.slots.length[row.slot];
    const uint32_t number = index - row.start;
    const uint32_t depth = MODE == TREE ? p.batch.depth[index] : 0;
    visible<MODE>(row, p, number, p.batch.sequence_rows[sequence], depth);
    uint8_t* path = paths[warp];
    if (MODE == TREE) {
        if (threadIdx.x % 32 == 0) {
            uint32_t node = number;
            for (uint32_t d = depth; d < TREE_ROWS_MAX; d--) {
                path[d] = node;
                node = p.batch.parent[row.start + node];
            }
        }
        __syncwarp();
    }
    float q[PER_LANE];
    widen(q, load<PER_LANE>(p.query + (static_cast<size_t>(index) * p.heads + head) * HEAD_DIM));
    Online<PER_LANE> online = {-INFINITY, 0.0f, {}};
    const uint32_t kv_head = head / (p.heads / p.cache.heads);
    for (uint32_t group = row.first / GROUP * GROUP; group < row.end; group += GROUP) {
        add_group<MODE, PER_LANE>(online, row, p, q, path, group, kv_head);
    }
    write<PER_LANE>(online, p, index, head);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    row_attention_tree_256(const __grid_constant__ RowAttentionParams p) {
    attend<TREE, 8>(p);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    row_attention_chunk_256(const __grid_constant__ RowAttentionParams p) {
    attend<CHUNK, 8>(p);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    row_attention_block_128(const __grid_constant__ RowAttentionParams p) {
    attend<BLOCK, 4>(p);
}
