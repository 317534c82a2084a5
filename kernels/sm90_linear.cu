// Products of 33 to 512 rows on Hopper.
//
// The weight is the instruction's M side (64 outputs), x its N side, and every sum is one f32
// accumulator over the columns in steps of 16, ascending: the bits of linear.cu, whatever the row
// count, the tile or the grid.
//
// A block has one thread that fills a ring of stages of 64 columns with bulk tensor copies and two
// warpgroups that multiply. The two blocks of a cluster work on neighbouring weight tiles and the
// same rows; each fetches half of x for both.
//
// Floors: the weight's bytes over the memory's bandwidth up to about 128 rows, then
// 2 rows outputs columns operations over the rate of the tensor cores.
#include "wgmma.cuh"
#include "wide_carry.cuh"
#include "wide_share.cuh"

// Fills the rings: weights as far ahead as theirs reaches before the wait for the previous kernel.
// A chunk's barrier counts the bytes of its weight and of both halves of its x. The end of a chunk
// frees its place in both rings.
template <class T>
__device__ void produce(const WideParams& p, const WideRing<T>& ring, const WideShare& share,
                        int row_tile, uint32_t rank) {
    // Weights are read once a step, x again by every cluster.
#ifdef HARNESS
    const uint64_t once = p.weight_policy, often = p.x_policy;
#else
    const uint64_t once = evict_first(), often = evict_last();
#endif
    const int chunks = share.end - share.begin, half = rank * (T::ROWS / 2);
    WideCursor cursor(p, share), x_cursor(p, share);
    WideSlot<T::STAGES> slot, x_barrier;
    WideSlot<T::X_STAGES> x_slot;
    auto load_weight = [&]() {
        const uint32_t full = ring.full(slot.index);
        barrier_expect(full, T::WEIGHT_BYTES + T::X_BYTES);
        copy_tile(ring.weight(slot.index), p.weight, 64 * cursor.piece.begin,
                  (2 * cursor.piece.tile + rank) * TILE_OUTPUTS, full, once);
        cursor.next();
    };
    auto load_x = [&]() {
        copy_tile_to_pair(ring.x(x_slot.index) + half * CHUNK_BYTES, p.x, 64 * x_cursor.piece.begin,
                          row_tile * T::ROWS + half, ring.full(x_barrier.index), often);
        x_cursor.next();
        x_slot.next();
        x_barrier.next();
    };
    for (; slot.index < min(chunks, T::STAGES); slot.index++) load_weight();
    pdl_wait();
    for (int chunk = 0; chunk < min(chunks, T::X_STAGES); chunk++) load_x();
    slot.index = 0;
    for (int chunk = 0; chunk + T::X_STAGES < chunks; chunk++, slot.next()) {
        barrier_wait(ring.empty(slot.index), slot.parity);
        if (chunk + T::STAGES < chunks) load_weight();
        load_x();
    }
}

// Queues the products of one chunk.
template <class T>
__device__ __forceinline__ void multiply_chunk(uint32_t weight, uint32_t x,
                                               typename T::Sums& sums) {
    product_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        product<T::ROWS>(sums, operand(weight + 32 * k), operand(x + 32 * k));
    }
    product_commit();
}

// Where a consumer is in the rings.
template <class T>
struct WidePlace {
    WideSlot<T::STAGES> slot;
    WideSlot<T::X_STAGES> x_slot;
};

// Waits for a chunk and queues its products; returns the barrier that gives the chunk back.
template <class T>
__device__ __forceinline__ uint32_t next_chunk(const WideRing<T>& ring, WidePlace<T>& at,
                                               int consumer, typename T::Sums& sums) {
    const int slot = at.slot.index;
    barrier_wait(ring.full(slot), at.slot.parity);
    multiply_chunk<T>(ring.weight(slot) + consumer * 64 * CHUNK_BYTES, ring.x(at.x_slot.index),
                      sums);
    at.slot.next();
    at.x_slot.next();
    return ring.empty(slot);
}

