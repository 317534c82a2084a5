// What kernels share that add a product, summed in slices of K, to the residual stream and norm the
// result:
//   s = residual[r, o] + (((p0 + p1) + p2) + p3), residual[r, o] = s,
//   normed[r, o] = s * norm_weight[o] / sqrt(mean_o(s^2) + eps).
#pragma once
#include "device.cuh"

struct AddNormParams {
    const float* partials;  // [slices, rows, dim]
    float* residual;        // [rows, dim]
    const float* norm_weight;
    bf16* normed;  // [rows, dim]
    const uint32_t* live;
    uint64_t slice;  // values from a slice of partials to the next
    uint32_t dim;    // a multiple of 4
    float eps;
};

constexpr int SLICES = 4;
// Fetches the 128 bytes around an address into L2.
__device__ __forceinline__ void prefetch(const void* global) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

__device__ __forceinline__ float4 add(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// One value of the stream, in fours: loads of all slices, which the caller has under way together.
struct AddNormLoads {
    float4 part[SLICES];
    float4 residual;

    __device__ __forceinline__ void load(const AddNormParams& p, size_t start, int at) {
#pragma unroll
        for (int slice = 0; slice < SLICES; slice++) {
            const float* from = p.partials + slice * p.slice + start;
            part[slice] = __ldcg(reinterpret_cast<const float4*>(from) + at);
        }
        residual = __ldcg(reinterpret_cast<const float4*>(p.residual + start) + at);
    }

    __device__ __forceinline__ float4 sum() const {
        float4 product = part[0];
#pragma unroll
        for (int slice = 1; slice < SLICES; slice++) product = add(product, part[slice]);
        return add(residual, product);
    }
};

__device__ __forceinline__ float squares_of(float4 s) {
    return s.x * s.x + s.y * s.y + s.z * s.z + s.w * s.w;
}

__device__ __forceinline__ uint2 normed_of(float4 s, float scale, float4 weight) {
    const __nv_bfloat162 pair[2] = {
        __floats2bfloat162_rn(s.x * scale * weight.x, s.y * scale * weight.y),
        __floats2bfloat162_rn(s.z * scale * weight.z, s.w * scale * weight.w)};
    return *reinterpret_cast<const uint2*>(pair);
}

// Sums of the squares of every 128 values, a warp's vectors, become one sum in one order: the bits
// do not depend on how many blocks share a row. COUNT is a multiple of 4; places behind the row's end
// hold zeros.
template <int COUNT>
__device__ __forceinline__ float row_sum(const float4 (&squares)[COUNT / 4]) {
    float4 sum = squares[0];
#pragma unroll
    for (int i = 1; i < COUNT / 4; i++) sum = add(sum, squares[i]);
    return (sum.x + sum.y) + (sum.z + sum.w);
}
