// Values of stand-in weights, made in place (crates/ops/src/fill.rs).
#include "device.cuh"
#include "philox.cuh"

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

// Box and Muller: two normal numbers from a radius' and an angle's word.
__device__ __forceinline__ void normal_pair(uint32_t radius, uint32_t angle, float& first,
                                            float& second) {
    const float length = sqrtf(-2.0f * logf((float)((radius >> 8) + 1) * 0x1p-24f));
    float sine, cosine;
    sincospif(2.0f * unit_of(angle), &sine, &cosine);
    first = length * cosine;
    second = length * sine;
}

// Values first .. first + 4 are made of the words of counter (first / 4, name) under the seed.
__device__ __forceinline__ void make_values(const FillParams& p, uint64_t first,
                                            float (&values)[FILL_VALUES]) {
#pragma unroll
    for (int i = 0; i < FILL_VALUES; i += 4) {
        float(&four)[4] = reinterpret_cast<float(&)[4]>(values[i]);
        const uint64_t group = (first + i) / 4;
        const uint4 counter =
            make_uint4((uint32_t)group, (uint32_t)(group >> 32), p.name[0], p.name[1]);
        if (p.law == CONSTANT) {
            for (float& value : four) value = p.a;
            continue;
        }
        const uint4 words = philox_block(counter, p.seed[0], p.seed[1]);
        if (p.law == NORMAL) {
            normal_pair(words.x, words.y, four[0], four[1]);
            normal_pair(words.z, words.w, four[2], four[3]);
            for (float& value : four) value = fmaf(value, p.b, p.a);
        } else {
            const uint32_t word[4] = {words.x, words.y, words.z, words.w};
            for (int j = 0; j < 4; ++j) four[j] = logf(fmaf(p.b - p.a, unit_of(word[j]), p.a));
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
