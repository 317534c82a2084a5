// Products of more than 16 rows on Hopper.
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

// Fills the ring: weights as far ahead as it reaches before the wait for the previous kernel.
template <class T>
__device__ void produce(const WideParams& p, const WideRing<T>& ring, const WideShare& share,
                        uint32_t rank) {
    // A weight that only one row tile needs is read once a step.
    const uint64_t policy = p.row_tiles == 1 ? evict_first() : evict_normal();
    auto load_weight = [&](const WidePiece& at, int slot) {
        barrier_expect(ring.full(slot), T::STAGE_BYTES);
        copy_tile(ring.weight(slot), p.weight, 64 * at.begin,
                  (T::CLUSTER * at.tile + rank) * T::OUTPUTS, ring.full(slot), policy);
    };
    auto load_x = [&](const WidePiece& at, int slot) {
        const int row = at.row_tile * T::ROWS;
        if (T::CLUSTER == 1) {
            copy_tile(ring.x(slot), p.x, 64 * at.begin, row, ring.full(slot));
        } else {
            const int part = rank * (T::ROWS / T::CLUSTER);
            copy_tile_to_cluster<T::CLUSTER>(ring.x(slot) + part * CHUNK_BYTES, p.x, 64 * at.begin,
                                             row + part, ring.full(slot));
        }
    };
    WideCursor cursor(share), x_cursor(share);
    int ahead = 0;
    for (; ahead < T::STAGES && !cursor.at_end(); ahead++, cursor.next()) {
        load_weight(cursor.piece, ahead);
    }
    pdl_wait();
    for (int slot = 0; slot < ahead; slot++, x_cursor.next()) load_x(x_cursor.piece, slot);
    WideSlot<T> slot;
    for (; !cursor.at_end(); cursor.next(), slot.next()) {
        barrier_wait(ring.empty(slot.index), slot.parity);
        load_weight(cursor.piece, slot.index);
        load_x(cursor.piece, slot.index);
    }
}

// Waits for a chunk and queues its products; returns the barrier that gives the chunk back.
template <class T>
__device__ __forceinline__ uint32_t next_chunk(const WideRing<T>& ring, WideSlot<T>& slot,
                                               int consumer, typename T::Sums& sums) {
    barrier_wait(ring.full(slot.index), slot.parity);
    const uint32_t weight = ring.weight(slot.index) + consumer * 64 * CHUNK_BYTES;
    const uint32_t x = ring.x(slot.index), empty = ring.empty(slot.index);
    product_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        product<T::ROWS>(sums, operand(weight + 32 * k), operand(x + 32 * k));
    }
    product_commit();
    slot.next();
    return empty;
}

// One lane of a warp for each block of the cluster: they fetched parts of the chunk for all.
template <class T>
__device__ __forceinline__ void give_back(uint32_t empty, int lane) {
    if (lane < T::CLUSTER) barrier_arrive(empty, lane);
}

// sums += weight x^T over `chunks` chunks, at least one.
template <class T>
__device__ __forceinline__ void multiply(const WideRing<T>& ring, WideSlot<T>& slot, int chunks,
                                         const WideTarget& t, typename T::Sums& sums) {
    const int lane = t.thread % 32;
    if (T::PENDING == 0) {
#pragma unroll 1
        for (int chunk = 0; chunk < chunks; chunk++) {
            const uint32_t empty = next_chunk<T>(ring, slot, t.consumer, sums);
            product_wait<0>();
            give_back<T>(empty, lane);
        }
        return;
    }
    // The first outside the loop, which shows the compiler that only products define sums while
    // some run.
    uint32_t empty = next_chunk<T>(ring, slot, t.consumer, sums);
#pragma unroll 1
    for (int chunk = 1; chunk < chunks; chunk++) {
        const uint32_t next = next_chunk<T>(ring, slot, t.consumer, sums);
        product_wait<1>();
        give_back<T>(empty, lane);
        empty = next;
    }
    product_wait<0>();
    give_back<T>(empty, lane);
}

