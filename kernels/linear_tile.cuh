// What one block of a product works on, and the arithmetic of one stage.
//
// The weight is the A operand of the matrix instruction (16 outputs), x the B operand (8 rows), so
// rows of x are independent columns of the instruction: a row's bits do not depend on the others.
// Every sum runs over K in steps of 16 in ascending order, whatever the shape of the tile.
#pragma once
#include "device.cuh"

// 16 outputs: the height of the matrix instruction.
constexpr int GROUP_OUTPUTS = 16;

// ROWS rows of x against up to GROUPS_MAX groups of outputs, COLUMNS columns of K a stage.
// WARPS_OVER_ROWS warps side by side share the rows, the others the groups; a warp takes groups
// w, w + WARPS_OVER_GROUPS, ...
template <int ROWS_, int COLUMNS_, int WARPS_OVER_GROUPS_, int WARPS_OVER_ROWS_, int WARP_GROUPS_>
struct LinearTile {
    static constexpr int ROWS = ROWS_;
    static constexpr int COLUMNS = COLUMNS_;
    static constexpr int WARPS_OVER_GROUPS = WARPS_OVER_GROUPS_;
    static constexpr int WARP_GROUPS = WARP_GROUPS_;
    static constexpr int WARP_ROWS = ROWS / WARPS_OVER_ROWS_;
    static constexpr int WARP_ROW_TILES = WARP_ROWS / 8;
    static constexpr int GROUPS_MAX = WARPS_OVER_GROUPS * WARP_GROUPS;
    static constexpr int THREADS = 32 * WARPS_OVER_GROUPS * WARPS_OVER_ROWS_;
    static constexpr int ROW_BYTES = 2 * COLUMNS;
    static constexpr int GROUP_BYTES = GROUP_OUTPUTS * ROW_BYTES;
    static constexpr int X_BYTES = ROWS * ROW_BYTES;
    // A row is copied in pieces of 16 bytes; the block copies PASS_ROWS rows at a time.
    static constexpr int PIECES = COLUMNS / 8;
    static constexpr int PASS_ROWS = THREADS / PIECES;
    static __device__ __forceinline__ int piece() { return threadIdx.x % PIECES; }
    static __device__ __forceinline__ int piece_row() { return threadIdx.x / PIECES; }

    using Sums = float[WARP_GROUPS][WARP_ROW_TILES][4];
};

// Offset of a piece inside its row: eight rows' pieces of equal number lie in different banks, for
// the copies in and for the matrix loads out.
__device__ __forceinline__ uint32_t swizzled(int row, int piece) {
    return static_cast<uint32_t>(piece ^ (row & 7)) << 4;
}

// sum += weight x^T over the columns of one stage, for this warp's first GROUPS groups. `weight`
// and `x` are the addresses of the rows that this lane hands to the matrix loads.
template <class T, int GROUPS>
__device__ __forceinline__ void multiply_stage(typename T::Sums& sum, uint32_t weight, uint32_t x,
                                               int lane) {
#pragma unroll
    for (int piece = 0; piece < T::PIECES; piece += 4) {
        uint32_t a[GROUPS][2][4];
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            const uint32_t row = weight + group * T::WARPS_OVER_GROUPS * T::GROUP_BYTES;
            load_matrix_x4(a[group][0], row + swizzled(lane, piece + (lane >> 4)));
            load_matrix_x4(a[group][1], row + swizzled(lane, piece + 2 + (lane >> 4)));
        }
#pragma unroll
        for (int tile = 0; tile < T::WARP_ROW_TILES; tile++) {
            uint32_t b[4];
            load_matrix_x4(b, x + tile * 8 * T::ROW_BYTES + swizzled(lane, piece + (lane >> 3)));
#pragma unroll
            for (int group = 0; group < GROUPS; group++) {
                mma_bf16(sum[group][tile], a[group][0], b[0], b[1]);
            }
#pragma unroll
            for (int group = 0; group < GROUPS; group++) {
                mma_bf16(sum[group][tile], a[group][1], b[2], b[3]);
            }
        }
    }
}
