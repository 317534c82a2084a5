// Counter-based random numbers (crates/ops/src/philox.rs).
#pragma once
#include <stdint.h>

// Philox 4x32-10: four random words of a counter.
__device__ __forceinline__ uint4 philox_block(uint4 c, uint32_t key_low, uint32_t key_high) {
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const uint64_t even = (uint64_t)0xd2511f53u * c.x, odd = (uint64_t)0xcd9e8d57u * c.z;
        c = make_uint4((uint32_t)(odd >> 32) ^ c.y ^ key_low, (uint32_t)odd,
                       (uint32_t)(even >> 32) ^ c.w ^ key_high, (uint32_t)even);
        key_low += 0x9e3779b9u;
        key_high += 0xbb67ae85u;
    }
    return c;
}

// In [0, 1): the top 24 bits of a word.
__device__ __forceinline__ float unit_of(uint32_t word) { return (float)(word >> 8) * 0x1p-24f; }

// The uniform number of output token `index` of answer `choice`: the first word of counter
// (index, choice, 0, 0).
__device__ __forceinline__ float philox_uniform(uint32_t seed_low, uint32_t seed_high,
                                                uint32_t index, uint32_t choice) {
    return unit_of(philox_block(make_uint4(index, choice, 0, 0), seed_low, seed_high).x);
}
