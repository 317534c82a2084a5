// Values of stand-in weights, made in place (crates/ops/src/fill.rs).
#include "device.cuh"

constexpr int FILL_THREADS = 256;
constexpr int FILL_VALUES = 8;  // per thread

enum Law : uint32_t { CONSTANT, NORMAL, LOG_UNIFORM };

struct FillParams {
    void* out;
    uint64_t len;
    uint32_t seed[2];
    uint32_t name[2];  // hash of the tensor's name
    uint32_t law;
    float a;  // the constant; mean; lower bound
    float b;  // standard deviation; upper bound
};

// Philox 4x32-10 with counter (group, name) and key = seed: the words of values 4 group .. + 4.
__device__ __forceinline__ void random_words(const FillParams& p, uint64_t group,
                                             uint32_t (&words)[4]) {
    uint32_t c0 = (uint32_t)group, c1 = (uint32_t)(group >> 32), c2 = p.name[0], c3 = p.name[1];
    uint32_t low = p.seed[0], high = p.seed[1];
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const uint64_t even = (uint64_t)0xd2511f53u * c0, odd = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(odd >> 32) ^ c1 ^ low;
        c1 = (uint32_t)odd;
        c2 = (uint32_t)(even >> 32) ^ c3 ^ high;
        c3 = (uint32_t)even;
        low += 0x9e3779b9u;
        high += 0xbb67ae85u;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

// In [0, 1).
__device__ __forceinline__ float unit(uint32_t word) {
    return (float)(word >> 8) * 0x1p-24f;
}

// Box and Muller: two normal numbers from a radius' and an angle's word.
__device__ __forceinline__ void normal_pair(uint32_t radius, uint32_t angle, float& first,
                                            float& second) {
    const float length = sqrtf(-2.0f * logf((float)((radius >> 8) + 1) * 0x1p-24f));
    float sine, cosine;
    sincospif(2.0f * unit(angle), &sine, &cosine);
    first = length * cosine;
    second = length * sine;
}

__device__ __forceinline__ void make_values(const FillParams& p, uint64_t first,
                                            float (&values)[FILL_VALUES]) {
#pragma unroll
    for (int i = 0; i < FILL_VALUES; i += 4) {
        if (p.law == CONSTANT) {
            for (int j = 0; j < 4; ++j) values[i + j] = p.a;
            continue;
        }
        uint32_t words[4];
        random_words(p, (first + i) / 4, words);
        if (p.law == NORMAL) {
            normal_pair(words[0], words[1], values[i], values[i + 1]);
            normal_pair(words[2], words[3], values[i + 2], values[i + 3]);
            for (int j = 0; j < 4; ++j) values[i + j] = fmaf(values[i + j], p.b, p.a);
        } else {
            for (int j = 0; j < 4; ++j) values[i + j] = logf(fmaf(p.b - p.a, unit(words[j]), p.a));
        }
    }
}

extern "C" __global__ void __launch_bounds__(FILL_THREADS)
    fill_f32(const __grid_constant__ FillParams p) {
    const uint64_t first = ((uint64_t)blockIdx.x * FILL_THREADS + threadIdx.x) * FILL_VALUES;
    pdl_launch();
    float values[FILL_VALUES];
    make_values(p, first, values);
    pdl_wait();
    float* out = (float*)p.out + first;
    if (first + FILL_VALUES <= p.len) {
        reinterpret_cast<float4*>(out)[0] = make_float4(values[0], values[1], values[2], values[3]);
        reinterpret_cast<float4*>(out)[1] = make_float4(values[4], values[5], values[6], values[7]);
        return;
    }
#pragma unroll
    for (int i = 0; i < FILL_VALUES; ++i) {
        if (first + i < p.len) out[i] = values[i];
    }
}

extern "C" __global__ void __launch_bounds__(FILL_THREADS)
    fill_bf16(const __grid_constant__ FillParams p) {
    const uint64_t first = ((uint64_t)blockIdx.x * FILL_THREADS + threadIdx.x) * FILL_VALUES;
    pdl_launch();
    float values[FILL_VALUES];
    make_values(p, first, values);
    pdl_wait();
    bf16* out = (bf16*)p.out + first;
    if (first + FILL_VALUES <= p.len) {
        uint32_t pairs[FILL_VALUES / 2];
#pragma unroll
        for (int i = 0; i < FILL_VALUES / 2; ++i) {
            const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
            pairs[i] = *reinterpret_cast<const uint32_t*>(&pair);
        }
        *reinterpret_cast<uint4*>(out) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < FILL_VALUES; ++i) {
        if (first + i < p.len) out[i] = __float2bfloat16_rn(values[i]);
    }
}
