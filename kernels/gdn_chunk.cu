// Gated DeltaNet over prompts: T and P of every chunk, then the chunks of every sequence in order.
#include "gdn_chunk_scan.cuh"
#include "gdn_chunk_transform.cuh"

// As the launches have them (crates/ops/src/cuda/gdn_chunk.rs).
static_assert(sizeof(TransformShared) == 55072, "shared memory of a block of the transform");
static_assert(sizeof(ScanShared) == 79872, "shared memory of a block of the scan");

// Takes the pending rows into the stored state: the operations of gdn_scan.cuh in the same order, so
// a replay has the same bits wherever it happens. Eight lanes share a column, 16 rows of k each: four
// from 4 share on in each 32; a lane has parts of four columns.
__device__ __noinline__ void replay(const GdnChunkParams& p, const Item& item, uint32_t rows) {
    constexpr int SHARE = 8, LANE_COLUMNS = 4, PIECES = KEY_DIM / 4 / SHARE;
    const uint32_t share = threadIdx.x % SHARE, heads = p.sizes.value_heads;
    const uint32_t column = item.slice * COLUMNS + threadIdx.x / SHARE * LANE_COLUMNS;
    const uint32_t key = key_width(p.sizes), stride = key + value_width(p.sizes);
    const size_t head = (size_t)item.sequence.slot * heads + item.head;
    float* state = p.state + (head * VALUE_DIM + column) * KEY_DIM + 4 * share;
    for (uint32_t n = 0; n < rows; n++) {
        const size_t row = (size_t)item.sequence.slot * DEPTH_MAX + n;
        const bf16* kv = p.pending_kv + row * stride;
        const bf16* k = kv + item.key_head * KEY_DIM + 4 * share;
        const float2 gate =
            reinterpret_cast<const float2*>(p.pending_gate)[row * heads + item.head];
        const float factor = p.pending_scale[row * p.sizes.key_heads + item.key_head];
        const float decay = expf(gate.x), strength = __fmul_rn(factor, gate.y);
        const float error = __fmul_rn(__fmul_rn(strength, factor), decay);
#pragma unroll 1
        for (int c = 0; c < LANE_COLUMNS; c++) {
            float* s = state + c * KEY_DIM;
            float sum = 0;
#pragma unroll
            for (int x = 0; x < 4 * PIECES; x++) {
                const int at = x / 4 * 4 * SHARE + x % 4;
                const float product = __bfloat162float(k[at]);
                sum = x == 0 ? __fmul_rn(s[at], product) : __fmaf_rn(s[at], product, sum);
            }
#pragma unroll
            for (int lane = SHARE / 2; lane > 0; lane /= 2) {
                sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, lane));
            }
            const float v = __bfloat162float(kv[key + item.head * VALUE_DIM + column + c]);
            const float write = __fmaf_rn(-error, sum, __fmul_rn(v, strength));
#pragma unroll
            for (int x = 0; x < 4 * PIECES; x++) {
                const int at = x / 4 * 4 * SHARE + x % 4;
                s[at] = __fmaf_rn(__bfloat162float(k[at]), write, __fmul_rn(s[at], decay));
            }
        }
    }
}

// The history of this item's share of the channels becomes the last three rows of
// [history; mixed].
__device__ __forceinline__ void roll_history(const GdnChunkParams& p, const Item& item) {
    const uint32_t all = channels(p.sizes), items = p.sizes.value_heads * SLICES;
    bf16* history = p.conv + (size_t)item.sequence.slot * HISTORY * all;
    const bf16* mixed = p.mixed + (size_t)item.sequence.start * p.sizes.mixed_stride;
    const uint32_t part = item.head * SLICES + item.slice;
    for (uint32_t x = part * THREADS + threadIdx.x; x < all / 8; x += items * THREADS) {
        uint4 last[HISTORY];
#pragma unroll
        for (uint32_t t = 0; t < HISTORY; t++) {
            const uint32_t entry = item.sequence.rows + t;
            const bf16* from = entry < HISTORY
                                   ? history + (size_t)entry * all
                                   : mixed + (size_t)(entry - HISTORY) * p.sizes.mixed_stride;
            last[t] = *reinterpret_cast<const uint4*>(from + x * 8);
        }
#pragma unroll
        for (uint32_t t = 0; t < HISTORY; t++) {
            *reinterpret_cast<uint4*>(history + (size_t)t * all + x * 8) = last[t];
        }
    }
}

// Grid: key heads, each as often as it has HEADS value heads or a part of them; chunks.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    gdn_chunk_transform(const __grid_constant__ GdnChunkParams p) {
    extern __shared__ __align__(256) unsigned char memory[];
    pdl_wait();
    transform(*reinterpret_cast<TransformShared*>(memory), p, blockIdx.x, blockIdx.y);
    // Not earlier: blocks of the scan that start beside running ones would share multiprocessors
    // that way to the end, with others idle.
    pdl_launch();
}

// Grid: slices of columns, value heads, sequences.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    gdn_chunk_scan(const __grid_constant__ GdnChunkParams p) {
    extern __shared__ __align__(256) unsigned char memory[];
    pdl_launch();
    pdl_wait();
    if (blockIdx.z >= p.batch.live[1]) return;
    const uint32_t group = p.sizes.value_heads / p.sizes.key_heads;
    const Item item = {sequence_of(p, blockIdx.z), blockIdx.y, blockIdx.y / group, blockIdx.x};
    if (item.sequence.rows == 0) return;
    const uint32_t pending = min(p.pending[item.sequence.slot], DEPTH_MAX);
    if (pending > 0) {
        replay(p, item, pending);
        __syncthreads();
    }
    scan_item(*reinterpret_cast<ScanShared*>(memory), p, item);
    roll_history(p, item);
}
