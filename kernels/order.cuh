// Logits as integers that sort as the ops sort them: larger first, NaN below -inf, -0 equal to 0,
// equals by ascending id. A key holds the order of the logit above the complement of the id; keys
// of a row are distinct, and 0 is the key of nothing.
#pragma once
#include <stdint.h>

constexpr uint32_t ORDER_NEGATIVE_INFINITY = 0x007fffffu;

__device__ __forceinline__ uint32_t order_of(float z) {
    const uint32_t bits = __float_as_uint(__fadd_rn(z, 0.0f));
    const uint32_t flip = (uint32_t)((int32_t)bits >> 31) | 0x80000000u;
    return z != z ? 0 : bits ^ flip;
}

__device__ __forceinline__ float value_of(uint32_t order) {
    const uint32_t flip = order & 0x80000000u ? 0x80000000u : 0xffffffffu;
    return __uint_as_float(order ^ flip);
}

__device__ __forceinline__ uint64_t make_key(uint32_t order, uint32_t id) {
    return (uint64_t)order << 32 | (uint32_t)~id;
}

__device__ __forceinline__ uint32_t id_of(uint64_t key) { return ~(uint32_t)key; }

__device__ __forceinline__ float value_of_key(uint64_t key) {
    return value_of((uint32_t)(key >> 32));
}

// The largest key of a warp; every lane gets it.
__device__ __forceinline__ uint64_t warp_largest(uint64_t key) {
    const uint32_t high = __reduce_max_sync(~0u, (uint32_t)(key >> 32));
    const uint32_t low = (uint32_t)(key >> 32) == high ? (uint32_t)key : 0;
    return (uint64_t)high << 32 | __reduce_max_sync(~0u, low);
}
