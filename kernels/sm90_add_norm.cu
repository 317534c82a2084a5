// Residual stream and norm on Hopper; see add_norm.cuh. A cluster of four blocks per row: a single
// multiprocessor would take longest to receive a row's slices, and blocks of so few registers find
// room beside those of the products in front and behind.
#include "add_norm.cuh"
#include "hopper.cuh"

constexpr int BLOCKS = 4;
constexpr int THREADS = 320;
constexpr int WARPS = THREADS / 32;
constexpr int ALL_WARPS = BLOCKS * WARPS;

struct ClusterShared {
    float4 squares[ALL_WARPS / 4];  // by rank and warp
    uint64_t barrier;               // ends its phase when all of them are there
};

// Grid (blocks * rows), rows of at most BLOCKS * THREADS * 4 values.
extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS)
    add_norm_cluster(const __grid_constant__ AddNormParams p) {
    __shared__ ClusterShared shared;
    const uint32_t row = blockIdx.x / BLOCKS, rank = cluster_rank();
    const size_t start = static_cast<size_t>(row) * p.dim;
    const int at = rank * THREADS + threadIdx.x, lane = threadIdx.x % 32;
    const bool mine = 4 * at < p.dim;
    const uint32_t barrier = shared_address(&shared.barrier);
    pdl_launch();
    if (threadIdx.x == 0) {
        barrier_init(barrier, 1);
        barrier_init_fence();
    }
    // The others' barriers must be there before sums are sent.
    cluster_arrive();
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const float4 weight =
        mine ? __ldg(reinterpret_cast<const float4*>(p.norm_weight) + at) : zero;
    // Since the last norm more weights went through L2 than it holds, so the residual is in memory.
    // Fetching it into L2 reads no value and may happen before the wait.
    if (mine && threadIdx.x % 8 == 0) prefetch(p.residual + start + 4 * at);
    pdl_wait();
    const uint32_t live = *p.live;
    AddNormLoads loads;
    if (mine) loads.load(p, start, at);
    cluster_wait();
    if (row >= live) return;
    // Sums that are there already are counted, too: the phase cannot end before this arrival.
    if (threadIdx.x == 0) barrier_expect(barrier, sizeof(shared.squares));
    const float4 sum = mine ? loads.sum() : zero;
    const float squares = warp_sum(squares_of(sum));
    if (lane < BLOCKS) {
        const uint32_t place = rank * WARPS + threadIdx.x / 32;
        const float* to = reinterpret_cast<const float*>(shared.squares) + place;
        send_to_cluster(shared_address(to), barrier, lane, squares);
    }
    if (mine) reinterpret_cast<float4*>(p.residual + start)[at] = sum;
    barrier_wait(barrier, 0);
    const float scale = 1.0f / sqrtf(row_sum<ALL_WARPS>(shared.squares) / p.dim + p.eps);
    if (mine) reinterpret_cast<uint2*>(p.normed + start)[at] = normed_of(sum, scale, weight);
}
