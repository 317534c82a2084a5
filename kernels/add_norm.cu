// Adds a product summed in slices of K to the residual stream and norms the result:
//   s = residual[r, o] + (((p0 + p1) + p2) + p3), residual[r, o] = s,
//   normed[r, o] = s / sqrt(mean_o(s^2) + eps) * norm_weight[o].
// One block per row. Reads (slices + 1) * dim * 4 bytes a row, writes dim * 6.
#include "device.cuh"

struct AddNormParams {
    const float* partials;  // [slices, rows, dim]
    float* residual;        // [rows, dim]
    const float* norm_weight;
    bf16* normed;           // [rows, dim]
    const uint32_t* live;
    uint64_t slice;         // values from a slice of partials to the next
    uint32_t dim;           // a multiple of 4
    float eps;
};

constexpr int SLICES = 4;
constexpr int THREADS = 640;
// Vectors of four values whose loads a thread has under way at once: two cover 5,120 values.
constexpr int BATCH = 2;

__device__ __forceinline__ float4 add(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Writes the sums of BATCH vectors from `first` on to the residual and to `row`; returns their
// squares' sum.
__device__ __forceinline__ float add_batch(const AddNormParams& p, int first, float4* row) {
    const size_t start = static_cast<size_t>(blockIdx.x) * p.dim;
    float4* residual = reinterpret_cast<float4*>(p.residual + start);
    float4 value[BATCH], part[BATCH][SLICES];
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        const int at = first + i * THREADS;
        if (4 * at >= p.dim) continue;
#pragma unroll
        for (int slice = 0; slice < SLICES; slice++) {
            const float* from = p.partials + slice * p.slice + start;
            part[i][slice] = __ldcg(reinterpret_cast<const float4*>(from) + at);
        }
        value[i] = residual[at];
    }
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        const int at = first + i * THREADS;
        if (4 * at >= p.dim) continue;
        float4 sum = part[i][0];
#pragma unroll
        for (int slice = 1; slice < SLICES; slice++) sum = add(sum, part[i][slice]);
        sum = add(value[i], sum);
        residual[at] = sum;
        row[at] = sum;
        squares += sum.x * sum.x + sum.y * sum.y + sum.z * sum.z + sum.w * sum.w;
    }
    return squares;
}

extern "C" __global__ void __launch_bounds__(THREADS) add_norm(
    const __grid_constant__ AddNormParams p) {
    extern __shared__ float4 row[];
    __shared__ float warp_squares[THREADS / 32];
    pdl_launch();
    pdl_wait();
    if (blockIdx.x >= *p.live) return;
    float squares = 0.0f;
    for (int first = threadIdx.x; 4 * first < p.dim; first += BATCH * THREADS) {
        squares += add_batch(p, first, row);
    }
    squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0) warp_squares[threadIdx.x / 32] = squares;
    __syncthreads();
    squares = 0.0f;
#pragma unroll
    for (int warp = 0; warp < THREADS / 32; warp++) squares += warp_squares[warp];
    const float scale = 1.0f / sqrtf(squares / p.dim + p.eps);
    bf16* normed = p.normed + static_cast<size_t>(blockIdx.x) * p.dim;
    for (int at = threadIdx.x; 4 * at < p.dim; at += THREADS) {
        const float4 value = row[at];
        const float4 weight = reinterpret_cast<const float4*>(p.norm_weight)[at];
        __nv_bfloat162 pair[2] = {
            __floats2bfloat162_rn(value.x * scale * weight.x, value.y * scale * weight.y),
            __floats2bfloat162_rn(value.z * scale * weight.z, value.w * scale * weight.w)};
        *reinterpret_cast<uint2*>(normed + 4 * at) = *reinterpret_cast<const uint2*>(pair);
    }
}
