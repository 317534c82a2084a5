// Matrix products of a warpgroup (sm_90a), both operands in shared memory.
#pragma once
#include "device.cuh"

__device__ __forceinline__ void product_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void product_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING>
__device__ __forceinline__ void product_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Operand in shared memory: rows of 128 bytes (64 bf16 of K), 128-byte swizzle, 1024 bytes from 8
// rows to the next 8.
__device__ __forceinline__ uint64_t operand(uint32_t address) {
    return (uint64_t)1 << 62 | (uint64_t)64 << 32 | (uint64_t)1 << 16 | (address & 0x3ffff) >> 4;
}

// d[64, N] += a[64, 16] b[N, 16]^T. Of a warp's 16 rows thread `lane` holds row g = lane / 4 in
// d[4j], d[4j+1] and row g + 8 in d[4j+2], d[4j+3], columns 8j + 2 (lane % 4) and the next.
template <int N>
__device__ __forceinline__ void product(float (&d)[N / 2], uint64_t a, uint64_t b);

#define OUT0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define OUT1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define OUT2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define OUT3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define OUT4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define OUT5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define OUT6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define OUT7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define OUT8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define OUT9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define OUT10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define OUT11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define OUT12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define OUT13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define OUT14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define OUT15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define IN8(i)                                                                                  \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define IN32(i) IN8(i), IN8(i + 8), IN8(i + 16), IN8(i + 24)
#define PRODUCT(N, OUTS, A, B, ...)                                                            \
    template <>                                                                                \
    __device__ __forceinline__ void product<N>(float (&d)[N / 2], uint64_t a, uint64_t b) {    \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" OUTS "}, " A \
                     ", " B ", 1, 1, 1, 0, 0;"                                                 \
                     : __VA_ARGS__                                                             \
                     : "l"(a), "l"(b));                                                        \
    }
PRODUCT(32, OUT0 ", " OUT1, "%16", "%17", IN8(0), IN8(8))
PRODUCT(48, OUT0 ", " OUT1 ", " OUT2, "%24", "%25", IN8(0), IN8(8), IN8(16))
PRODUCT(64, OUT0 ", " OUT1 ", " OUT2 ", " OUT3, "%32", "%33", IN32(0))
PRODUCT(96, OUT0 ", " OUT1 ", " OUT2 ", " OUT3 ", " OUT4 ", " OUT5, "%48", "%49", IN32(0), IN8(32),
        IN8(40))
PRODUCT(128, OUT0 ", " OUT1 ", " OUT2 ", " OUT3 ", " OUT4 ", " OUT5 ", " OUT6 ", " OUT7, "%64",
        "%65", IN32(0), IN32(32))
PRODUCT(192,
        OUT0 ", " OUT1 ", " OUT2 ", " OUT3 ", " OUT4 ", " OUT5 ", " OUT6 ", " OUT7 ", " OUT8
             ", " OUT9 ", " OUT10 ", " OUT11,
        "%96", "%97", IN32(0), IN32(32), IN32(64))
PRODUCT(256,
        OUT0 ", " OUT1 ", " OUT2 ", " OUT3 ", " OUT4 ", " OUT5 ", " OUT6 ", " OUT7 ", " OUT8
             ", " OUT9 ", " OUT10 ", " OUT11 ", " OUT12 ", " OUT13 ", " OUT14 ", " OUT15,
        "%128", "%129", IN32(0), IN32(32), IN32(64), IN32(96))
#undef PRODUCT
#undef IN32
#undef IN8
#undef OUT0
#undef OUT1
#undef OUT2
#undef OUT3
#undef OUT4
#undef OUT5
#undef OUT6
#undef OUT7
#undef OUT8
#undef OUT9
#undef OUT10
#undef OUT11
#undef OUT12
#undef OUT13
#undef OUT14
#undef OUT15
