// Adds a product summed in slices of K to the residual stream and norms the result:
//   s = residual[r, o] + (((p0 + p1) + p2) + p3), residual[r, o] = s,
//   normed[r, o] = s * norm_weight[o] / sqrt(mean_o(s^2) + eps).
// One block per row. Reads (slices + 1) * dim * 4 bytes a row and the weights, writes dim * 6.
//
// The product in front fills two blocks of every multiprocessor, and the product behind cannot
// start before all blocks here have: threads and registers are few enough for a block to fit beside
// the two, so that it is in place, waiting, before they end.
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
constexpr int THREADS = 320;
// Vectors of four values whose loads a thread has under way at once.
constexpr int BATCH = 2;

// Fetches the 128 bytes around an address into L2.
__device__ __forceinline__ void prefetch(const void* global) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

__device__ __forceinline__ float4 add(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// BATCH vectors of a row, THREADS apart.
struct Vectors {
    float4 part[BATCH][SLICES];
    float4 before[BATCH];
    float4 weight[BATCH];
    int first;

    __device__ __forceinline__ bool inside(const AddNormParams& p, int i) const {
        return 4 * (first + i * THREADS) < p.dim;
    }

    __device__ __forceinline__ Vectors(const AddNormParams& p, int first) : first(first) {
        const size_t start = static_cast<size_t>(blockIdx.x) * p.dim;
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (!inside(p, i)) continue;
            const int at = first + i * THREADS;
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) {
                const float* from = p.partials + slice * p.slice + start;
                part[i][slice] = __ldcg(reinterpret_cast<const float4*>(from) + at);
            }
            before[i] = __ldcg(reinterpret_cast<const float4*>(p.residual + start) + at);
            weight[i] = __ldg(reinterpret_cast<const float4*>(p.norm_weight) + at);
        }
    }

    // Writes the sums to the residual and, times the weight, to `row`; returns the sum of their
    // squares.
    __device__ __forceinline__ float add_up(const AddNormParams& p, float4* row) const {
        float4* residual =
            reinterpret_cast<float4*>(p.residual + static_cast<size_t>(blockIdx.x) * p.dim);
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (!inside(p, i)) continue;
            const int at = first + i * THREADS;
            float4 sum = part[i][0];
#pragma unroll
            for (int slice = 1; slice < SLICES; slice++) sum = add(sum, part[i][slice]);
            sum = add(before[i], sum);
            residual[at] = sum;
            squares += sum.x * sum.x + sum.y * sum.y + sum.z * sum.z + sum.w * sum.w;
            row[at] = make_float4(sum.x * weight[i].x, sum.y * weight[i].y, sum.z * weight[i].z,
                                  sum.w * weight[i].w);
        }
        return squares;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 3) add_norm(
    const __grid_constant__ AddNormParams p) {
    extern __shared__ float4 row[];
    __shared__ float warp_squares[THREADS / 32];
    pdl_launch();
    // Since the last norm more weights went through L2 than it holds: both come from memory. Fetching
    // them early reads no value, so it may happen before the wait.
    for (int at = 32 * threadIdx.x; at < p.dim; at += 32 * THREADS) {
        prefetch(p.residual + static_cast<size_t>(blockIdx.x) * p.dim + at);
        prefetch(p.norm_weight + at);
    }
    pdl_wait();
    const uint32_t live = *p.live;
    Vectors vectors(p, threadIdx.x);
    if (blockIdx.x >= live) return;
    float squares = vectors.add_up(p, row);
#pragma unroll 1
    for (int at = threadIdx.x + BATCH * THREADS; 4 * at < p.dim; at += BATCH * THREADS) {
        squares += Vectors(p, at).add_up(p, row);
    }
    squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0) warp_squares[threadIdx.x / 32] = squares;
    __syncthreads();
    squares = 0.0f;
#pragma unroll
    for (int warp = 0; warp < THREADS / 32; warp++) squares += warp_squares[warp];
    const float scale = 1.0f / sqrtf(squares / p.dim + p.eps);
    uint2* normed = reinterpret_cast<uint2*>(p.normed + static_cast<size_t>(blockIdx.x) * p.dim);
    for (int at = threadIdx.x; 4 * at < p.dim; at += THREADS) {
        const float4 value = row[at];
        const __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(value.x * scale, value.y * scale),
                                        __floats2bfloat162_rn(value.z * scale, value.w * scale)};
        normed[at] = *reinterpret_cast<const uint2*>(pair);
    }
}
