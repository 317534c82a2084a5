// Moves the accepted path's keys and values to their positions, in all layers
// (crates/ops/src/commit.rs).
#include "device.cuh"
#include "tables.cuh"

constexpr int COMPACT_THREADS = 128;
constexpr int POOLS_MAX = 128;  // keys and values of 64 layers

struct CompactKvParams {
    Batch batch;
    Slots slots;
    Walk walk;
    uint4* pool[POOLS_MAX];  // keys of layer 0, values of layer 0, keys of layer 1, ...
    uint32_t row_vectors;    // 16-byte vectors of one cache row
};

// One block per pool (x) and sequence (y); a thread moves its columns of all rows, which it holds
// in registers: all sources are read before the first is overwritten, and no other thread
// touches these columns.
extern "C" __global__ void __launch_bounds__(COMPACT_THREADS)
    compact_kv(const __grid_constant__ CompactKvParams p) {
    __shared__ uint32_t from[EMIT_MAX], to[EMIT_MAX];  // rows of the pool
    const uint32_t sequence = blockIdx.y, lane = threadIdx.x;
    pdl_launch();
    pdl_wait();
    const uint32_t slot = p.batch.sequence_slot[sequence];
    const uint32_t rows = p.walk.path_rows[sequence];
    if (sequence >= p.batch.live[1]) return;
    bool moves = false;
    if (lane < EMIT_MAX) {
        const uint32_t row = lane < rows ? p.walk.path[(size_t)sequence * EMIT_MAX + lane] : lane;
        moves = row != lane;
        if (moves) {
            const uint32_t* pages = p.slots.block_table + (size_t)slot * p.slots.pages_max;
            const uint32_t source = p.slots.length[slot] + row;
            const uint32_t target = p.slots.length[slot] + lane;
            from[lane] = pages[source / PAGE_TOKENS] * PAGE_TOKENS + source % PAGE_TOKENS;
            to[lane] = pages[target / PAGE_TOKENS] * PAGE_TOKENS + target % PAGE_TOKENS;
        } else {
            from[lane] = NONE;
        }
    }
    if (!__syncthreads_or(moves)) return;
    uint4* pool = p.pool[blockIdx.x];
    for (uint32_t column = threadIdx.x; column < p.row_vectors; column += COMPACT_THREADS) {
        uint4 held[EMIT_MAX];
#pragma unroll
        for (int j = 1; j < EMIT_MAX; ++j) {
            if (from[j] != NONE) held[j] = pool[(size_t)from[j] * p.row_vectors + column];
        }
#pragma unroll
        for (int j = 1; j < EMIT_MAX; ++j) {
            if (from[j] != NONE) pool[(size_t)to[j] * p.row_vectors + column] = held[j];
        }
    }
}
