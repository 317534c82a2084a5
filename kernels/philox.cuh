// Counter-based random numbers (crates/ops/src/philox.rs).
#pragma once
#include <stdint.h>

// The uniform number in [0, 1) of output token `index` of answer `choice`: Philox 4x32-10 with
// counter (index, choice, 0, 0), the top 24 bits of the first word.
__device__ __forceinline__ float philox_uniform(uint32_t seed_low, uint32_t seed_high,
                                                uint32_t index, uint32_t choice) {
    uint32_t c0 = index, c1 = choice, c2 = 0, c3 = 0;
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const uint64_t even = (uint64_t)0xd2511f53u * c0, odd = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(odd >> 32) ^ c1 ^ seed_low;
        c1 = (uint32_t)odd;
        c2 = (uint32_t)(even >> 32) ^ c3 ^ seed_high;
        c3 = (uint32_t)even;
        seed_low += 0x9e3779b9u;
        seed_high += 0xbb67ae85u;
    }
    return (float)(c0 >> 8) * 0x1p-24f;
}
