// The scan plan of a tree, cut down to what a scan of one state per lane has to do.
//
// A row without children needs no state of its own: its output comes from the state in front of it.
// Then the state at hand is still that of its parent, so restores of that same state fall away, and
// saves that are never restored with them. With what is left, a save at some level implies needed
// saves at all levels above, so slots are used from 0 on without gaps.
#pragma once
#include "tables.cuh"

// A visit: row (8 bits), whether it has no children (bit 8), slot to restore from (bits 12-15) and
// to save to (bits 16-19), NO_SLOT = none.
constexpr uint32_t NO_SLOT = 15;
constexpr int SCAN_SLOTS_MAX = 6;

__device__ __forceinline__ uint32_t plan_word(uint32_t row, bool leaf, uint32_t restore,
                                              uint32_t save) {
    return row | (leaf ? 256u : 0u) | restore << 12 | save << 16;
}
__device__ __forceinline__ uint32_t plan_row(uint32_t word) { return word & 255; }
__device__ __forceinline__ bool plan_is_leaf(uint32_t word) { return word & 256; }
__device__ __forceinline__ uint32_t plan_restore(uint32_t word) { return word >> 12 & 15; }
__device__ __forceinline__ uint32_t plan_save(uint32_t word) { return word >> 16 & 15; }

// Bit v: `flag` of visit v. Lane l has visits l and l + 32.
__device__ __forceinline__ uint64_t visits_where(bool low, bool high) {
    return __ballot_sync(~0u, low) | static_cast<uint64_t>(__ballot_sync(~0u, high)) << 32;
}

// Whether visit v's save into a slot is read before it is overwritten. A visit restores before it
// saves.
__device__ __forceinline__ bool is_read(int v, uint64_t loads, uint64_t saves) {
    const uint64_t later = v == 63 ? 0 : ~0ull << (v + 1);
    const int load = __ffsll(static_cast<long long>(loads & later));
    const int save = __ffsll(static_cast<long long>(saves & later));
    return load != 0 && (save == 0 || load <= save);
}

// Fills plan[0 .. rows] for the segment that begins at `start`; called by one whole warp.
__device__ __forceinline__ void make_plan(uint32_t* plan, const Tree& tree, uint32_t start,
                                          uint32_t rows) {
    const uint32_t lane = threadIdx.x % 32;
    uint32_t row[2];
    int restore_of[2], save_of[2], restore[2], save[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t v = lane + 32 * half;
        row[half] = v < rows && rows > 1 ? tree.scan_order[start + v] : 0;
        restore_of[half] = v < rows && rows > 1 ? tree.scan_restore[start + v] : -1;
        save_of[half] = v < rows && rows > 1 ? tree.scan_save[start + v] : -1;
    }
    // From the order of rows to that of visits.
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int from = row[half] % 32;
        const int low = __shfl_sync(~0u, restore_of[0], from);
        const int high = __shfl_sync(~0u, restore_of[1], from);
        const int low_save = __shfl_sync(~0u, save_of[0], from);
        const int high_save = __shfl_sync(~0u, save_of[1], from);
        const bool valid = lane + 32 * half < rows;
        restore[half] = !valid ? -1 : row[half] < 32 ? low : high;
        save[half] = !valid ? -1 : row[half] < 32 ? low_save : high_save;
    }
    // Restores of the visits in front and behind, saves of the one but last in front.
    auto at = [&](const int (&of)[2], int v) {
        const int low = __shfl_sync(~0u, of[0], v & 31), high = __shfl_sync(~0u, of[1], v & 31);
        return v < 0 || v > 63 ? -1 : v < 32 ? low : high;
    };
    bool leaf[2], load[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int v = lane + 32 * half;
        const int before = at(restore, v - 1), behind = at(restore, v + 1), saved = at(save, v - 2);
        leaf[half] = v > 0 && (v + 1 == rows || behind >= 0);
        // The visit in front had no children; the state at hand is that of its parent.
        const bool at_hand = before == restore[half] || (before < 0 && saved == restore[half]);
        load[half] = restore[half] >= 0 && !at_hand;
    }
    bool needed[2] = {false, false};
#pragma unroll
    for (int slot = 0; slot < SCAN_SLOTS_MAX; slot++) {
        const uint64_t loads = visits_where(load[0] && restore[0] == slot, load[1] && restore[1] == slot);
        const uint64_t saves = visits_where(save[0] == slot, save[1] == slot);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (save[half] == slot) needed[half] = is_read(lane + 32 * half, loads, saves);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t v = lane + 32 * half;
        if (v < rows) {
            plan[v] = plan_word(row[half], leaf[half], load[half] ? restore[half] : NO_SLOT,
                                needed[half] ? save[half] : NO_SLOT);
        }
    }
}
