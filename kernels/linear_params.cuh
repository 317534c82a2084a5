// Parameters of a product and how its work is divided; mirrors of LinearParams in
// crates/ops/src/cuda/linear.rs and of Division in crates/ops/src/cuda/linear/plan.rs.
#pragma once
#include "device.cuh"

// Outputs form `tiles` tiles of `tile_groups` groups of 16, one more in the first `larger_tiles`;
// worker w takes tiles w, w + workers, ... None of this enters a result's bits.
struct LinearDivision {
    uint32_t tiles;
    uint32_t tile_groups;
    uint32_t larger_tiles;
    uint32_t ring_groups;  // groups that a stage of the ring has room for
    uint32_t stages;       // of the ring, 2 to 6
};

// out[r, o] = sum_k x[r, k] weight[o, k]. The grid is (row tiles, workers, slices of K).
struct LinearParams {
    const bf16* weight;    // [outputs, columns]
    const bf16* x;         // [rows, columns]
    void* out;             // [slices, rows, outputs]
    const uint32_t* live;  // live[0] rows are live
    uint64_t out_slice;    // values from a slice of out to the next
    uint32_t out_row;      // values from a row of out to the next
    uint32_t rows;
    uint32_t outputs;
    uint32_t columns;  // a multiple of 16
    LinearDivision division;
};

// A part of K that is summed by itself. Slices end at multiples of 128 columns, so that they depend
// on K and their number only; where there are more slices than such blocks, some are empty.
struct LinearSlice {
    int begin;
    int end;

    __device__ __forceinline__ LinearSlice(int columns, int slice, int slices) {
        const int blocks = (columns + 127) / 128;
        begin = min(columns, 128 * (blocks * slice / slices));
        end = min(columns, 128 * (blocks * (slice + 1) / slices));
    }
};
