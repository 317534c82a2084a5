// Parameters of a product of many rows and how its work is divided; mirror of WideParams in
// crates/ops/src/cuda/linear/wide.rs.
#pragma once
#include "hopper.cuh"

enum WideOutput : uint32_t {
    STORE_BF16,
    // One plane [rows, outputs] per slice of K.
    STORE_F32,
    // Of every 16 weight rows the first 8 are gates, the last 8 the ups of the same outputs.
    STORE_SWIGLU,
};

// out[r, o] = sum_k x[r, k] weight[o, k]. A cluster works on two neighbouring weight tiles and one
// row tile; the grid is (shares * row_tiles) clusters of two blocks.
struct WideParams {
    TensorMap weight;  // [outputs, columns], tiles of a block's weight rows by 64 columns
    TensorMap x;       // [rows, columns], tiles of half a row tile by 64 columns
#ifdef HARNESS
    uint64_t weight_policy, x_policy;
#endif
    const uint32_t* live;  // rows to store
    void* out;
    float4* carry;       // accumulators handed over: [block][value / 4][consumer thread]
    uint32_t* ready;     // [block][consumer], zero between launches
    uint64_t out_slice;  // values from a slice of out to the next
    uint32_t out_row;    // values from a row of out to the next
    uint32_t outputs;    // rows of the weight
    uint32_t tiles;      // pairs of weight tiles
    uint32_t row_tiles;
    uint32_t shares;   // clusters that divide the work of one row tile
    uint32_t split;    // 1: shares may begin and end inside a unit
    uint32_t chunks;   // of 64 columns
    uint32_t slices;   // of K, 1 or 4
    uint32_t cuts[5];  // first chunk of each slice, then the end
    WideOutput output;
};

constexpr int CHUNK_BYTES = 128;  // 64 columns of bf16
constexpr int CONSUMERS = 2;      // warpgroups that multiply
constexpr int CONSUMER_THREADS = 128 * CONSUMERS;
constexpr int THREADS = CONSUMER_THREADS + 32;  // a warp that fills the ring
constexpr int TILE_OUTPUTS = 64 * CONSUMERS;
constexpr int BARRIER_BYTES = 16;  // full and empty
constexpr int SHARED_BYTES = 227 << 10;

// ROWS rows by 128 outputs a block. x comes from the second-level cache, so its ring is shorter
// than the weight's. PENDING chunks may be multiplying when a consumer gives the one before back.
template <int ROWS_, int X_STAGES_, int PENDING_>
struct WideTile {
    static constexpr int ROWS = ROWS_;
    static constexpr int X_STAGES = X_STAGES_;
    static constexpr int PENDING = PENDING_;
    static constexpr int WEIGHT_BYTES = TILE_OUTPUTS * CHUNK_BYTES;
    static constexpr int X_BYTES = ROWS * CHUNK_BYTES;
    // Rows by 64 outputs that a consumer stages at a time.
    static constexpr int STAGED_ROWS = ROWS % 64 == 0 ? 64 : 48;
    static constexpr int STAGING_BYTES = STAGED_ROWS * 128;
    // The rings are aligned to 1,024 bytes.
    static constexpr int FIXED_BYTES = 1024 + X_STAGES * X_BYTES + CONSUMERS * STAGING_BYTES;
    static constexpr int STAGES = (SHARED_BYTES - FIXED_BYTES) / (WEIGHT_BYTES + BARRIER_BYTES);
    static_assert(STAGES >= X_STAGES && ROWS % STAGED_ROWS == 0 && X_BYTES % 1024 == 0);

    using Sums = float[ROWS / 2];
};

// Addresses in a block's shared memory: weight, x, staging, barriers.
template <class T>
struct WideRing {
    uint32_t base;

    __device__ explicit WideRing(const void* shared)
        : base((shared_address(shared) + 1023) & ~1023u) {}
    __device__ uint32_t weight(int slot) const { return base + slot * T::WEIGHT_BYTES; }
    __device__ uint32_t x(int slot) const { return weight(T::STAGES) + slot * T::X_BYTES; }
    __device__ uint32_t staging(int consumer) const {
        return x(T::X_STAGES) + consumer * T::STAGING_BYTES;
    }
    __device__ uint32_t full(int slot) const { return staging(CONSUMERS) + slot * BARRIER_BYTES; }
    __device__ uint32_t empty(int slot) const { return full(slot) + BARRIER_BYTES / 2; }
};

// A position in a ring of STAGES and the parity of its barriers' phase.
template <int STAGES>
struct WideSlot {
    int index = 0;
    uint32_t parity = 0;

    __device__ void next() {
        if (++index == STAGES) {
            index = 0;
            parity ^= 1;
        }
    }
};
