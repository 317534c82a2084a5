// Instructions that several kernels use.
#pragma once
#include <cuda_bf16.h>
#include <stdint.h>

using bf16 = __nv_bfloat16;

// Programmatic dependent launch (sm_90 and later). A kernel may start while the one in front of it
// still runs; pdl_wait returns once all earlier kernels have ended and what they wrote is visible.
// Nothing is touched before it but constants, tables that the host filled (or `write_shared` waited
// for) and what earlier steps left; block 0 of every kernel calls it: the chain of waits is what
// orders kernels that are not neighbours.
__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start its part in front of its wait.
__device__ __forceinline__ void pdl_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes from global to shared memory, past L1.
__device__ __forceinline__ void copy16_async(uint32_t shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global));
}

// The same, or zeros: global is not read unless valid.
__device__ __forceinline__ void copy16_async_or_zero(uint32_t shared, const void* global,
                                                     bool valid) {
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(bytes));
}

__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING groups of this thread's copies are under way.
template <int PENDING>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Four 8x8 matrices of 16-bit values from rows in shared memory.
__device__ __forceinline__ void load_matrix_x4(uint32_t (&r)[4], uint32_t shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared));
}

// The same, each matrix transposed.
__device__ __forceinline__ void load_matrix_x4_transposed(uint32_t (&r)[4], uint32_t shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared));
}

// Two f32 to a pair of bf16, `low` in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
}

// The two values of a pair.
__device__ __forceinline__ float low_bf16(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_bf16(uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

// An 8 x 8 matrix of 16-bit values, transposed between the lanes.
__device__ __forceinline__ uint32_t transpose(uint32_t matrix) {
    uint32_t transposed;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(matrix));
    return transposed;
}

// c[16 x 8] += a[16 x 16] b[16 x 8]. Lane l holds rows l / 4 (c[0], c[1]) and l / 4 + 8 (c[2],
// c[3]), columns 2 (l % 4) and one more.
__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Sum over the lanes of a warp by a balanced tree; every lane gets it.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(~0u, value, lane);
    return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) {
        value = fmaxf(value, __shfl_xor_sync(~0u, value, lane));
    }
    return value;
}

// 1 / (1 + e^-x), as crates/ops/src/activation.rs.
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// x / (1 + e^-x), whose results all become bf16. The approximate power and inverse (relative error
// about 2^-20) without denormals are five instructions; all the others together took four times
// as long.
__device__ __forceinline__ float silu(float x) {
    float power, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power));
    return x * inverse;
}
