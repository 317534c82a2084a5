// The ring of stages in shared memory: per stage the tile's weight rows, then the rows of x.
#pragma once
#include "linear_params.cuh"
#include "linear_tile.cuh"

// Byte offset of a stage, walking round the ring.
struct RingSlot {
    uint32_t offset = 0;
    uint32_t stage_bytes;
    uint32_t end;

    __device__ __forceinline__ RingSlot(uint32_t stage_bytes, uint32_t stages)
        : stage_bytes(stage_bytes), end(stage_bytes * stages) {}

    __device__ __forceinline__ void next() {
        offset += stage_bytes;
        if (offset == end) offset = 0;
    }
};

// Copies the weights of a worker's tiles into the ring, stage by stage. A tile's rows past the last
// output and columns past K are filled with zeros and not read.
template <class T>
struct WeightStream {
    const LinearParams& p;
    const LinearSlice slice;
    RingSlot slot;
    const char* source;  // this thread's piece of its first row, at the next stage's columns
    uint32_t target;     // where that piece goes in slot 0
    int piece_column;
    int column;      // of the next stage
    int tile;
    int tile_rows;   // rows of the tile from this thread's first on
    int valid_rows;  // those that exist
    int stages_left;

    __device__ __forceinline__ WeightStream(const LinearParams& p, LinearSlice slice, RingSlot slot,
                                            uint32_t ring)
        : p(p), slice(slice), slot(slot) {
        const int row = threadIdx.x / T::PIECES, piece = threadIdx.x % T::PIECES;
        piece_column = 8 * piece;
        target = ring + row * T::ROW_BYTES + swizzled(row, piece);
        tile = blockIdx.y;
        const int tiles = (p.division.tiles - tile + gridDim.y - 1) / gridDim.y;
        stages_left = tiles * ((slice.end - slice.begin + T::COLUMNS - 1) / T::COLUMNS);
        begin_tile();
    }

    __device__ __forceinline__ int groups(int tile) const {
        return p.division.tile_groups + (tile < p.division.larger_tiles);
    }

    __device__ __forceinline__ int first_output(int tile) const {
        return GROUP_OUTPUTS * (tile * p.division.tile_groups + min(tile, p.division.larger_tiles));
    }

    __device__ __forceinline__ void begin_tile() {
        const int row = threadIdx.x / T::PIECES, first = first_output(tile);
        tile_rows = GROUP_OUTPUTS * groups(tile) - row;
        valid_rows = static_cast<int>(p.outputs) - first - row;
        column = slice.begin;
        source = reinterpret_cast<const char*>(
            p.weight + static_cast<size_t>(first + row) * p.columns + column + piece_column);
    }

    // There must be a stage left.
    __device__ __forceinline__ void load_next() {
        const size_t pass_bytes = static_cast<size_t>(2 * T::PASS_ROWS) * p.columns;
        const bool in_row = column + piece_column < p.columns;
        const char* from = source;
#pragma unroll
        for (int row = 0; row < GROUP_OUTPUTS * T::GROUPS_MAX; row += T::PASS_ROWS) {
            // PASS_ROWS is a multiple of 8, so the swizzle repeats from pass to pass.
            if (row < tile_rows) {
                copy16_async_or_zero(target + slot.offset + row * T::ROW_BYTES, from,
                                     in_row && row < valid_rows);
            }
            from += pass_bytes;
        }
        slot.next();
        stages_left--;
        source += T::ROW_BYTES;
        column += T::COLUMNS;
        if (column >= slice.end) {
            tile += gridDim.y;
            if (stages_left > 0) begin_tile();
        }
    }
};

// Copies the block's rows of x, the same columns again for every tile. Rows that are not live are
// filled with zeros.
template <class T>
struct RowStream {
    const LinearParams& p;
    const LinearSlice slice;
    RingSlot slot;
    const char* source;  // this thread's piece of its first row, column 0
    uint32_t target;
    int piece_column;
    int column;
    int valid_rows;  // live rows from this thread's first on

    __device__ __forceinline__ RowStream(const LinearParams& p, LinearSlice slice, RingSlot slot,
                                         uint32_t ring, int live)
        : p(p), slice(slice), slot(slot) {
        const int row = threadIdx.x / T::PIECES, piece = threadIdx.x % T::PIECES;
        piece_column = 8 * piece;
        target = ring + p.division.ring_groups * T::GROUP_BYTES + row * T::ROW_BYTES +
                 swizzled(row, piece);
        column = slice.begin;
        const int first = blockIdx.x * T::ROWS + row;
        valid_rows = live - first;
        source = reinterpret_cast<const char*>(p.x + static_cast<size_t>(first) * p.columns +
                                               piece_column);
    }

    __device__ __forceinline__ void load_next() {
        const bool in_row = column + piece_column < p.columns;
        const char* from = source + 2 * column;
#pragma unroll
        for (int row = 0; row < T::ROWS; row += T::PASS_ROWS) {
            // A block of more threads than pieces leaves some of them idle.
            if (T::ROWS % T::PASS_ROWS == 0 || threadIdx.x / T::PIECES + row < T::ROWS) {
                copy16_async_or_zero(target + slot.offset + row * T::ROW_BYTES, from,
                                     in_row && row < valid_rows);
            }
            from += static_cast<size_t>(2 * T::PASS_ROWS) * p.columns;
        }
        slot.next();
        column += T::COLUMNS;
        if (column >= slice.end) column = slice.begin;
    }
};

// Waits until the oldest of the `stages - 1` stages under way has arrived.
__device__ __forceinline__ void wait_for_stage(uint32_t stages) {
    switch (stages) {
        case 2: copy_wait<0>(); break;
        case 3: copy_wait<1>(); break;
        case 4: copy_wait<2>(); break;
        case 5: copy_wait<3>(); break;
        default: copy_wait<4>(); break;
    }
}
