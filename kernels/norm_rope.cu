// Per-head norm and rotation of queries and keys, and the place of keys and values.
//
// One warp per row and head. Query heads, key heads and value heads of a row are numbered in this
// order; a block has HEADS of them and shares the row's angles.
#include "device.cuh"
#include "tables.cuh"

constexpr uint32_t HEADS = 4;
constexpr uint32_t DIM_MAX = 256;

// What gives a row its position and its keys and values their place.
enum Target : uint32_t {
    PAGES,   // position length + depth, cache index length + number in the segment
    LISTED,  // position and cache index are listed
    BLOCK,   // position length + number in the segment; kept beside the block
};

struct NormRopeParams {
    Batch batch;              // PAGES, BLOCK
    Slots slots;
    Kv kv;                    // PAGES, LISTED
    const uint32_t* slot;      // LISTED: [rows]
    const uint32_t* position;  // LISTED: [rows]
    const uint32_t* live;      // live rows
    const bf16* x;             // [rows, row_stride]
    const float* frequency;    // [rotary / 2]
    const float* query_weight;  // [head_dim]
    const float* key_weight;    // [head_dim]
    bf16* query;                // [rows, query_heads, head_dim]
    bf16* block_keys;           // BLOCK: [rows, kv_heads, head_dim]
    bf16* block_values;
    uint32_t row_stride;
    uint32_t query_heads;  // 0: keys and values only
    uint32_t query_stride;
    uint32_t kv_heads;
    uint32_t kv_offset;
    uint32_t head_dim;
    uint32_t rotary;
    uint32_t target;
    float eps;
};

struct Place {
    bool live;
    uint32_t slot, position, cache_index;
};

__device__ __forceinline__ Place place_of(const NormRopeParams& p, uint32_t row) {
    if (row >= p.live[0]) return {};
    if (p.target == LISTED) return {true, p.slot[row], p.position[row], p.position[row]};
    const uint32_t sequence = p.batch.row_sequence[row];
    if (sequence == NONE) return {};
    const uint32_t slot = p.batch.sequence_slot[sequence];
    if (slot == NONE) return {};
    const uint32_t number = row - p.batch.sequence_start[sequence];
    const uint32_t length = p.slots.length[slot];
    const uint32_t depth = p.target == PAGES ? p.batch.depth[row] : number;
    return {true, slot, length + depth, length + number};
}

// Where a key or value head of a row goes.
__device__ __forceinline__ bf16* cell(const NormRopeParams& p, const Place& place, uint32_t row,
                                      uint32_t head, bool value) {
    const size_t column = static_cast<size_t>(head) * p.head_dim;
    if (p.target == BLOCK) {
        return (value ? p.block_values : p.block_keys) +
               static_cast<size_t>(row) * p.kv_heads * p.head_dim + column;
    }
    return (value ? p.kv.values : p.kv.keys) +
           kv_offset(p.slots, p.kv, place.slot, place.cache_index) + column;
}

// x / rms * weight, the first `rotary` values rotated in pairs (j, j + rotary / 2). One warp;
// `head` [head_dim] is its shared memory, `turn` [rotary / 2] holds (cos, sin).
__device__ __forceinline__ void norm_rotate(const NormRopeParams& p, const bf16* x,
                                            const float* weight, bf16* out, float* head,
                                            const float2* turn) {
    const uint32_t lane = threadIdx.x % 32, pairs = p.head_dim / 2, half = p.rotary / 2;
    float squares = 0.0f;
    for (uint32_t i = lane; i < pairs; i += 32) {
        const float2 value =
            __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(x + 2 * i));
        *reinterpret_cast<float2*>(head + 2 * i) = value;
        squares += value.x * value.x + value.y * value.y;
    }
    const float inverse = 1.0f / sqrtf(warp_sum(squares) / p.head_dim + p.eps);
    __syncwarp();
    auto normed = [&](uint32_t i) { return head[i] * inverse * weight[i]; };
    auto rotated = [&](uint32_t i) {
        if (i >= p.rotary) return normed(i);
        if (i < half) return normed(i) * turn[i].x - normed(i + half) * turn[i].y;
        return normed(i) * turn[i - half].x + normed(i - half) * turn[i - half].y;
    };
    for (uint32_t i = lane; i < pairs; i += 32) {
        *reinterpret_cast<__nv_bfloat162*>(out + 2 * i) =
            __floats2bfloat162_rn(rotated(2 * i), rotated(2 * i + 1));
    }
}

// Grid (rows, heads / HEADS).
extern "C" __global__ void __launch_bounds__(HEADS * 32) norm_rope(
    const __grid_constant__ NormRopeParams p) {
    __shared__ float heads[HEADS][DIM_MAX];
    __shared__ float2 turn[DIM_MAX / 2];
    pdl_launch();
    pdl_wait();
    const uint32_t row = blockIdx.x, warp = threadIdx.x / 32;
    const Place place = place_of(p, row);
    if (!place.live) return;
    for (uint32_t j = threadIdx.x; j < p.rotary / 2; j += HEADS * 32) {
        float sine, cosine;
        sincosf(static_cast<float>(place.position) * p.frequency[j], &sine, &cosine);
        turn[j] = make_float2(cosine, sine);
    }
    __syncthreads();
    const uint32_t head = blockIdx.y * HEADS + warp;
    const bf16* x = p.x + static_cast<size_t>(row) * p.row_stride;
    if (head < p.query_heads) {
        bf16* out = p.query + (static_cast<size_t>(row) * p.query_heads + head) * p.head_dim;
        norm_rotate(p, x + head * p.query_stride, p.query_weight, out, heads[warp], turn);
    } else if (head < p.query_heads + p.kv_heads) {
        const uint32_t number = head - p.query_heads;
        norm_rotate(p, x + p.kv_offset + number * p.head_dim, p.key_weight,
                    cell(p, place, row, number, false), heads[warp], turn);
    } else if (head < p.query_heads + 2 * p.kv_heads) {
        const uint32_t number = head - p.query_heads - p.kv_heads;
        const bf16* from = x + p.kv_offset + (p.kv_heads + number) * p.head_dim;
        bf16* to = cell(p, place, row, number, true);
        for (uint32_t i = threadIdx.x % 32; i < p.head_dim / 2; i += 32) {
            reinterpret_cast<uint32_t*>(to)[i] = reinterpret_cast<const uint32_t*>(from)[i];
        }
    }
}
