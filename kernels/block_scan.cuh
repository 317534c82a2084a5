// Sorting, prefix sums and searches by one block.
#pragma once
#include <stdint.h>

// How many, and their mass.
struct Tally {
    uint32_t count;
    uint64_t mass;
};

__device__ __forceinline__ Tally operator+(Tally a, Tally b) {
    return {a.count + b.count, a.mass + b.mass};
}

struct ScanShared {
    Tally warp[32];
    Tally before;
    uint32_t found;
};

// Sum of the values of lower threads; total gets the sum of all.
__device__ __forceinline__ Tally block_exclusive_sum(Tally own, Tally& total, ScanShared& shared) {
    const uint32_t lane = threadIdx.x % 32;
    Tally through = own;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const uint32_t count = __shfl_up_sync(~0u, through.count, distance);
        const uint64_t mass = __shfl_up_sync(~0u, (unsigned long long)through.mass, distance);
        if (lane >= distance) through = through + Tally{count, mass};
    }
    __syncthreads();
    if (lane == 31) shared.warp[threadIdx.x / 32] = through;
    __syncthreads();
    Tally below = {0, 0};
    total = {0, 0};
    for (uint32_t warp = 0; warp < blockDim.x / 32; ++warp) {
        if (warp == threadIdx.x / 32) below = total;
        total = total + shared.warp[warp];
    }
    return {below.count + through.count - own.count, below.mass + through.mass - own.mass};
}

// Sum of entry(0) .. entry(n).
template <class Entry>
__device__ __forceinline__ Tally block_sum(uint32_t n, Entry entry, ScanShared& shared) {
    Tally own = {0, 0}, total;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) own = own + entry(i);
    block_exclusive_sum(own, total, shared);
    return total;
}

// The first of n entries through which the running sum, begun at `before`, reaches what is asked;
// n if none does. `before` becomes the sum in front of that entry, or the sum of all.
template <class Entry, class Reached>
__device__ __forceinline__ uint32_t first_reaching(uint32_t n, Entry entry, Reached reached,
                                                   Tally& before, ScanShared& shared) {
    const uint32_t share = (n + blockDim.x - 1) / blockDim.x;
    const uint32_t first = min(threadIdx.x * share, n), end = min(first + share, n);
    Tally own = {0, 0}, total;
    for (uint32_t i = first; i < end; ++i) own = own + entry(i);
    Tally sum = before + block_exclusive_sum(own, total, shared);
    if (threadIdx.x == 0) shared.found = n, shared.before = before + total;
    __syncthreads();
    if (!reached(sum) && reached(sum + own)) {
        uint32_t i = first;
        for (Tally next = sum + entry(i); !reached(next); next = sum + entry(i)) {
            sum = next;
            ++i;
        }
        shared.found = i, shared.before = sum;
    }
    __syncthreads();
    before = shared.before;
    return shared.found;
}

// Sorts keys in shared memory in descending order; size is a power of two. Every thread calls it
// after a barrier; a barrier at its end. Strides up to 32 stay within the keys of one warp.
__device__ __forceinline__ void sort_descending(uint64_t* keys, uint32_t size) {
    for (uint32_t run = 2; run <= size; run *= 2) {
        for (uint32_t stride = run / 2; stride > 0; stride /= 2) {
            for (uint32_t pair = threadIdx.x; pair < size / 2; pair += blockDim.x) {
                const uint32_t low = 2 * pair - (pair & (stride - 1)), high = low + stride;
                const uint64_t a = keys[low], b = keys[high];
                const bool descending = (low & run) == 0;
                if ((a < b) == descending) keys[low] = b, keys[high] = a;
            }
            const uint32_t next = stride > 1 ? stride / 2 : run;
            if (max(stride, next) > 32) {
                __syncthreads();
            } else {
                __syncwarp();
            }
        }
    }
    __syncthreads();
}
