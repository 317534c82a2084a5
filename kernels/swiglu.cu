// Activation of gates and ups that a library multiplied: out[r, j] = silu(gate_j) up_j. Of every 16
// values of a row the first 8 are gates, the last 8 the ups of the same outputs. A thread makes
// eight values; reads 64 bytes and writes 16.
#include "device.cuh"

struct SwigluParams {
    const float* gate_up;  // [rows, 16 vectors]
    bf16* out;             // [rows, out_row]
    uint32_t rows;
    uint32_t vectors;  // of eight outputs
    uint64_t out_row;
};

extern "C" __global__ void __launch_bounds__(256) swiglu(const __grid_constant__ SwigluParams p) {
    pdl_launch();
    pdl_wait();
    const uint32_t index = blockIdx.x * 256 + threadIdx.x;
    const uint32_t row = index / p.vectors, vector = index % p.vectors;
    if (row >= p.rows) return;
    const float4* gate =
        reinterpret_cast<const float4*>(p.gate_up) + 4 * static_cast<size_t>(index);
    const float4 g[2] = {gate[0], gate[1]}, u[2] = {gate[2], gate[3]};
    __nv_bfloat162 values[4];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        values[2 * i] = __floats2bfloat162_rn(silu(g[i].x) * u[i].x, silu(g[i].y) * u[i].y);
        values[2 * i + 1] = __floats2bfloat162_rn(silu(g[i].z) * u[i].z, silu(g[i].w) * u[i].w);
    }
    bf16* out = p.out + row * p.out_row + 8 * vector;
    *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(values);
}
