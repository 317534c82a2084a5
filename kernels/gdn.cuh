// What the kernels of gated DeltaNet share: sizes, and the scalars of a row.
//
// A row brings q, k of a key head and v of its value heads as they stand behind the convolution
// (bf16, not normalised), a log decay g and a strength beta per value head, and per key head the
// factors that normalise: r_q = 1 / (|q| sqrt(128)), r_k = 1 / |k|, and q.k.
#pragma once
#include "device.cuh"
#include "tables.cuh"

constexpr int KEY_DIM = 128;
constexpr int VALUE_DIM = 128;
// Values of journal.scale per row and key head: r_q, r_k, q.k.
constexpr int SCALES = 3;
// The depth of the convolution less one.
constexpr int HISTORY = 3;

// Sizes of a layer as kernels need them.
struct GdnSizes {
    uint32_t key_heads;
    uint32_t value_heads;
    // Values per row of `mixed`.
    uint32_t mixed_stride;
};

__device__ __forceinline__ uint32_t key_width(const GdnSizes& sizes) {
    return sizes.key_heads * KEY_DIM;
}

__device__ __forceinline__ uint32_t value_width(const GdnSizes& sizes) {
    return sizes.value_heads * VALUE_DIM;
}

__device__ __forceinline__ uint32_t channels(const GdnSizes& sizes) {
    return 2 * key_width(sizes) + value_width(sizes);
}

__device__ __forceinline__ void unpack_bf16(float (&values)[8], uint4 packed) {
    values[0] = low_bf16(packed.x);
    values[1] = high_bf16(packed.x);
    values[2] = low_bf16(packed.y);
    values[3] = high_bf16(packed.y);
    values[4] = low_bf16(packed.z);
    values[5] = high_bf16(packed.z);
    values[6] = low_bf16(packed.w);
    values[7] = high_bf16(packed.w);
}

__device__ __forceinline__ uint4 pack_bf16x8(const float (&values)[8]) {
    return make_uint4(pack_bf16(values[0], values[1]), pack_bf16(values[2], values[3]),
                      pack_bf16(values[4], values[5]), pack_bf16(values[6], values[7]));
}

// x / (1 + e^-x) to a few units in the last place of f32: the result is rounded to bf16.
__device__ __forceinline__ float fast_silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }
