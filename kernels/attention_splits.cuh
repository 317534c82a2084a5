// Where the context of a sequence is cut, and how blocks share the pieces.
//
// Cuts stand at fixed positions, so the bits of a row do not depend on who else is in the batch.
// They grow with the position: early pieces are short, so that a short context keeps many
// multiprocessors busy; late ones long, so that partial results stay a small share of the keys
// that are read. The same table is in crates/ops/src/cuda/splits.rs.
#pragma once
#include "device.cuh"
#include "tables.cuh"

// Number of the piece that holds a position.
__host__ __device__ __forceinline__ uint32_t split_of(uint32_t position) {
    if (position < 2048) return position / 128;
    if (position < 8192) return 16 + (position - 2048) / 256;
    if (position < 32768) return 40 + (position - 8192) / 512;
    if (position < 65536) return 88 + (position - 32768) / 1024;
    return 120 + (position - 65536) / 2048;
}

// First position of a piece.
__host__ __device__ __forceinline__ uint32_t split_begin(uint32_t split) {
    if (split < 16) return split * 128;
    if (split < 40) return 2048 + (split - 16) * 256;
    if (split < 88) return 8192 + (split - 40) * 512;
    if (split < 120) return 32768 + (split - 88) * 1024;
    return 65536 + (split - 120) * 2048;
}

// Takes units in order: the first by block number, further ones as blocks become free. Set back to
// zero by the kernel that merges, which runs when all units are done.
__device__ uint32_t units_taken;

// One sequence as the attention kernels see it.
struct Sequence {
    uint32_t slot;
    uint32_t start;   // first row in the batch
    uint32_t rows;    // 0: nothing to do
    uint32_t length;  // committed tokens

    Sequence() = default;
    __device__ __forceinline__ Sequence(const Batch& batch, const Slots& slots, uint32_t number) {
        slot = batch.sequence_slot[number];
        rows = slot == NONE ? 0 : batch.sequence_rows[number];
        start = batch.sequence_start[number];
        length = slot == NONE ? 0 : slots.length[slot];
    }
};

// Fills `first` with the number of the first unit of every sequence and, behind them, of all units.
// One warp.
template <class Units>
__device__ __forceinline__ void number_units(uint32_t* first, uint32_t sequences, const Units& units) {
    const uint32_t lane = threadIdx.x % 32;
    uint32_t before = 0;
    for (uint32_t base = 0; base < sequences; base += 32) {
        const uint32_t sequence = base + lane;
        uint32_t sum = sequence < sequences ? units(sequence) : 0;
#pragma unroll
        for (uint32_t lanes = 1; lanes < 32; lanes *= 2) {
            const uint32_t other = __shfl_up_sync(~0u, sum, lanes);
            if (lane >= lanes) sum += other;
        }
        if (sequence < sequences) first[sequence + 1] = before + sum;
        before += __shfl_sync(~0u, sum, 31);
    }
    if (lane == 0) first[0] = 0;
}

// The sequence that unit `unit` belongs to.
__device__ __forceinline__ uint32_t sequence_of(const uint32_t* first, uint32_t sequences,
                                                uint32_t unit) {
    uint32_t low = 0, high = sequences - 1;
    while (low < high) {
        const uint32_t middle = (low + high + 1) / 2;
        if (first[middle] <= unit) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}
