// The scan plan of a tree, cut down to what a scan with one state at hand has to do.
//
// A row without children needs no state of its own: its output comes from the state in front of it.
// Then the state at hand is still that of its parent, so restores of that same state fall away, and
// saves that are never restored with them. With what is left, a save at some level implies needed
// saves at all levels above, so slots are used from 0 on without gaps.
#pragma once
#include "tables.cuh"

constexpr int SCAN_SLOTS_MAX = 6;

// A visit in one word.
constexpr uint32_t PLAN_LEAF = 1 << 8;  // the state does not take the row in
// Something is to be done behind the visit: state 0 is stored, or a state saved or restored.
constexpr uint32_t PLAN_PAUSE = 1 << 9;
constexpr uint32_t NO_SLOT = 15;
constexpr uint32_t PLAN_NO_SLOTS = NO_SLOT << 12 | NO_SLOT << 16;
// Row that the output belongs to.
__device__ __forceinline__ uint32_t plan_row(uint32_t word) { return word & 255; }
// Slots to save to behind the visit, and to restore from for the next one.
__device__ __forceinline__ uint32_t plan_restore(uint32_t word) { return word >> 12 & 15; }
__device__ __forceinline__ uint32_t plan_save(uint32_t word) { return word >> 16 & 15; }
// Where the row stands in the chunk.
__device__ __forceinline__ uint32_t plan_place(uint32_t word) { return word >> 20 & 15; }

// Row n of a list that is worked off in order.
__device__ __forceinline__ uint32_t list_word(uint32_t n) {
    return n | n << 20 | PLAN_NO_SLOTS;
}

// What the tables say of the two visits of a lane, `lane` and `lane + 32`; -1 where there is none.
struct LaneVisits {
    int row[2];
    int restore[2];
    int save[2];
};

// The value that the lane of visit v has.
__device__ __forceinline__ int at_visit(const int (&of)[2], int v) {
    const int low = __shfl_sync(~0u, of[0], v & 31), high = __shfl_sync(~0u, of[1], v & 31);
    return v < 0 || v > 63 ? -1 : v < 32 ? low : high;
}

__device__ __forceinline__ LaneVisits visits_of(const Tree& tree, uint32_t start, uint32_t rows) {
    const uint32_t lane = threadIdx.x % 32;
    int restore_of[2], save_of[2];
    LaneVisits visits;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t v = lane + 32 * half;
        visits.row[half] = v < rows ? static_cast<int>(tree.scan_order[start + v]) : -1;
        restore_of[half] = v < rows ? tree.scan_restore[start + v] : -1;
        save_of[half] = v < rows ? tree.scan_save[start + v] : -1;
    }
    // From the order of rows to that of visits.
#pragma unroll
    for (int half = 0; half < 2; half++) {
        visits.restore[half] = at_visit(restore_of, visits.row[half]);
        visits.save[half] = at_visit(save_of, visits.row[half]);
    }
    return visits;
}

// Bit v: `flag` of visit v.
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

// Fills plan[0 .. rows] for the segment that begins at `start`; called by one whole warp. Rows stand
// in a chunk by row where all of them fit one, else by visit. Gives the number of
// visits that come in front of the last restore from slot 0.
__device__ __forceinline__ int make_plan(uint32_t* plan, const Tree& tree, uint32_t start,
                                          uint32_t rows, uint32_t chunk) {
    const uint32_t lane = threadIdx.x % 32;
    if (rows == 1) {
        if (lane == 0) plan[0] = list_word(0) | PLAN_PAUSE;
        return 0;
    }
    const LaneVisits visits = visits_of(tree, start, rows);
    bool leaf[2], load[2], needed[2] = {false, false};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int v = lane + 32 * half, restore = visits.restore[half];
        const int before = at_visit(visits.restore, v - 1);
        const int behind = at_visit(visits.restore, v + 1), saved = at_visit(visits.save, v - 2);
        leaf[half] = v > 0 && (v + 1 == rows || behind >= 0);
        // The visit in front had no children; the state at hand is that of its parent.
        const bool at_hand = before == restore || (before < 0 && saved == restore);
        load[half] = restore >= 0 && !at_hand;
    }
    int last = 0;
#pragma unroll 1
    for (int slot = 0; slot < SCAN_SLOTS_MAX; slot++) {
        const uint64_t loads = visits_where(load[0] && visits.restore[0] == slot,
                                            load[1] && visits.restore[1] == slot);
        const uint64_t saves = visits_where(visits.save[0] == slot, visits.save[1] == slot);
        if (saves == 0) break;
        if (slot == 0 && loads != 0) last = 63 - __clzll(static_cast<long long>(loads));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (visits.save[half] == slot) needed[half] = is_read(lane + 32 * half, loads, saves);
        }
    }
    const uint64_t loads = visits_where(load[0], load[1]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t v = lane + 32 * half, row = visits.row[half];
        const int behind = at_visit(visits.restore, v + 1);
        const bool restores = v < 63 && loads >> (v + 1) & 1;
        const bool pause = restores || needed[half] || v == 0;
        const uint32_t restore = restores ? behind : NO_SLOT;
        const uint32_t save = needed[half] ? visits.save[half] : NO_SLOT;
        if (v < rows) {
            plan[v] = row | (leaf[half] ? PLAN_LEAF : 0) | (pause ? PLAN_PAUSE : 0) |
                      restore << 12 | save << 16 | (rows <= chunk ? row : v % chunk) << 20;
        }
    }
    return last;
}
