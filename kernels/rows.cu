// Row-wise copies and the root-mean-square norm. References: crates/ops/src/embed.rs, rows.rs,
// rms_norm.rs.
#include "device.cuh"
#include "tables.cuh"

constexpr int COPY_THREADS = 128;

struct Eight {
    float4 low, high;
};

__device__ __forceinline__ uint32_t narrow(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ float widen_low(uint32_t pair) {
    return __uint_as_float(pair << 16);
}

__device__ __forceinline__ float widen_high(uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

struct EmbedParams {
    Batch batch;
    const uint4* table;  // [table_rows, vectors] of eight bf16
    Eight* out;          // [rows, vectors]
    uint32_t table_rows;
    uint32_t vectors;  // per row
};

// One block per row (x) and COPY_THREADS vectors (y). A token outside the table gives NaN: the
// logits of the row then end its request.
extern "C" __global__ void __launch_bounds__(COPY_THREADS)
    embed(const __grid_constant__ EmbedParams p) {
    const uint32_t row = blockIdx.x, column = blockIdx.y * COPY_THREADS + threadIdx.x;
    pdl_launch();
    pdl_wait();
    const uint32_t sequence = p.batch.row_sequence[row], token = p.batch.token[row];
    if (row >= p.batch.live[0] || sequence == NONE || column >= p.vectors) return;
    Eight out;
    if (token < p.table_rows) {
        const uint4 x = p.table[(size_t)token * p.vectors + column];
        out.low = make_float4(widen_low(x.x), widen_high(x.x), widen_low(x.y), widen_high(x.y));
        out.high = make_float4(widen_low(x.z), widen_high(x.z), widen_low(x.w), widen_high(x.w));
    } else {
        out.low = out.high = make_float4(NAN, NAN, NAN, NAN);
    }
    p.out[(size_t)row * p.vectors + column] = out;
}

struct GatherRowsParams {
    const uint32_t* live;
    const uint32_t* source;  // [rows]
    const uint4* x;          // [any, vectors]
    uint4* out;              // [rows, vectors]
    uint32_t vectors;
};

// One block per row (x) and COPY_THREADS vectors (y).
extern "C" __global__ void __launch_bounds__(COPY_THREADS)
    gather_rows(const __grid_constant__ GatherRowsParams p) {
    const uint32_t row = blockIdx.x, column = blockIdx.y * COPY_THREADS + threadIdx.x;
    pdl_launch();
    pdl_wait();
    const uint32_t source = p.source[row];
    if (row >= p.live[0] || column >= p.vectors) return;
    p.out[(size_t)row * p.vectors + column] = p.x[(size_t)source * p.vectors + column];
}

struct CopyColumnsParams {
    const uint32_t* live;
    const Eight* x;  // [rows, vectors]
    uint4* out;      // [rows, out_vectors]
    uint32_t vectors;
    uint32_t offset;  // first vector written
    uint32_t out_vectors;
};

// One block per row (x) and COPY_THREADS vectors (y).
extern "C" __global__ void __launch_bounds__(COPY_THREADS)
    copy_columns(const __grid_constant__ CopyColumnsParams p) {
    const uint32_t row = blockIdx.x, column = blockIdx.y * COPY_THREADS + threadIdx.x;
    pdl_launch();
    pdl_wait();
    if (row >= p.live[0] || column >= p.vectors) return;
    const Eight x = p.x[(size_t)row * p.vectors + column];
    p.out[(size_t)row * p.out_vectors + p.offset + column] =
        make_uint4(narrow(x.low.x, x.low.y), narrow(x.low.z, x.low.w), narrow(x.high.x, x.high.y),
                   narrow(x.high.z, x.high.w));
}

constexpr int NORM_THREADS = 256;
constexpr int NORM_WARPS = NORM_THREADS / 32;
constexpr int NORM_HELD = 8;  // vectors of four that a thread holds

struct RmsNormParams {
    const uint32_t* live;
    const float4* x;       // [rows, vectors]
    const float4* weight;  // [vectors]
    uint2* out;            // [rows, vectors] of four bf16
    uint32_t vectors;      // at most NORM_THREADS * NORM_HELD
    float dim;
    float eps;
};

// Sum over the block: lanes by halves, then warps in order.
__device__ float norm_sum(float sum, float* partial) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    }
    if ((threadIdx.x & 31) == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = partial[0];
#pragma unroll
    for (int i = 1; i < NORM_WARPS; ++i) sum += partial[i];
    return sum;
}

// One block per row. Thread t adds the squares of vectors t, t + NORM_THREADS, ... in order.
extern "C" __global__ void __launch_bounds__(NORM_THREADS)
    rms_norm(const __grid_constant__ RmsNormParams p) {
    __shared__ float partial[NORM_WARPS];
    const uint32_t row = blockIdx.x;
    float4 weight[NORM_HELD], x[NORM_HELD];
    pdl_launch();
#pragma unroll
    for (int i = 0; i < NORM_HELD; ++i) {
        const uint32_t column = i * NORM_THREADS + threadIdx.x;
        if (column < p.vectors) weight[i] = p.weight[column];
    }
    pdl_wait();
    if (row >= p.live[0]) return;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < NORM_HELD; ++i) {
        const uint32_t column = i * NORM_THREADS + threadIdx.x;
        if (column < p.vectors) x[i] = p.x[(size_t)row * p.vectors + column];
    }
#pragma unroll
    for (int i = 0; i < NORM_HELD; ++i) {
        const uint32_t column = i * NORM_THREADS + threadIdx.x;
        if (column < p.vectors) {
            sum = fmaf(x[i].x, x[i].x, sum);
            sum = fmaf(x[i].y, x[i].y, sum);
            sum = fmaf(x[i].z, x[i].z, sum);
            sum = fmaf(x[i].w, x[i].w, sum);
        }
    }
    const float inverse = 1.0f / sqrtf(norm_sum(sum, partial) / p.dim + p.eps);
#pragma unroll
    for (int i = 0; i < NORM_HELD; ++i) {
        const uint32_t column = i * NORM_THREADS + threadIdx.x;
        if (column < p.vectors) {
            p.out[(size_t)row * p.vectors + column] =
                make_uint2(narrow(x[i].x * inverse * weight[i].x, x[i].y * inverse * weight[i].y),
                           narrow(x[i].z * inverse * weight[i].z, x[i].w * inverse * weight[i].w));
        }
    }
}
