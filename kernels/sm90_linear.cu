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

// Fills the ring: weights as far ahead as it reaches before the wait for the previous kernel.
template <class T>
__device__ void produce(const WideParams& p, const WideRing<T>& ring, const WideShare& share,
                        int row_tile, uint32_t rank) {
    // Weights are read once a step; x again by every cluster.
#ifdef HARNESS
    const uint64_t once = p.weight_policy, often = p.x_policy;
#else
    const uint64_t once = evict_first(), often = evict_last();
#endif
    auto load_weight = [&](const WidePiece& at, int slot) {
        barrier_expect(ring.full(slot), T::STAGE_BYTES);
        copy_tile(ring.weight(slot), p.weight, 64 * at.begin, (2 * at.tile + rank) * T::OUTPUTS,
                  ring.full(slot), once);
    };
    auto load_x = [&](const WidePiece& at, int slot) {
        const int half = rank * (T::ROWS / 2);
        copy_tile_to_pair(ring.x(slot) + half * CHUNK_BYTES, p.x, 64 * at.begin,
                          row_tile * T::ROWS + half, ring.full(slot), often);
    };
    const int chunks = share.end - share.begin, ahead = min(chunks, T::STAGES);
    WideCursor cursor(p, share), x_cursor(p, share);
    for (int slot = 0; slot < ahead; slot++, cursor.next()) load_weight(cursor.piece, slot);
    pdl_wait();
    for (int slot = 0; slot < ahead; slot++, x_cursor.next()) load_x(x_cursor.piece, slot);
    WideSlot<T> slot;
    for (int chunk = ahead; chunk < chunks; chunk++, cursor.next(), slot.next()) {
        barrier_wait(ring.empty(slot.index), slot.parity);
        load_weight(cursor.piece, slot.index);
        load_x(cursor.piece, slot.index);
    }
}

// Queues the products of one stage.
template <class T>
__device__ __forceinline__ void multiply_chunk(uint32_t weight, uint32_t x,
                                               typename T::Sums& sums) {
    product_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
#pragma unroll
        for (int block = 0; block < T::BLOCKS; block++) {
            product<T::ROWS>(sums[block], operand(weight + block * 64 * CHUNK_BYTES + 32 * k),
                             operand(x + 32 * k));
        }
    }
    product_commit();
}

// sums += weight x^T over `chunks` stages, at least one. A stage is given back, to both blocks,
// once the next one's products are queued.
template <class T>
__device__ __forceinline__ void multiply(const WideRing<T>& ring, WideSlot<T>& slot, int chunks,
                                         const WideTarget& t, typename T::Sums& sums) {
    const int lane = t.thread % 32, offset = t.consumer * T::BLOCKS * 64 * CHUNK_BYTES;
    // Outside the loop, which shows the compiler that only products define sums while some run.
    barrier_wait(ring.full(slot.index), slot.parity);
    multiply_chunk<T>(ring.weight(slot.index) + offset, ring.x(slot.index), sums);
    uint32_t empty = ring.empty(slot.index);
    slot.next();
#pragma unroll 1
    for (int chunk = 1; chunk < chunks; chunk++) {
        barrier_wait(ring.full(slot.index), slot.parity);
        multiply_chunk<T>(ring.weight(slot.index) + offset, ring.x(slot.index), sums);
        product_wait<1>();
        if (lane < 2) barrier_arrive(empty, lane);
        empty = ring.empty(slot.index);
        slot.next();
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
    WideSlot<T> slot;
    typename T::Sums sums;
    for (int unit = share.last; unit >= share.first; unit--) {
        const WidePiece piece = share.piece(p, unit);
        t.output = (2 * piece.tile + rank) * T::OUTPUTS + t.consumer * T::BLOCKS * 64;
        if (piece.starts_unit) {
#pragma unroll
            for (int block = 0; block < T::BLOCKS; block++) {
#pragma unroll
                for (int i = 0; i < T::ROWS / 2; i++) sums[block][i] = 0.0f;
            }
        } else {
            take_over<T>(p, blockIdx.x - 2 * p.row_tiles, t, sums);
        }
        const int chunks = piece.end - piece.begin;
        if (chunks > 0) multiply<T>(ring, slot, chunks, t, sums);
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

#define WIDE_LINEAR(name, ROWS, BLOCKS, RESIDENT)                                              \
    extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(THREADS, RESIDENT) \
        name(const __grid_constant__ WideParams p) {                                          \
        wide_linear<WideTile<ROWS, BLOCKS, RESIDENT>>(p);                                     \
    }

WIDE_LINEAR(wide_linear_48x128, 48, 1, 1)
WIDE_LINEAR(wide_linear_64x128, 64, 1, 1)
WIDE_LINEAR(wide_linear_96x128, 96, 1, 1)
WIDE_LINEAR(wide_linear_128x128, 128, 1, 1)
WIDE_LINEAR(wide_linear_128x256, 128, 2, 1)
WIDE_LINEAR(wide_linear_192x128, 192, 1, 1)
WIDE_LINEAR(wide_linear_256x128, 256, 1, 1)
WIDE_LINEAR(wide_linear_48x128_2, 48, 1, 2)
WIDE_LINEAR(wide_linear_64x128_2, 64, 1, 2)
WIDE_LINEAR(wide_linear_96x128_2, 96, 1, 2)
WIDE_LINEAR(wide_linear_128x128_2, 128, 1, 2)
