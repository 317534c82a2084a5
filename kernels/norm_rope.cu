// Per-head norm, rotation and cache write of queries, keys and values. Reference:
// crates/ops/src/norm_rope.rs.
#include "device.cuh"
#include "tables.cuh"

constexpr int WARPS = 4;

// Where keys and values go, and what gives a row its position.
enum Target : uint32_t { PAGES = 0, LISTED = 1, BLOCK = 2 };

struct NormRopeParams {
    Batch batch;  // PAGES and BLOCK
    Slots slots;
    Kv cache;                         // PAGES and LISTED
    const uint32_t* live;             // live rows
    const uint32_t* listed_slot;      // LISTED: [rows]
    const uint32_t* listed_position;  // LISTED: [rows]
    bf16* block_keys;                 // BLOCK: [rows, kv_heads, head_dim]
    bf16* block_values;
    const bf16* x;  // [rows, row_stride]
    const float* frequency;
    const float* query_weight;
    const float* key_weight;
    bf16* query;  // [rows, heads, head_dim]
    uint32_t row_stride;
    uint32_t heads;  // 0 = no queries
    uint32_t head_stride;
    uint32_t kv_heads;
    uint32_t kv_offset;
    uint32_t rotary;
    float eps;
    Target target;
};

struct Place {
    uint32_t slot;
    uint32_t position;
    uint32_t cache_index;
    bool live;
};

__device__ __forceinline__ Place place_of(const NormRopeParams& p, uint32_t row) {
    Place place = {0, 0, 0, false};
    if (row >= p.live[0]) return place;
    if (p.target == LISTED) {
        place.slot = p.listed_slot[row];
        place.position = place.cache_index = p.listed_position[row];
        place.live = true;
        return place;
    }
    const uint32_t sequence = p.batch.row_sequence[row];
    if (sequence == NONE) return place;
    place.slot = p.batch.sequence_slot[sequence];
    if (place.slot == NONE) return place;
    const uint32_t length = p.slots.length[place.slot];
    place.cache_index = length + row - p.batch.sequence_start[sequence];
    place.position = p.target == PAGES ? length + p.batch.depth[row] : place.cache_index;
    place.live = true;
    return place;
}

// The sum of squares of a head: per lane ascending, then a balanced tree over the lanes.
template <int PER_LANE>
__device__ __forceinline__ float inverse_rms(const float (&x)[PER_LANE], float eps) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) sum = fmaf(x[i], x[i], sum);
    return rsqrtf(warp_sum(sum) / (32.0f * PER_LANE) + eps);
}

// Norm, then rotation of pairs (j, j + rotary / 2). Lane l holds values l * PER_LANE and on, so the
// partner of a lane is rotary / 2 / PER_LANE lanes away.
template <int PER_LANE>
__device__ __forceinline__ void norm_rotate(float (&x)[PER_LANE], const NormRopeParams& p,
                                            const float* weight, uint32_t position) {
    const int lane = threadIdx.x % 32, distance = p.rotary / 2 / PER_LANE;
    const float inverse = inverse_rms(x, p.eps);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        x[i] = __fmul_rn(__fmul_rn(x[i], inverse), weight[lane * PER_LANE + i]);
    }
    const bool rotated = lane < 2 * distance, second = lane >= distance;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        const float other = __shfl_xor_sync(~0u, x[i], distance);
        if (rotated) {
            const int pair = (second ? lane - distance : lane) * PER_LANE + i;
            float sin, cos;
            sincosf(__fmul_rn(static_cast<float>(position), p.frequency[pair]), &sin, &cos);
            const float turned = __fmul_rn(other, second ? sin : -sin);
            x[i] = __fadd_rn(__fmul_rn(x[i], cos), turned);
        }
    }
}

template <int PER_LANE>
struct Packed {
    uint32_t words[PER_LANE / 2];
};

template <int PER_LANE>
__device__ __forceinline__ void load(float (&x)[PER_LANE], const bf16* from) {
    const int lane = threadIdx.x % 32;
    struct alignas(2 * PER_LANE) Vector : Packed<PER_LANE> {};
    const Vector vector = *reinterpret_cast<const Vector*>(from + lane * PER_LANE);
#pragma unroll
    for (int i = 0; i < PER_LANE / 2; i++) {
        x[2 * i] = __uint_as_float(vector.words[i] << 16);
        x[2 * i + 1] = __uint_as_float(vector.words[i] & 0xffff0000u);
    }
}

template <int PER_LANE>
__device__ __forceinline__ void store(const float (&x)[PER_LANE], bf16* to) {
    const int lane = threadIdx.x % 32;
    struct alignas(2 * PER_LANE) Vector : Packed<PER_LANE> {};
    Vector vector;
#pragma unroll
    for (int i = 0; i < PER_LANE / 2; i++) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
        vector.words[i] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    *reinterpret_cast<Vector*>(to + lane * PER_LANE) = vector;
}

// One warp per head of a row: queries, then keys, then values.
template <int PER_LANE>
__device__ __forceinline__ void norm_rope(const NormRopeParams& p) {
    constexpr int HEAD_DIM = 32 * PER_LANE;
    const uint32_t row = blockIdx.y, unit = blockIdx.x * WARPS + threadIdx.x / 32;
    pdl_launch();
    pdl_wait();
    const Place place = place_of(p, row);
    if (!place.live || unit >= p.heads + 2 * p.kv_heads) return;
    const bf16* from = p.x + static_cast<size_t>(row) * p.row_stride;
    float x[PER_LANE];
    if (unit < p.heads) {
        load<PER_LANE>(x, from + unit * p.head_stride);
        norm_rotate<PER_LANE>(x, p, p.query_weight, place.position);
        store<PER_LANE>(x, p.query + (static_cast<size_t>(row) * p.heads + unit) * HEAD_DIM);
        return;
    }
    const uint32_t column = unit - p.heads, head = column % p.kv_heads;
    const bool is_key = column < p.kv_heads;
    load<PER_LANE>(x, from + p.kv_offset + column * HEAD_DIM);
    if (is_key) norm_rotate<PER_LANE>(x, p, p.key_weight, place.position);
    bf16* to;
    if (p.target == BLOCK) {
        to = (is_key ? p.block_keys : p.block_values) +
             static_cast<size_t>(row) * p.kv_heads * HEAD_DIM;
    } else {
        to = (is_key ? p.cache.keys : p.cache.values) +
             kv_offset(p.slots, p.cache, place.slot, place.cache_index);
    }
    store<PER_LANE>(x, to + head * HEAD_DIM);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    norm_rope_256(const __grid_constant__ NormRopeParams p) {
    norm_rope<8>(p);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    norm_rope_128(const __grid_constant__ NormRopeParams p) {
    norm_rope<4>(p);
}
