// Causal depthwise convolution with silu over ancestors, and the scalars that the scan needs.
//
// A warp takes q and k of one key head (128 channels each), or 256 channels of v, or the gates of
// 32 value heads, of a row at a time; 8 channels a lane.
#include "gdn.cuh"

struct ConvTreeParams {
    Batch batch;
    const uint32_t* conv_source;
    GdnSizes sizes;
    uint32_t rows;
    const bf16* conv;
    const float* weight;
    const float* a_log;
    const float* dt_bias;
    const bf16* mixed;
    bf16* qkv;
    float* gate;
    float* scale;
};

constexpr int CONV_WARPS = 4;
constexpr int TAPS = HISTORY + 1;
constexpr int LANE_CHANNELS = 8;
constexpr int WARP_CHANNELS = 32 * LANE_CHANNELS;

// One channel's weights, oldest tap first.
using Weights = float4[LANE_CHANNELS];

// First of this lane's channels. Lanes 0-15 of a warp of a key head have q, lanes 16-31 k.
__device__ __forceinline__ uint32_t lane_channel(const GdnSizes& sizes, uint32_t task,
                                                 uint32_t lane) {
    if (task < sizes.key_heads) {
        return (lane < 16 ? 0 : key_width(sizes)) + task * KEY_DIM + lane % 16 * LANE_CHANNELS;
    }
    return 2 * key_width(sizes) + (task - sizes.key_heads) * WARP_CHANNELS + lane * LANE_CHANNELS;
}

// A row that a block works on, and where its sequence begins.
struct ConvRow {
    uint32_t row;
    uint32_t slot;
    uint32_t start;
    // Newest first.
    uint4 source;
};

// False for padding.
__device__ __forceinline__ bool find(ConvRow& found, const ConvTreeParams& p, uint32_t row,
                                     uint32_t rows) {
    const uint32_t sequence = row < rows ? p.batch.row_sequence[row] : NONE;
    if (sequence == NONE) return false;
    found.row = row;
    found.slot = p.batch.sequence_slot[sequence];
    found.start = p.batch.sequence_start[sequence];
    found.source = reinterpret_cast<const uint4*>(p.conv_source)[row];
    return found.slot != NONE;
}

// 8 channels of the row and of its three ancestors, oldest first.
__device__ __forceinline__ void gather(uint4 (&x)[TAPS], const ConvTreeParams& p,
                                       const ConvRow& row, uint32_t channel) {
    const uint32_t stride = p.sizes.mixed_stride, all = channels(p.sizes);
    const uint32_t from[TAPS] = {row.source.w, row.source.z, row.source.y, row.source.x};
#pragma unroll
    for (int t = 0; t < TAPS; t++) {
        const bf16* at = from[t] < HISTORY
                             ? p.conv + ((size_t)row.slot * HISTORY + from[t]) * all
                             : p.mixed + (size_t)(row.start + from[t] - HISTORY) * stride;
        x[t] = *reinterpret_cast<const uint4*>(at + channel);
    }
}

// silu of the convolution of 8 channels, rounded to bf16. Sums run from the oldest tap to the
// newest.
__device__ __forceinline__ uint4 convolve(const Weights& weight, const uint4 (&x)[TAPS]) {
    float sum[LANE_CHANNELS] = {};
#pragma unroll
    for (int t = 0; t < TAPS; t++) {
        float values[LANE_CHANNELS];
        unpack_bf16(values, x[t]);
#pragma unroll
        for (int c = 0; c < LANE_CHANNELS; c++) {
            const float w = t == 0   ? weight[c].x
                            : t == 1 ? weight[c].y
                            : t == 2 ? weight[c].z
                                     : weight[c].w;
            sum[c] = __fmaf_rn(w, values[c], sum[c]);
        }
    }
#pragma unroll
    for (int c = 0; c < LANE_CHANNELS; c++) sum[c] = fast_silu(sum[c]);
    return pack_bf16x8(sum);
}

