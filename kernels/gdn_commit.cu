// Keeps the accepted path in all GDN layers at once: pending rows and convolution history.
#include "gdn.cuh"

// The buffers of one layer.
struct GdnLayer {
    const bf16* mixed;
    const bf16* qkv;
    const float* gate;
    const float* scale;
    bf16* conv;
    bf16* pending_kv;
    float* pending_gate;
    float* pending_scale;
};

// As many as fit 4 KiB of parameters.
constexpr int LAYERS_MAX = 60;

struct GdnCommitParams {
    Batch batch;
    Walk walk;
    GdnSizes sizes;
    // One per block in x.
    GdnLayer layers[LAYERS_MAX];
};

constexpr int COMMIT_THREADS = 256;

// Pending row `place` of a slot becomes row `row` of the batch.
__device__ __forceinline__ void keep_row(const GdnLayer& layer, const GdnSizes& sizes,
                                         uint32_t slot, uint32_t place, uint32_t row) {
    const uint32_t key = key_width(sizes), width = key + value_width(sizes);
    const size_t to = (size_t)slot * DEPTH_MAX + place;
    // k and v stand side by side behind q.
    const uint4* kv =
        reinterpret_cast<const uint4*>(layer.qkv + (size_t)row * channels(sizes) + key);
    uint4* kept = reinterpret_cast<uint4*>(layer.pending_kv + to * width);
    for (uint32_t x = threadIdx.x; x < width / 8; x += COMMIT_THREADS) kept[x] = kv[x];
    const uint32_t heads = sizes.value_heads;
    for (uint32_t x = threadIdx.x; x < 2 * heads; x += COMMIT_THREADS) {
        layer.pending_gate[to * 2 * heads + x] = layer.gate[(size_t)row * 2 * heads + x];
    }
    for (uint32_t x = threadIdx.x; x < sizes.key_heads; x += COMMIT_THREADS) {
        layer.pending_scale[to * sizes.key_heads + x] =
            layer.scale[((size_t)row * sizes.key_heads + x) * SCALES + 1];
    }
}

// The history becomes the last three rows of [history; mixed of the path]. A thread owns its
// channels and reads all three columns before it writes one.
__device__ __forceinline__ void keep_history(const GdnLayer& layer, const GdnSizes& sizes,
                                             uint32_t slot, uint32_t start, const uint32_t* path,
                                             uint32_t rows) {
    const uint32_t all = channels(sizes);
    bf16* history = layer.conv + (size_t)slot * HISTORY * all;
    const bf16* from[HISTORY];
#pragma unroll
    for (uint32_t t = 0; t < HISTORY; t++) {
        const uint32_t entry = rows + t;
        from[t] = entry < HISTORY
                      ? history + (size_t)entry * all
                      : layer.mixed + (size_t)(start + path[entry - HISTORY]) * sizes.mixed_stride;
    }
    for (uint32_t x = threadIdx.x; x < all / 8; x += COMMIT_THREADS) {
        uint4 last[HISTORY];
#pragma unroll
        for (uint32_t t = 0; t < HISTORY; t++) {
            last[t] = *reinterpret_cast<const uint4*>(from[t] + x * 8);
        }
#pragma unroll
        for (uint32_t t = 0; t < HISTORY; t++) {
            *reinterpret_cast<uint4*>(history + (size_t)t * all + x * 8) = last[t];
        }
    }
}

// Grid: layers in x; in y blocks that share the rows of all paths and the histories.
extern "C" __global__ void __launch_bounds__(COMMIT_THREADS)
    gdn_commit(const __grid_constant__ GdnCommitParams p) {
    pdl_launch();
    const GdnLayer layer = p.layers[blockIdx.x];
    const uint32_t items = p.batch.live[1] * EMIT_MAX;
    pdl_wait();
    for (uint32_t item = blockIdx.y; item < items; item += gridDim.y) {
        const uint32_t sequence = item / EMIT_MAX, place = item % EMIT_MAX;
        const uint32_t slot = p.batch.sequence_slot[sequence];
        const uint32_t start = p.batch.sequence_start[sequence];
        const uint32_t rows = p.walk.path_rows[sequence];
        const uint32_t* path = p.walk.path + (size_t)sequence * EMIT_MAX;
        if (slot == NONE || place >= rows) continue;
        if (place == 0) keep_history(layer, p.sizes, slot, start, path, rows);
        else keep_row(layer, p.sizes, slot, place - 1, start + path[place]);
    }
}
