// Norm and gate behind the GDN scan: 16 lanes take a value head of a row, 8 values each.
#include "gdn.cuh"

struct GatedNormParams {
    const uint32_t* live;
    GdnSizes sizes;
    uint32_t rows;
    float eps;
    const bf16* o;
    const bf16* mixed;
    const float* weight;
    bf16* out;
};

constexpr int NORM_THREADS = 128;
constexpr int LANE_VALUES = 8;
constexpr int HEAD_LANES = VALUE_DIM / LANE_VALUES;

// Grid: heads of all rows in x.
extern "C" __global__ void __launch_bounds__(NORM_THREADS)
    gated_norm(const __grid_constant__ GatedNormParams p) {
    pdl_launch();
    const uint32_t number = (blockIdx.x * NORM_THREADS + threadIdx.x) / HEAD_LANES;
    const uint32_t row = number / p.sizes.value_heads, head = number % p.sizes.value_heads;
    const uint32_t value = threadIdx.x % HEAD_LANES * LANE_VALUES;
    float weight[LANE_VALUES];
#pragma unroll
    for (int v = 0; v < LANE_VALUES; v++) weight[v] = p.weight[value + v];
    const bool is_live = row < min(p.rows, p.live[0]);
    pdl_wait();
    const size_t at = (size_t)row * value_width(p.sizes) + head * VALUE_DIM + value;
    const size_t gate_at =
        (size_t)row * p.sizes.mixed_stride + channels(p.sizes) + head * VALUE_DIM + value;
    float o[LANE_VALUES] = {}, z[LANE_VALUES] = {};
    if (is_live) {
        unpack_bf16(o, *reinterpret_cast<const uint4*>(p.o + at));
        unpack_bf16(z, *reinterpret_cast<const uint4*>(p.mixed + gate_at));
    }
    float square = 0;
#pragma unroll
    for (int v = 0; v < LANE_VALUES; v++) square = __fmaf_rn(o[v], o[v], square);
#pragma unroll
    for (int other = HEAD_LANES / 2; other > 0; other /= 2) {
        square += __shfl_xor_sync(~0u, square, other);
    }
    const float inverse = rsqrtf(square / VALUE_DIM + p.eps);
#pragma unroll
    for (int v = 0; v < LANE_VALUES; v++) o[v] = o[v] * inverse * weight[v] * fast_silu(z[v]);
    if (is_live) *reinterpret_cast<uint4*>(p.out + at) = pack_bf16x8(o);
}
