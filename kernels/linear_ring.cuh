// The ring of stages in shared memory: per stage the tile's weight rows, then the rows of x.
#pragma once
#include "linear_params.cuh"
#include "linear_tile.cuh"

// Stages of a ring at most; also in crates/ops/src/cuda/linear/plan.rs.
constexpr int RING_STAGES_MAX = 6;

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
    int column;          // of that piece
    int tile;
    int tile_rows;   // rows of the tile from this thread's first on
    int valid_rows;  // those that exist
    int stages_left;

    __device__ __forceinline__ WeightStream(const LinearParams& p, LinearSlice slice, RingSlot slot,
                                            uint32_t ring)
        : p(p), slice(slice), slot(slot) {
        target = ring + T::piece_row() * T::ROW_BYTES + swizzled(T::piece_row(), T::piece());
        tile = blockIdx.y;
        const int tiles = (p.division.tiles - tile + gridDim.y - 1) / gridDim.y;
        stages_left = tiles * ((slice.end - slice.begin + T::COLUMNS - 1) / T::COLUMNS);
        begin_tile();
    }

    __device__ __forceinline__ int groups(int tile) const {
        return p.division.tile_groups + (tile < p.division.larger_tiles);
    }

    __device__ __forceinline__ int first_output(int tile) const {
        return GROUP_OUTPUTS *
               (tile * p.division.tile_groups + min(tile, p.division.larger_tiles));
    }

    __device__ __forceinline__ void begin_tile() {
        const int first = first_output(tile) + T::piece_row();
        tile_rows = GROUP_OUTPUTS * groups(tile) - T::piece_row();
        valid_rows = static_cast<int>(p.outputs) - first;
        column = slice.begin + 8 * T::piece();
        source = reinterpret_cast<const char*>(p.weight + static_cast<size_t>(first) * p.columns +
                                               column);
    }

    // There must be a stage left.
    __device__ __forceinline__ void load_next() {
        const bool in_row = column < p.columns;
#pragma unroll
        for (int row = 0; row < GROUP_OUTPUTS * T::GROUPS_MAX; row += T::PASS_ROWS) {
            // PASS_ROWS is a multiple of 8, so the swizzle repeats from pass to pass.
            if (row < tile_rows) {
                const char* from = source + static_cast<uint64_t>(p.columns) * (2 * row);
                copy16_async_or_zero(target + slot.offset + row * T::ROW_BYTES, from,
                                     in_row && row < valid_rows);
            }
        }
        slot.next();
        stages_left--;
        source += T::ROW_BYTES;
        column += T::COLUMNS;
        if (column - 8 * T::piece() >= slice.end) {
            tile += gridDim.y;
            if (stages_left > 0) begin_tile();
        }
    }
};

__device__ __forceinline__ void store16(uint32_t shared, uint4 value) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(value.x),
                 "r"(value.y), "r"(value.z), "r"(value.w)
                 : "memory");
}

// Copies the block's rows of x, the same columns again for every tile. Rows that do not exist are
// filled with zeros; rows that are not live may hold anything, since rows do not mix.
template <class T>
struct RowStream {
    const LinearParams& p;
    const LinearSlice slice;
    RingSlot slot;
    const bf16* source;  // this thread's first row
    uint32_t target;
    int column;      // of this thread's piece at the next stage
    int valid_rows;  // rows from this thread's first on that exist

    __device__ __forceinline__ RowStream(const LinearParams& p, LinearSlice slice, RingSlot slot,
                                         uint32_t ring)
        : p(p), slice(slice), slot(slot) {
        target = ring + p.division.ring_groups * T::GROUP_BYTES + T::piece_row() * T::ROW_BYTES +
                 swizzled(T::piece_row(), T::piece());
        column = slice.begin + 8 * T::piece();
        const int first = blockIdx.x * T::ROWS + T::piece_row();
        valid_rows = static_cast<int>(p.rows) - first;
        source = p.x + static_cast<size_t>(first) * p.columns;
    }

    // A block of more threads than pieces leaves some of them idle.
    __device__ __forceinline__ bool has(int row) const {
        return T::ROWS % T::PASS_ROWS == 0 || T::piece_row() + row < T::ROWS;
    }

    // The address of this thread's piece in a row, or null where there are zeros instead.
    __device__ __forceinline__ const bf16* from(int row) const {
        return column < p.columns && row < valid_rows
                   ? source + column + static_cast<uint64_t>(p.columns) * row
                   : nullptr;
    }

    __device__ __forceinline__ void next() {
        slot.next();
        column += T::COLUMNS;
        if (column - 8 * T::piece() >= slice.end) column = slice.begin + 8 * T::piece();
    }

    // The first `stages` stages, through registers: a thread waits for its asynchronous copies in
    // the order of their issue, and here the whole ring's weights are in front.
    __device__ __forceinline__ void load_first(int stages) {
        constexpr int PASSES = (T::ROWS + T::PASS_ROWS - 1) / T::PASS_ROWS;
        uint4 piece[RING_STAGES_MAX][PASSES];
        uint32_t to[RING_STAGES_MAX];
#pragma unroll
        for (int stage = 0; stage < RING_STAGES_MAX; stage++) {
            if (stage >= stages) continue;
#pragma unroll
            for (int pass = 0; pass < PASSES; pass++) {
                const bf16* at = from(pass * T::PASS_ROWS);
                piece[stage][pass] = at == nullptr || !has(pass * T::PASS_ROWS)
                                         ? make_uint4(0, 0, 0, 0)
                                         : __ldcg(reinterpret_cast<const uint4*>(at));
            }
            to[stage] = target + slot.offset;
            next();
        }
#pragma unroll
        for (int stage = 0; stage < RING_STAGES_MAX; stage++) {
            if (stage >= stages) continue;
#pragma unroll
            for (int pass = 0; pass < PASSES; pass++) {
                const int row = pass * T::PASS_ROWS;
                if (has(row)) store16(to[stage] + row * T::ROW_BYTES, piece[stage][pass]);
            }
        }
    }

    __device__ __forceinline__ void load_next() {
#pragma unroll
        for (int row = 0; row < T::ROWS; row += T::PASS_ROWS) {
            const bf16* at = from(row);
            if (has(row)) {
                copy16_async_or_zero(target + slot.offset + row * T::ROW_BYTES,
                                     at == nullptr ? p.x : at, at != nullptr);
            }
        }
        next();
    }
};

// Waits until at most `stages - 1` of the stages asked for are under way.
__device__ __forceinline__ void wait_for_stage(uint32_t stages) {
    switch (stages) {
        case 1: copy_wait<0>(); break;
        case 2: copy_wait<1>(); break;
        case 3: copy_wait<2>(); break;
        case 4: copy_wait<3>(); break;
        default: copy_wait<4>(); break;
    }
}
