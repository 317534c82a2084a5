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
    // Added to [rows, outputs].
    STORE_ADD,
};

// out[r, o] = sum_k x[r, k] weight[o, k]. The blocks of a cluster work on neighbouring weight tiles
// and the same rows, and each fetches its part of x for all.
struct WideParams {
    TensorMap weight;      // [outputs, columns], tiles of a block's weight rows by 64 columns
    TensorMap x;           // [rows, columns], tiles of a block's part of a row tile by 64 columns
    TensorMap target;      // out [slices, rows, outputs]; see WideTile for the size of its tiles
    const uint32_t* live;  // rows to store
    void* out;
    float4* carry;       // accumulators handed over: [block][value / 4][consumer thread]
    uint64_t out_slice;  // values from a slice of out to the next
    uint32_t out_row;    // values from a row of out to the next
    uint32_t outputs;    // rows of the weight
    uint32_t tiles;      // of weight rows, a cluster's together
    uint32_t row_tiles;
    uint32_t shares;   // clusters, of each row tile where `split`
    uint32_t split;    // whether shares may begin and end inside a unit
    uint32_t chunks;   // of 64 columns
    uint32_t slices;   // of K, 1 or 4
    uint32_t cuts[5];  // first chunk of each slice, then the end
    WideOutput output;
    uint32_t bulk;  // whether `target` is there: rows of out start and end at multiples of 16 bytes
};

constexpr int CHUNK_BYTES = 128;   // 64 columns of bf16
constexpr int BARRIER_BYTES = 16;  // full and empty
// At most; a launch asks for what the ring below takes of it.
constexpr int SHARED_BYTES = 227 << 10;

// ROWS rows by 64 outputs for each of the CONSUMERS warpgroups that multiply, in clusters of
// CLUSTER blocks.
template <int ROWS_, int CONSUMERS_, int CLUSTER_>
struct WideTile {
    static constexpr int ROWS = ROWS_;
    static constexpr int CONSUMERS = CONSUMERS_;
    static constexpr int CLUSTER = CLUSTER_;
    static constexpr int CONSUMER_THREADS = 128 * CONSUMERS;
    // Whether results leave by the copy engine and hand-overs are told by a warp of their own,
    // while the consumers go on: with few rows it is the weights that everything waits for.
    static constexpr bool BULK = ROWS >= 192;
    // And a warp that fills the ring.
    static constexpr int THREADS = CONSUMER_THREADS + (BULK ? 64 : 32);
    static constexpr int OUTPUTS = 64 * CONSUMERS;
    static constexpr int WEIGHT_BYTES = OUTPUTS * CHUNK_BYTES;
    static constexpr int STAGE_BYTES = WEIGHT_BYTES + ROWS * CHUNK_BYTES;
    // Rows by 64 f32, and by 64 bf16 (32 after the activation), that a consumer stores at a time.
    // Bulk copies take parts from two buffers in turn, f32 in tiles of 32 outputs; else bf16 is
    // staged and f32 stored from registers. Also in crates/ops/src/cuda/linear/wide_plan.rs.
    static constexpr int PART_ROWS = BULK ? (ROWS == 256 ? 32 : 16) : ROWS;
    static constexpr int STAGED_ROWS = ROWS % 64 == 0 ? 64 : ROWS % 48 == 0 ? 48 : 32;
    static constexpr int PART_ROWS_BF16 = BULK ? 2 * PART_ROWS : STAGED_ROWS;
    static constexpr int PART_BYTES = PART_ROWS_BF16 * 128;
    static constexpr int STAGING_BYTES = BULK ? 2 * PART_BYTES : PART_BYTES;
    // The ring is aligned to 1,024 bytes.
    static constexpr int RING_BYTES = SHARED_BYTES - 1024 - CONSUMERS * STAGING_BYTES;
    static constexpr int STAGES = RING_BYTES / (STAGE_BYTES + BARRIER_BYTES);
    // Chunks that may still multiply when a consumer gives the one before them back: few rows wait
    // for memory, and their chunks go back at once.
    static constexpr int PENDING = ROWS > 64 ? 1 : 0;
    // Also in crates/ops/src/cuda/linear/wide_plan.rs.
    static constexpr int USED_BYTES =
        1024 + CONSUMERS * STAGING_BYTES + STAGES * (STAGE_BYTES + BARRIER_BYTES);
    static_assert(STAGES >= 3 && ROWS % PART_ROWS_BF16 == 0 && STAGE_BYTES % 1024 == 0);

    using Sums = float[ROWS / 2];
};

// Addresses in a block's shared memory: stages (weight, then x), staging, barriers.
template <class T>
struct WideRing {
    uint32_t base;

    __device__ explicit WideRing(const void* shared)
        : base((shared_address(shared) + 1023) & ~1023u) {}
    __device__ uint32_t weight(int slot) const { return base + slot * T::STAGE_BYTES; }
    __device__ uint32_t x(int slot) const { return weight(slot) + T::WEIGHT_BYTES; }
    __device__ uint32_t staging(int consumer) const {
        return weight(T::STAGES) + consumer * T::STAGING_BYTES;
    }
    __device__ uint32_t full(int slot) const {
        return staging(T::CONSUMERS) + slot * BARRIER_BYTES;
    }
    __device__ uint32_t empty(int slot) const { return full(slot) + BARRIER_BYTES / 2; }
};

// A position in the ring and the parity of its barriers' phase.
template <class T>
struct WideSlot {
    int index = 0;
    uint32_t parity = 0;

    __device__ void next() {
        if (++index == T::STAGES) {
            index = 0;
            parity ^= 1;
        }
    }
};
