// Rows on their way from global memory to the lanes of a scan: copied as they are (raw), then k and q
// widened to f32, a chunk at a time.
#pragma once
#include <stddef.h>
#include "gdn.cuh"

constexpr int WARPS = 4;
constexpr int THREADS = 32 * WARPS;
// Lanes that share a column, and rows of k of each.
constexpr int SHARE = 8;
constexpr int LANE_ROWS = KEY_DIM / SHARE;
// Columns of v that a block takes at a time where a lane has parts of LC, and blocks' parts of a head.
template <int LC>
constexpr int COLUMNS = THREADS / SHARE * LC;
template <int LC>
constexpr int SLICES = VALUE_DIM / COLUMNS<LC>;
// Rows staged at a time.
constexpr int CHUNK = 16;

// A row as it comes from global memory: k, q, v of the block's columns, and its scalars.
template <int LC>
struct alignas(16) RawRow {
    bf16 key_query[2 * KEY_DIM];
    bf16 value[COLUMNS<LC>];
    float decay_log;
    float beta;
    float query_factor;
    float key_factor;
    float product;
};

// Decay e^g; error r_k^2 beta e^g; read r_q e^g; direct r_q (k.q).
struct alignas(16) Scalars {
    float decay;
    float error;
    float read;
    float direct;
};

// A row as the lanes read it. Strength is r_k beta.
template <int LC>
struct alignas(16) Row {
    float key[KEY_DIM];
    float query[KEY_DIM];
    Scalars scalars;
    bf16 value[COLUMNS<LC>];
    float strength;
};

// Where rows lie: the addresses of row 0 and strides in values. A pending row has no query and of
// the scales only 1 / |k|: key and 1 / |k| stand in for what makes an output, which nobody writes.
struct Source {
    const bf16* key;
    const bf16* query;
    const bf16* value;
    uint32_t stride;
    const float* gate;
    uint32_t gate_stride;
    const float* scale;
    uint32_t scale_stride;
    // From one scale of a row to the next.
    uint32_t scale_step;
};

__device__ __forceinline__ void copy4_async(uint32_t shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global));
}

__device__ __forceinline__ void copy16_async_if(uint32_t shared, const void* global,
                                                bool condition) {
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "setp.ne.u32 p, %2, 0;\n\t"
        "@p cp.async.cg.shared.global [%0], [%1], 16;\n\t"
        "}" ::"r"(shared),
        "l"(global), "r"(static_cast<uint32_t>(condition))
        : "memory");
}

// Waits until all of this thread's copies have arrived.
__device__ __forceinline__ void copy_wait_all() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// What a lane copies of every row, as addresses in row 0 and strides in bytes: 16 bytes of k or q,
// and 16 bytes of v or a scalar.
template <int LC>
struct LaneSource {
    // Lanes that copy v; the next two copy gates, three more the scales.
    static constexpr uint32_t VALUES = COLUMNS<LC> / 8, GATES = VALUES + 2, ALL = GATES + 3;
    const char* head;
    uint32_t head_stride;
    const char* rest;
    uint32_t rest_stride;

    __device__ __forceinline__ LaneSource(const Source& source) {
        const uint32_t lane = threadIdx.x % 32;
        const bf16* first = lane < 16 ? source.key : source.query - KEY_DIM;
        head = reinterpret_cast<const char*>(first + lane * 8);
        head_stride = source.stride * sizeof(bf16);
        const float* scalar = lane < GATES
                                  ? source.gate + (lane - VALUES)
                                  : source.scale + min(lane - GATES, 2) * source.scale_step;
        rest = lane < VALUES ? reinterpret_cast<const char*>(source.value + lane * 8)
                             : reinterpret_cast<const char*>(scalar);
        rest_stride = lane < VALUES  ? head_stride
                      : lane < GATES ? source.gate_stride * sizeof(float)
                                     : source.scale_stride * sizeof(float);
    }
};

// Starts to copy `rows` rows, row_of(0), row_of(1), ...: each warp every fourth.
template <int LC, class RowOf>
__device__ __forceinline__ void fetch(RawRow<LC>* raw, const Source& source, uint32_t rows,
                                      RowOf row_of) {
    using From = LaneSource<LC>;
    const From from = source;
    const uint32_t lane = threadIdx.x % 32, first = threadIdx.x / 32;
    uint32_t to = shared_address(raw + first);
#pragma unroll 1
    for (uint32_t n = first; n < rows; n += WARPS, to += WARPS * sizeof(RawRow<LC>)) {
        const size_t row = row_of(n);
        const char* rest = from.rest + row * from.rest_stride;
        const uint32_t to_rest = to + static_cast<uint32_t>(offsetof(RawRow<LC>, value));
        copy16_async(to + lane * 16, from.head + row * from.head_stride);
        if (lane < From::VALUES) copy16_async(to_rest + lane * 16, rest);
        else if (lane < From::ALL) copy4_async(to_rest + From::VALUES * 12 + lane * 4, rest);
    }
    // Without it the compiler does not see that the warp is whole again.
    copy_commit();
}

__device__ __forceinline__ void widen(float* to, const bf16* from) {
    const uint2 pairs = *reinterpret_cast<const uint2*>(from);
    *reinterpret_cast<float4*>(to) = make_float4(low_bf16(pairs.x), high_bf16(pairs.x),
                                                 low_bf16(pairs.y), high_bf16(pairs.y));
}

// Waits for the copies and turns raw rows into rows. A warp turns what it copied itself, so warps
// meet only before they overwrite the rows of the last chunk and before they read these.
template <int LC>
__device__ __forceinline__ void land(Row<LC>* rows, const RawRow<LC>* raw, uint32_t count) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    copy_wait_all();
    __syncthreads();
#pragma unroll 1
    for (uint32_t n = warp; n < count; n += WARPS) {
        widen(rows[n].key + lane * 4, raw[n].key_query + lane * 4);
        widen(rows[n].query + lane * 4, raw[n].key_query + KEY_DIM + lane * 4);
        if (lane < COLUMNS<LC> / 8) {
            reinterpret_cast<uint4*>(rows[n].value)[lane] =
                reinterpret_cast<const uint4*>(raw[n].value)[lane];
        }
    }
    const uint32_t n = warp + lane * WARPS;
    if (lane < CHUNK / WARPS && n < count) {
        const RawRow<LC>& from = raw[n];
        const float decay = expf(from.decay_log);
        const float strength = __fmul_rn(from.key_factor, from.beta);
        const float error = __fmul_rn(__fmul_rn(strength, from.key_factor), decay);
        rows[n].scalars = {decay, error, __fmul_rn(from.query_factor, decay),
                           __fmul_rn(from.query_factor, from.product)};
        rows[n].strength = strength;
    }
    __syncthreads();
}