template <class T>
__device__ void consume(const WideParams& p, const WideRing<T>& ring, const WideShare& share,
                        uint32_t rank) {
    pdl_wait();
    WideTarget t;
    t.consumer = threadIdx.x / 128;
    t.thread = threadIdx.x % 128;
    t.rows_end = *p.live;
    t.outputs_end = p.outputs;
    t.out_row = p.out_row;
    WideSlot<T> slot;
    typename T::Sums sums;
    for (int number = 0; number < share.pieces; number++) {
        const WidePiece piece = share.piece(number);
        t.slice = piece.slice;
        t.row = piece.row_tile * T::ROWS;
        t.output = (T::CLUSTER * piece.tile + rank) * T::OUTPUTS + t.consumer * 64;
        if (piece.starts_unit) {
#pragma unroll
            for (int i = 0; i < T::ROWS / 2; i++) sums[i] = 0.0f;
        } else {
            take_over<T>(p, blockIdx.x - T::CLUSTER * p.row_tiles, t, sums);
        }
        const int chunks = piece.end - piece.begin;
        if (chunks > 0) multiply<T>(ring, slot, chunks, t, sums);
        if (piece.ends_unit) {
            store_sums<T>(p, t, ring.staging(t.consumer), sums);
        } else {
            hand_over<T>(p, t, sums);
        }
    }
    // Shared memory stays until it has been read; the end of the kernel waits for the writes.
    if (T::BULK && t.thread == 0) copy_out_wait_read<0>();
}

template <class T>
__device__ __forceinline__ void wide_linear(const WideParams& p) {
    extern __shared__ unsigned char shared[];
    pdl_launch();
    if (dynamic_shared_bytes() < T::USED_BYTES) __trap();
    const WideRing<T> ring(shared);
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < T::STAGES; slot++) {
            barrier_init(ring.full(slot), 1);
            // A lane of every consumer warp of every block.
            barrier_init(ring.empty(slot), T::CLUSTER * T::CONSUMER_THREADS / 32);
        }
        barrier_init_fence();
    }
    cluster_sync();
    const WideShare share(p, blockIdx.x / T::CLUSTER);
    if (threadIdx.x < T::CONSUMER_THREADS) {
        consume<T>(p, ring, share, cluster_rank());
    } else if (threadIdx.x == T::CONSUMER_THREADS) {
        produce<T>(p, ring, share, cluster_rank());
    } else {
        pdl_wait();
        // Of the shares' pieces only the first can end before its unit.
        const bool teller = threadIdx.x >= T::CONSUMER_THREADS + 32;
        if (teller && !share.piece(0).ends_unit) announce<T>();
    }
    __syncwarp();
    // A block's barriers outlive the other's arrivals.
    cluster_sync();
}

#define WIDE_LINEAR(name, ROWS, CONSUMERS, CLUSTER)                       \
    extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1)            \
        __launch_bounds__(WideTile<ROWS, CONSUMERS, CLUSTER>::THREADS, 1) \
            name(const __grid_constant__ WideParams p) {                  \
        wide_linear<WideTile<ROWS, CONSUMERS, CLUSTER>>(p);               \
    }

// Clusters pay where x is a large part of what a block fetches.
WIDE_LINEAR(wide_linear_32x128, 32, 2, 1)
WIDE_LINEAR(wide_linear_48x128, 48, 2, 1)
WIDE_LINEAR(wide_linear_64x128, 64, 2, 1)
WIDE_LINEAR(wide_linear_96x128, 96, 2, 2)
WIDE_LINEAR(wide_linear_128x128, 128, 2, 2)
WIDE_LINEAR(wide_linear_192x128, 192, 2, 2)
WIDE_LINEAR(wide_linear_256x128, 256, 2, 2)
// Weights with few rows.
WIDE_LINEAR(wide_linear_32x64, 32, 1, 1)
WIDE_LINEAR(wide_linear_48x64, 48, 1, 1)
WIDE_LINEAR(wide_linear_64x64, 64, 1, 1)
WIDE_LINEAR(wide_linear_96x64, 96, 1, 1)
WIDE_LINEAR(wide_linear_128x64, 128, 1, 1)
