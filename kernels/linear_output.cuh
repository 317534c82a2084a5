// What becomes of the sums. c[0], c[1] are rows `row` and `row + 1` of output `output`, c[2] and
// c[3] the same rows of output + 8; rows from `live` on and outputs past the last are not written.
#pragma once
#include "linear_params.cuh"
#include "linear_tile.cuh"

struct StoreBf16 {
    static __device__ __forceinline__ void store(const LinearParams& p, const float (&c)[4],
                                                 int output, int row, int live) {
        bf16* out = static_cast<bf16*>(p.out);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int o = output + 8 * (i / 2), r = row + i % 2;
            if (o < p.outputs && r < live) {
                out[static_cast<size_t>(r) * p.out_row + o] = __float2bfloat16_rn(c[i]);
            }
        }
    }
};

// Each slice of K to its own part of out.
struct StoreF32 {
    static __device__ __forceinline__ void store(const LinearParams& p, const float (&c)[4],
                                                 int output, int row, int live) {
        float* out = static_cast<float*>(p.out) + blockIdx.z * p.out_slice;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int o = output + 8 * (i / 2), r = row + i % 2;
            if (o < p.outputs && r < live) out[static_cast<size_t>(r) * p.out_row + o] = c[i];
        }
    }
};

// Rows of the weight are interleaved by eights: a group holds the gate of eight values, then the up
// of the same eight. out[r, j] = silu(gate_j) up_j; outputs is a multiple of 16.
struct StoreSwiglu {
    static __device__ __forceinline__ void store(const LinearParams& p, const float (&c)[4],
                                                 int output, int row, int live) {
        bf16* out = static_cast<bf16*>(p.out) + output / GROUP_OUTPUTS * 8 + output % 8;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (output < p.outputs && row + i < live) {
                out[static_cast<size_t>(row + i) * p.out_row] =
                    __float2bfloat16_rn(silu(c[i]) * c[2 + i]);
            }
        }
    }
};
