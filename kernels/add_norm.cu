// Adds a product summed in slices of K to the residual stream and norms the result:
//   s = residual[r, o] + (((p0 + p1) + p2) + p3), residual[r, o] = s,
//   normed[r, o] = s * norm_weight[o] / sqrt(mean_o(s^2) + eps).
// One block per row. Reads (slices + 1) * dim * 4 bytes a row and the weights, writes dim * 6.
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
constexpr int THREADS = 640;

// Fetches the 128 bytes around an address into L2.
__device__ __forceinline__ void prefetch(const void* global) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

__device__ __forceinline__ float4 add(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Sum over the block, the same for every thread.
__device__ __forceinline__ float block_sum(float value) {
    __shared__ float warps[THREADS / 32];
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < THREADS / 32; warp++) sum += warps[warp];
    return sum;
}

// VECTORS vectors of four values a thread, THREADS apart; all their loads are under way together,
// since memory answers late while the next product fills its ring.
template <int VECTORS>
__device__ __forceinline__ void add_norm(const AddNormParams& p) {
    const size_t start = static_cast<size_t>(blockIdx.x) * p.dim;
    float4* residual = reinterpret_cast<float4*>(p.residual + start);
    pdl_launch();
    // Since the last norm more weights went through L2 than it holds: both come from memory.
    // Fetching them into L2 reads no value, so it may happen before the wait.
    for (int at = 32 * threadIdx.x; at < p.dim; at += 32 * THREADS) {
        prefetch(p.residual + start + at);
        prefetch(p.norm_weight + at);
    }
    pdl_wait();
    const uint32_t live = *p.live;
    float4 part[VECTORS][SLICES], sum[VECTORS], weight[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int at = threadIdx.x + i * THREADS;
        if (4 * at >= p.dim) continue;
#pragma unroll
        for (int slice = 0; slice < SLICES; slice++) {
            const float* from = p.partials + slice * p.slice + start;
            part[i][slice] = __ldcg(reinterpret_cast<const float4*>(from) + at);
        }
        sum[i] = __ldcg(residual + at);
    }
    if (blockIdx.x >= live) return;
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int at = threadIdx.x + i * THREADS;
        if (4 * at >= p.dim) continue;
        float4 product = part[i][0];
#pragma unroll
        for (int slice = 1; slice < SLICES; slice++) product = add(product, part[i][slice]);
        const float4 s = add(sum[i], product);
        sum[i] = s;
        weight[i] = __ldg(reinterpret_cast<const float4*>(p.norm_weight) + at);
        residual[at] = s;
        squares += s.x * s.x + s.y * s.y + s.z * s.z + s.w * s.w;
    }
    const float scale = 1.0f / sqrtf(block_sum(squares) / p.dim + p.eps);
    uint2* normed = reinterpret_cast<uint2*>(p.normed + start);
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int at = threadIdx.x + i * THREADS;
        if (4 * at >= p.dim) continue;
        const float4 s = sum[i], w = weight[i];
        const __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(s.x * scale * w.x, s.y * scale * w.y),
                                        __floats2bfloat162_rn(s.z * scale * w.z, s.w * scale * w.w)};
        normed[at] = *reinterpret_cast<const uint2*>(pair);
    }
}

// Rows of up to 2,560, 5,120 and 10,240 values.
extern "C" __global__ void __launch_bounds__(THREADS) add_norm_1(
    const __grid_constant__ AddNormParams p) {
    add_norm<1>(p);
}
extern "C" __global__ void __launch_bounds__(THREADS) add_norm_2(
    const __grid_constant__ AddNormParams p) {
    add_norm<2>(p);
}
extern "C" __global__ void __launch_bounds__(THREADS) add_norm_4(
    const __grid_constant__ AddNormParams p) {
    add_norm<4>(p);
}