// sums += weight x^T over `chunks` chunks, at least one. A chunk is given back to both blocks.
template <class T>
__device__ __forceinline__ void multiply(const WideRing<T>& ring, WidePlace<T>& at, int chunks,
                                         const WideTarget& t, typename T::Sums& sums) {
    const int lane = t.thread % 32;
    if (T::PENDING == 0) {
#pragma unroll 1
        for (int chunk = 0; chunk < chunks; chunk++) {
            const uint32_t empty = next_chunk<T>(ring, at, t.consumer, sums);
            product_wait<0>();
            if (lane < 2) barrier_arrive(empty, lane);
        }
        return;
    }
    // The first outside the loop, which shows the compiler that only products define sums while
    // some run.
    uint32_t empty = next_chunk<T>(ring, at, t.consumer, sums);
#pragma unroll 1
    for (int chunk = 1; chunk < chunks; chunk++) {
        const uint32_t next = next_chunk<T>(ring, at, t.consumer, sums);
        product_wait<1>();
        if (lane < 2) barrier_arrive(empty, lane);
        empty = next;
    }
    product_wait<0>();
    if (lane < 2) barrier_arrive(empty, lane);
}

template <class T>
__device__ void consume(const WideParams& p, const WideRing<T>& ring, const WideShare& share,
                        int row_tile, uint32_t rank) {
    pdl_wait();
    WideTarget t;
    t.consumer = threadIdx.x / 128;
    t.thread = threadIdx.x % 128;
    t.row = row_tile * T::ROWS;
    t.rows_end = *p.live;
    t.outputs_end = p.outputs;
    t.out_row = p.out_row;
    WidePlace<T> at;
    typename T::Sums sums;
    for (int unit = share.last; unit >= share.first; unit--) {
        const WidePiece piece = share.piece(p, unit);
        t.output = (2 * piece.tile + rank) * TILE_OUTPUTS + t.consumer * 64;
        if (piece.starts_unit) {
#pragma unroll
            for (int i = 0; i < T::ROWS / 2; i++) sums[i] = 0.0f;
        } else {
            take_over<T>(p, blockIdx.x - 2 * p.row_tiles, t, sums);
        }
        const int chunks = piece.end - piece.begin;
        if (chunks > 0) multiply<T>(ring, at, chunks, t, sums);
        if (piece.ends_unit) {
            store_sums<T>(p, piece.slice, t, ring.staging(t.consumer), sums);
        } else {
            hand_over<T>(p, t, sums);
        }
    }
}

template <class T>
__device__ __forceinline__ void wide_linear(const WideParams& p) {
    extern __shared__ unsigned char shared[];
    pdl_launch();
    const WideRing<T> ring(shared);
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < T::STAGES; slot++) {
            barrier_init(ring.full(slot), 1);
            // A lane of every warp of the consumers of both blocks.
            barrier_init(ring.empty(slot), 2 * CONSUMER_THREADS / 32);
        }
        barrier_init_fence();
    }
    cluster_sync();
    const int cluster = blockIdx.x / 2, row_tile = cluster % p.row_tiles;
    const WideShare share(p, cluster / p.row_tiles);
    if (threadIdx.x < CONSUMER_THREADS) {
        consume<T>(p, ring, share, row_tile, cluster_rank());
    } else if (threadIdx.x == CONSUMER_THREADS) {
        produce<T>(p, ring, share, row_tile, cluster_rank());
    } else {
        pdl_wait();
    }
    __syncwarp();
    // A block's barriers outlive the other's arrivals.
    cluster_sync();
}

#define WIDE_LINEAR(name, ROWS, X_STAGES, PENDING)                                     \
    extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(THREADS, 1) \
        name(const __grid_constant__ WideParams p) {                                   \
        wide_linear<WideTile<ROWS, X_STAGES, PENDING>>(p);                             \
    }

WIDE_LINEAR(wide_linear_48_4_0, 48, 4, 0)
WIDE_LINEAR(wide_linear_48_4_1, 48, 4, 1)
WIDE_LINEAR(wide_linear_64_4_0, 64, 4, 0)
WIDE_LINEAR(wide_linear_64_4_1, 64, 4, 1)
WIDE_LINEAR(wide_linear_96_4_0, 96, 4, 0)
WIDE_LINEAR(wide_linear_96_4_1, 96, 4, 1)
WIDE_LINEAR(wide_linear_128_4_0, 128, 4, 0)
WIDE_LINEAR(wide_linear_128_4_1, 128, 4, 1)
WIDE_LINEAR(wide_linear_128_3_1, 128, 3, 1)
WIDE_LINEAR(wide_linear_192_4_1, 192, 4, 1)
WIDE_LINEAR(wide_linear_192_3_1, 192, 3, 1)
WIDE_LINEAR(wide_linear_192_3_0, 192, 3, 0)
WIDE_LINEAR(wide_linear_256_4_1, 256, 4, 1)
WIDE_LINEAR(wide_linear_256_3_1, 256, 3, 1)
