// The exponential of crates/ops/src/activation.rs with the same bits: additions and
// multiplications only, none of them contracted.
#pragma once
#include <stdint.h>

__device__ __forceinline__ float power_of_two(int exponent) {
    return __uint_as_float((uint32_t)(exponent + 127) << 23);
}

// x must not be NaN.
__device__ __forceinline__ float portable_exp(float x) {
    constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23
    constexpr float LOG2_E = 1.44269504088896340736f;
    constexpr float LN2_HIGH = 355.0f / 512.0f;
    constexpr float LN2_LOW = (float)(0.693147180559945309417232121458 - (double)LN2_HIGH);
    constexpr float FACTORS[7] = {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f,
                                  0.5f,          1.0f,          1.0f};
    x = fminf(fmaxf(x, -104.0f), 89.0f);
    const float shifted = __fadd_rn(__fmul_rn(x, LOG2_E), ROUND);
    const float n = __fsub_rn(shifted, ROUND);
    const int exponent = (int)(__float_as_uint(shifted) - __float_as_uint(ROUND));
    const float r = __fsub_rn(__fsub_rn(x, __fmul_rn(n, LN2_HIGH)), __fmul_rn(n, LN2_LOW));
    float series = 1.0f / 5040.0f;
#pragma unroll
    for (int i = 0; i < 7; ++i) series = __fadd_rn(__fmul_rn(series, r), FACTORS[i]);
    const int half = exponent >> 1;
    return __fmul_rn(__fmul_rn(series, power_of_two(half)), power_of_two(exponent - half));
}
