// A unit whose columns two clusters share: the first leaves its accumulators in memory, the second
// goes on with them. They are the f32 values of the registers, so the sums' bits do not change.
#pragma once
#include "wide_output.cuh"

// [block][consumer], zero between launches.
constexpr int BLOCKS_MAX = 256, CONSUMERS_MAX = 2;
__device__ uint32_t wide_ready[BLOCKS_MAX * CONSUMERS_MAX];

template <class T>
__device__ __forceinline__ float4* carry_of(const WideParams& p, int block, const WideTarget& t) {
    return p.carry + static_cast<size_t>(block) * (T::ROWS / 8 * T::CONSUMER_THREADS) +
           t.consumer * 128 + t.thread;
}

// Lets the next block take over what this consumer left.
__device__ __forceinline__ void tell(int consumer) {
    store_release(wide_ready + blockIdx.x * CONSUMERS_MAX + consumer, 1);
}

// After the barrier of the block and those of the consumers.
__device__ __forceinline__ int handed_barrier(int consumer) { return 1 + CONSUMERS_MAX + consumer; }

template <class T>
__device__ __forceinline__ void hand_over(const WideParams& p, const WideTarget& t,
                                          const typename T::Sums& sums) {
    float4* to = carry_of<T>(p, blockIdx.x, t);
#pragma unroll
    for (int i = 0; i < T::ROWS / 2; i += 4, to += T::CONSUMER_THREADS) {
        __stcg(to, make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]));
    }
    if (T::BULK) {
        warpgroup_arrive(handed_barrier(t.consumer));
    } else {
        consumer_sync(t);
        if (t.thread == 0) tell(t.consumer);
    }
}

// Tells when the consumers have handed over, since a release waits for all their stores to land;
// they go on meanwhile. For a whole warp, once, in a block that hands over.
template <class T>
__device__ __forceinline__ void announce() {
#pragma unroll
    for (int consumer = 0; consumer < T::CONSUMERS; consumer++) {
        warpgroup_await(handed_barrier(consumer));
        if (threadIdx.x % 32 == 0) tell(consumer);
    }
}

// `giver` is the block that handed over. The flag is left as it was before the launch.
template <class T>
__device__ __forceinline__ void take_over(const WideParams& p, int giver, const WideTarget& t,
                                          typename T::Sums& sums) {
    if (t.thread == 0) {
        uint32_t* ready = wide_ready + giver * CONSUMERS_MAX + t.consumer;
        while (load_acquire(ready) == 0) {
        }
        *ready = 0;
    }
    consumer_sync(t);
    const float4* from = carry_of<T>(p, giver, t);
#pragma unroll
    for (int i = 0; i < T::ROWS / 2; i += 4, from += T::CONSUMER_THREADS) {
        const float4 v = __ldcg(from);
        sums[i] = v.x;
        sums[i + 1] = v.y;
        sums[i + 2] = v.z;
        sums[i + 3] = v.w;
    }
}