// r_q, r_k and q.k of a key head, from the rounded values: q in lanes 0-15, k in lanes 16-31.
__device__ __forceinline__ void write_scale(float* scale, uint4 mine, uint32_t lane) {
    const uint4 theirs = {__shfl_xor_sync(~0u, mine.x, 16), __shfl_xor_sync(~0u, mine.y, 16),
                          __shfl_xor_sync(~0u, mine.z, 16), __shfl_xor_sync(~0u, mine.w, 16)};
    float x[LANE_CHANNELS], y[LANE_CHANNELS];
    unpack_bf16(x, mine);
    unpack_bf16(y, theirs);
    float square = 0, product = 0;
#pragma unroll
    for (int c = 0; c < LANE_CHANNELS; c++) {
        square = __fmaf_rn(x[c], x[c], square);
        product = __fmaf_rn(x[c], y[c], product);
    }
#pragma unroll
    for (int other = 8; other > 0; other /= 2) {
        square += __shfl_xor_sync(~0u, square, other);
        product += __shfl_xor_sync(~0u, product, other);
    }
    const float inverse = rsqrtf(square + 1e-6f);
    if (lane == 0) {
        scale[0] = inverse * rsqrtf(static_cast<float>(KEY_DIM));
        scale[2] = product;
    }
    if (lane == 16) scale[1] = inverse;
}

// g = -exp(A_log) softplus(a + dt_bias) and beta = sigmoid(b) of a value head.
__device__ __forceinline__ void write_gate(const ConvTreeParams& p, uint32_t row, uint32_t head) {
    const bf16* ba = p.mixed + (size_t)row * p.sizes.mixed_stride + channels(p.sizes) +
                     value_width(p.sizes);
    const float b = __bfloat162float(ba[head]);
    const float x = __bfloat162float(ba[p.sizes.value_heads + head]) + p.dt_bias[head];
    const float softplus = x > 20.0f ? x : log1pf(expf(x));
    float* gate = p.gate + ((size_t)row * p.sizes.value_heads + head) * 2;
    gate[0] = -expf(p.a_log[head]) * softplus;
    gate[1] = sigmoid(b);
}

// What a warp does for a row once its inputs are there.
__device__ __forceinline__ void finish(const ConvTreeParams& p, const Weights& weight,
                                       const uint4 (&x)[TAPS], uint32_t row, uint32_t task,
                                       uint32_t channel, uint32_t lane) {
    uint4 out = {};
    if (channel < channels(p.sizes)) {
        out = convolve(weight, x);
        *reinterpret_cast<uint4*>(p.qkv + (size_t)row * channels(p.sizes) + channel) = out;
    }
    if (task < p.sizes.key_heads) {
        write_scale(p.scale + ((size_t)row * p.sizes.key_heads + task) * SCALES, out, lane);
    }
}

// Rows whose inputs are read at a time.
constexpr int AT_ONCE = 2;

// Grid: warps over the tasks of a row in x, rows in y.
extern "C" __global__ void __launch_bounds__(CONV_WARPS * 32)
    conv_tree(const __grid_constant__ ConvTreeParams p) {
    pdl_launch();
    const uint32_t lane = threadIdx.x % 32, task = blockIdx.x * CONV_WARPS + threadIdx.x / 32;
    const uint32_t value_tasks = (value_width(p.sizes) + WARP_CHANNELS - 1) / WARP_CHANNELS;
    const uint32_t gates = p.sizes.key_heads + value_tasks;
    const uint32_t channel = task < gates ? lane_channel(p.sizes, task, lane) : NONE;
    const uint32_t head = (task - gates) * 32 + lane;
    Weights weight;
    if (channel < channels(p.sizes)) {
#pragma unroll
        for (int c = 0; c < LANE_CHANNELS; c++) {
            weight[c] = reinterpret_cast<const float4*>(p.weight)[channel + c];
        }
    }
    const uint32_t rows = min(p.rows, p.batch.live[0]);
    pdl_wait();
    for (uint32_t first = blockIdx.y; first < rows; first += AT_ONCE * gridDim.y) {
        ConvRow row[AT_ONCE];
        bool is_row[AT_ONCE];
        uint4 x[AT_ONCE][TAPS];
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++) {
            is_row[r] = find(row[r], p, first + r * gridDim.y, rows);
        }
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++) {
            if (is_row[r] && channel < channels(p.sizes)) gather(x[r], p, row[r], channel);
        }
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++) {
            if (!is_row[r]) continue;
            finish(p, weight, x[r], row[r].row, task, channel, lane);
            if (task >= gates && head < p.sizes.value_heads) write_gate(p, row[r].row, head);
        }
    }
}
