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
    uint32_t block_rows;
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

// The weights of a warp's channels, 16 bytes each, with 16 bytes between every 8: lanes then read
// their own 8 without meeting in a bank.
constexpr int WEIGHT_BYTES = (WARP_CHANNELS + WARP_CHANNELS / LANE_CHANNELS) * 16;

// Channel x of the 256 of a warp. Those of a key head are 128 of q, then 128 of k.
__device__ __forceinline__ uint32_t warp_channel(const GdnSizes& sizes, uint32_t task,
                                                 uint32_t x) {
    if (task < sizes.key_heads) {
        return (x < KEY_DIM ? 0 : key_width(sizes)) + task * KEY_DIM + x % KEY_DIM;
    }
    return 2 * key_width(sizes) + (task - sizes.key_heads) * WARP_CHANNELS + x;
}

// Starts to copy the weights of a warp's channels.
__device__ __forceinline__ void fetch_weights(uint32_t shared, const ConvTreeParams& p,
                                              uint32_t task, uint32_t lane) {
#pragma unroll
    for (int part = 0; part < LANE_CHANNELS; part++) {
        const uint32_t x = part * 32 + lane, channel = warp_channel(p.sizes, task, x);
        if (channel < channels(p.sizes)) {
            copy16_async(shared + (x + x / LANE_CHANNELS) * 16, p.weight + (size_t)channel * TAPS);
        }
    }
    copy_commit();
}

// A row that a block works on, and where its sequence begins.
struct ConvRow {
    uint32_t row;
    uint32_t slot;
    uint32_t start;
};

// Row `row` of `rows`; slot NONE for padding and behind the last.
__device__ __forceinline__ ConvRow find(const ConvTreeParams& p, uint32_t row, uint32_t rows) {
    const uint32_t sequence = row < rows ? p.batch.row_sequence[row] : NONE;
    if (sequence == NONE) return {row, NONE, 0};
    return {row, p.batch.sequence_slot[sequence], p.batch.sequence_start[sequence]};
}

// 8 channels of the row and of its three ancestors, oldest first.
__device__ __forceinline__ void gather(uint4 (&x)[TAPS], const ConvTreeParams& p,
                                       const ConvRow& row, uint32_t channel) {
    const uint32_t stride = p.sizes.mixed_stride, all = channels(p.sizes);
    // Newest first.
    const uint4 source = reinterpret_cast<const uint4*>(p.conv_source)[row.row];
    const uint32_t from[TAPS] = {source.w, source.z, source.y, source.x};
#pragma unroll
    for (int t = 0; t < TAPS; t++) {
        const bf16* at = from[t] < HISTORY
                             ? p.conv + ((size_t)row.slot * HISTORY + from[t]) * all
                             : p.mixed + (size_t)(row.start + from[t] - HISTORY) * stride;
        x[t] = *reinterpret_cast<const uint4*>(at + channel);
    }
}

// silu of the convolution of 8 channels, rounded to bf16. A channel's weights and its sum run from
// the oldest tap to the newest.
__device__ __forceinline__ uint4 convolve(const float4* weight, const uint4 (&x)[TAPS]) {
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
__device__ __forceinline__ void finish(const ConvTreeParams& p, const float4* weight,
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

// Grid: warps over the tasks of a row in x, `block_rows` rows each in y. Rows that follow each other
// share most of their ancestors, which the block then has close.
extern "C" __global__ void __launch_bounds__(CONV_WARPS * 32)
    conv_tree(const __grid_constant__ ConvTreeParams p) {
    __shared__ __align__(16) unsigned char memory[CONV_WARPS][WEIGHT_BYTES];
    pdl_launch();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t task = blockIdx.x * CONV_WARPS + warp;
    const uint32_t value_tasks = (value_width(p.sizes) + WARP_CHANNELS - 1) / WARP_CHANNELS;
    const uint32_t gates = p.sizes.key_heads + value_tasks, head = (task - gates) * 32 + lane;
    const bool is_gate = task >= gates && head < p.sizes.value_heads;
    const uint32_t channel = task < gates ? warp_channel(p.sizes, task, lane * LANE_CHANNELS) : NONE;
    const bool is_channel = channel < channels(p.sizes);
    if (task < gates) fetch_weights(shared_address(memory[warp]), p, task, lane);
    // Rows and sequences are listed in front of a step, or before anything behind `write_shared`
    // starts, so this needs no wait.
    const uint32_t begin = blockIdx.y * p.block_rows;
    const uint32_t rows = min(min(p.rows, p.batch.live[0]), begin + p.block_rows);
    ConvRow row[AT_ONCE];
#pragma unroll
    for (int r = 0; r < AT_ONCE; r++) row[r] = find(p, begin + r, rows);
    pdl_wait();
    copy_wait<0>();
    __syncwarp();
    const float4* mine =
        reinterpret_cast<const float4*>(memory[warp]) + lane * (LANE_CHANNELS + 1);
    for (uint32_t first = begin; first < rows; first += AT_ONCE) {
        uint4 x[AT_ONCE][TAPS];
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++) {
            if (row[r].slot != NONE && is_channel) gather(x[r], p, row[r], channel);
        }
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++) {
            const ConvRow now = row[r];
            row[r] = find(p, first + AT_ONCE + r, rows);
            if (now.slot == NONE) continue;
            finish(p, mine, x[r], now.row, task, channel, lane);
            if (is_gate) write_gate(p, now.row, head);
        }
    }
}
