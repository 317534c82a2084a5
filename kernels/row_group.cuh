// Several blocks at work on one row.
#pragma once
#include <stdint.h>

// What blocks write for each other is read past L1, which may hold what was there before.
__device__ __forceinline__ uint32_t load_fresh(const uint32_t* from) { return __ldcg(from); }
__device__ __forceinline__ float load_fresh(const float* from) { return __ldcg(from); }
__device__ __forceinline__ uint64_t load_fresh(const uint64_t* from) {
    return __ldcg(reinterpret_cast<const unsigned long long*>(from));
}

__device__ __forceinline__ void atomic_add(uint64_t* to, uint64_t value) {
    atomicAdd(reinterpret_cast<unsigned long long*>(to), (unsigned long long)value);
}

// Zero when the group starts.
struct GroupState {
    uint64_t mass;
    uint32_t arrived;
    // Keys in the list of the first and of the second search.
    uint32_t listed[2];
    uint32_t unused;
};

struct RowGroup {
    GroupState* state;
    uint32_t size;
    uint32_t rank;
    // Arrivals that the next barrier waits for, less those of its own.
    uint32_t passed;
};

// Every thread of every block of the group waits for all others; load_fresh sees what they wrote.
// All blocks must run at once: a launch has at most as many as there are multiprocessors, unless groups
// are single blocks.
__device__ __forceinline__ void group_barrier(RowGroup& group) {
    __syncthreads();
    if (group.size == 1) return;
    group.passed += group.size;
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(&group.state->arrived, 1);
        while (*(volatile uint32_t*)&group.state->arrived < group.passed) {
        }
        __threadfence();
    }
    __syncthreads();
}
