// Residual stream and norm, one block per row; see add_norm.cuh. Reads (slices + 1) * dim * 4 bytes
// a row and the weights, writes dim * 6.
#include "add_norm.cuh"

constexpr int THREADS = 640;
constexpr int WARPS = THREADS / 32;

// VECTORS vectors of four values a thread, THREADS apart; all their loads are under way together,
// since memory answers late while the next product fills its ring.
template <int VECTORS>
__device__ __forceinline__ void add_norm(const AddNormParams& p) {
    const size_t start = static_cast<size_t>(blockIdx.x) * p.dim;
    __shared__ float4 squares[VECTORS * WARPS / 4];
    pdl_launch();
    AddNormLoads loads[VECTORS];
    float4 sum[VECTORS], weight[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int at = threadIdx.x + i * THREADS;
        if (4 * at < p.dim) weight[i] = __ldg(reinterpret_cast<const float4*>(p.norm_weight) + at);
    }
    // Since the last norm more weights went through L2 than it holds, so the residual is in memory.
    // Fetching it into L2 reads no value and may happen before the wait.
    const int line = 32 * threadIdx.x;
    if (line < p.dim) prefetch(p.residual + start + line);
    pdl_wait();
    const uint32_t live = *p.live;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int at = threadIdx.x + i * THREADS;
        if (4 * at < p.dim) loads[i].load(p, start, at);
    }
    if (blockIdx.x >= live) return;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int at = threadIdx.x + i * THREADS;
        float own = 0.0f;
        if (4 * at < p.dim) {
            sum[i] = loads[i].sum();
            reinterpret_cast<float4*>(p.residual + start)[at] = sum[i];
            own = squares_of(sum[i]);
        }
        own = warp_sum(own);
        float* place = reinterpret_cast<float*>(squares) + i * WARPS + threadIdx.x / 32;
        if (threadIdx.x % 32 == 0) *place = own;
    }
    __syncthreads();
    const float scale = 1.0f / sqrtf(row_sum<VECTORS * WARPS>(squares) / p.dim + p.eps);
    uint2* normed = reinterpret_cast<uint2*>(p.normed + start);
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int at = threadIdx.x + i * THREADS;
        if (4 * at < p.dim) normed[at] = normed_of(sum[i], scale, weight[i]);
    }
}

// Rows of up to 2,560 and 5,120 values.
extern "C" __global__ void __launch_bounds__(THREADS) add_norm_1(
    const __grid_constant__ AddNormParams p) {
    add_norm<1>(p);
}
extern "C" __global__ void __launch_bounds__(THREADS) add_norm_2(
    const __grid_constant__ AddNormParams p) {
    add_norm<2>(p);
}
