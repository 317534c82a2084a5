// Clusters, transaction barriers and bulk tensor copies of sm_90.
#pragma once
#include "device.cuh"

// A descriptor made by cuTensorMapEncodeTiled.
struct alignas(128) TensorMap {
    uint64_t words[16];
};

// What the launch gave the block.
__device__ __forceinline__ uint32_t dynamic_shared_bytes() {
    uint32_t bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}

// ---- clusters ----

__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// The halves of a meeting of the cluster's threads: what they wrote to shared memory before the first
// is visible after the second. The first waits for a thread's own writes to global memory, too.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait;" ::: "memory");
}

__device__ __forceinline__ void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}

// ---- transaction barriers: `bar` is a shared address of this block ----

__device__ __forceinline__ void barrier_init(uint32_t bar, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the cluster and to the copy engine; a cluster_sync()
// follows.
__device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// One arrival, and `bytes` more to come before the phase ends.
__device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

// One arrival at the barrier with the same address in block `rank` of the cluster. It orders
// nothing but this thread's finished reads: a release at cluster scope would cost a microsecond.
__device__ __forceinline__ void barrier_arrive(uint32_t bar, uint32_t rank) {
    asm volatile(
        "{\n\t.reg .b32 remote;\n\t"
        "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n\t}" ::"r"(bar),
        "r"(rank)
        : "memory");
}

// Stores a value at the same address in block `rank` of the cluster and counts its four bytes at
// the barrier there, whose end makes it visible.
__device__ __forceinline__ void send_to_cluster(uint32_t address, uint32_t bar, uint32_t rank,
                                                float value) {
    asm volatile(
        "{\n\t.reg .b32 to, bar;\n\t"
        "mapa.shared::cluster.u32 to, %0, %2;\n\t"
        "mapa.shared::cluster.u32 bar, %1, %2;\n\t"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %3, [bar];\n\t}" ::"r"(
            address),
        "r"(bar), "r"(rank), "r"(__float_as_uint(value))
        : "memory");
}

// Waits for the end of the phase of the given parity.
__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity) {
    asm volatile(
        "{\n\t.reg .pred done;\n"
        "again:\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
        "@!done bra again;\n\t}" ::"r"(bar),
        "r"(parity)
        : "memory");
}

// ---- bulk tensor copies, two-dimensional; x counts within a row ----

// Cache hints: how long the second-level cache keeps what a copy reads.
__device__ __forceinline__ uint64_t evict_first() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ uint64_t evict_normal() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ void copy_tile(uint32_t to, const TensorMap& map, int x, int y,
                                          uint32_t bar) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(&map), "r"(x), "r"(y), "r"(bar)
        : "memory");
}

__device__ __forceinline__ void copy_tile(uint32_t to, const TensorMap& map, int x, int y,
                                          uint32_t bar, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(&map), "r"(x), "r"(y), "r"(bar), "l"(policy)
        : "memory");
}

// Into all BLOCKS blocks of a cluster, at the same addresses.
template <int BLOCKS>
__device__ __forceinline__ void copy_tile_to_cluster(uint32_t to, const TensorMap& map, int x,
                                                     int y, uint32_t bar) {
    const uint16_t blocks = (1 << BLOCKS) - 1;
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(&map), "r"(x), "r"(y), "r"(bar), "h"(blocks)
        : "memory");
}

// ---- bulk tensor copies back to memory; three dimensions, in groups as one thread commits them ----

// Makes this thread's stores to shared memory visible to the copy engine.
__device__ __forceinline__ void copy_out_fence() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void copy_tile_out(uint32_t from, const TensorMap& map, int x, int y,
                                              int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(
            &map),
        "r"(x), "r"(y), "r"(z), "r"(from)
        : "memory");
}

__device__ __forceinline__ void copy_out_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until all but the last PENDING groups have been read from shared memory.
template <int PENDING>
__device__ __forceinline__ void copy_out_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// ---- stores to shared memory ----

// Stores 8x8 matrices transposed. Lanes 8q to 8q + 7 give the addresses of the rows of stored
// matrix q (16 bytes each).
__device__ __forceinline__ void store_transposed(uint32_t to, uint32_t a, uint32_t b, uint32_t c,
                                                 uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}
__device__ __forceinline__ void store_transposed(uint32_t to, uint32_t a, uint32_t b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(a),
                 "r"(b)
                 : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t to, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}

__device__ __forceinline__ uint4 load_shared16(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

// ---- flags in global memory, and warpgroups ----

__device__ __forceinline__ void store_release(uint32_t* flag, uint32_t value) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

__device__ __forceinline__ uint32_t load_acquire(const uint32_t* flag) {
    uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}

// Barrier of 128 threads; 0 is that of the whole block.
__device__ __forceinline__ void warpgroup_sync(int barrier) {
    asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory");
}

// A barrier of 128 threads that go on at once and a warp that waits for them.
__device__ __forceinline__ void warpgroup_arrive(int barrier) {
    asm volatile("bar.arrive %0, 160;" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void warpgroup_await(int barrier) {
    asm volatile("bar.sync %0, 160;" ::"r"(barrier) : "memory");
}
