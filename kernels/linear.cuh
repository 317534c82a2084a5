// A product of few rows with a weight that streams through shared memory once.
//
// Bytes: outputs * columns * 2 of weight (once per row tile, neighbours share them in L2), and x
// once per worker and tile. The floor is the weight's bytes over the bandwidth of the memory.
#pragma once
#include "linear_output.cuh"
#include "linear_ring.cuh"

// One tile's sums over the slice.
template <class T>
__device__ __forceinline__ void sum_tile(typename T::Sums& sum, const LinearParams& p, int groups,
                                         int stages, uint32_t ring, WeightStream<T>& weight,
                                         RowStream<T>& rows, RingSlot& slot) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_group = warp % T::WARPS_OVER_GROUPS;
    const int warp_row = warp / T::WARPS_OVER_GROUPS * T::WARP_ROWS;
    const uint32_t a = ring + (warp_group * GROUP_OUTPUTS + lane % 16) * T::ROW_BYTES;
    const uint32_t b =
        ring + p.division.ring_groups * T::GROUP_BYTES + (warp_row + lane % 8) * T::ROW_BYTES;
#pragma unroll 1
    for (int stage = 0; stage < stages; stage++) {
        wait_for_stage(p.division.stages - 1);
        // Everybody's copies of this stage are in, and the stage before it has been read: its slot
        // takes the next copies.
        __syncthreads();
        if (weight.stages_left > 0) {
            weight.load_next();
            rows.load_next();
        }
        copy_commit();
        if (T::WARP_GROUPS == 2 && warp_group + T::WARPS_OVER_GROUPS < groups) {
            multiply_stage<T, T::WARP_GROUPS>(sum, a + slot.offset, b + slot.offset, lane);
        } else if (warp_group < groups) {
            multiply_stage<T, 1>(sum, a + slot.offset, b + slot.offset, lane);
        }
        slot.next();
    }
}

template <class T, class Output>
__device__ __forceinline__ void store_tile(const typename T::Sums& sum, const LinearParams& p,
                                           int groups, int first_output, int live) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_group = warp % T::WARPS_OVER_GROUPS;
    const int row = blockIdx.x * T::ROWS + warp / T::WARPS_OVER_GROUPS * T::WARP_ROWS +
                    2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < T::WARP_GROUPS; i++) {
        const int group = warp_group + i * T::WARPS_OVER_GROUPS;
        if (group < groups) {
#pragma unroll
            for (int tile = 0; tile < T::WARP_ROW_TILES; tile++) {
                Output::store(p, sum[i][tile], first_output + group * GROUP_OUTPUTS + lane / 4,
                              row + 8 * tile, live);
            }
        }
    }
}

template <class T, class Output>
__device__ __forceinline__ void linear(const LinearParams& p) {
    extern __shared__ __align__(128) unsigned char shared[];
    pdl_launch();
    const uint32_t ring = shared_address(shared);
    const LinearSlice slice(p.columns, blockIdx.z, gridDim.z);
    RingSlot slot(p.division.ring_groups * T::GROUP_BYTES + T::X_BYTES, p.division.stages);
    WeightStream<T> weight(p, slice, slot, ring);
    const int ahead = min(static_cast<int>(p.division.stages) - 1, weight.stages_left);
    // Weights are constants: the ring fills with them while earlier kernels still run. One stage at
    // a time keeps the memory busy; more would stand in the way of the loads of the kernel in front.
#pragma unroll 1
    for (int stage = 0; stage + 1 < p.division.stages; stage++) {
        copy_wait<0>();
        if (stage < ahead) weight.load_next();
        copy_commit();
    }
    pdl_wait();
    RowStream<T> rows(p, slice, slot, ring);
    rows.load_first(ahead);
    const int live = min(*p.live, p.rows);
    if (blockIdx.x * T::ROWS >= live) {
        copy_wait<0>();
        return;
    }
    const int stages = (slice.end - slice.begin + T::COLUMNS - 1) / T::COLUMNS;
#pragma unroll 1
    for (int tile = blockIdx.y; tile < p.division.tiles; tile += gridDim.y) {
        typename T::Sums sum = {};
        const int groups = weight.groups(tile);
        sum_tile<T>(sum, p, groups, stages, ring, weight, rows, slot);
        store_tile<T, Output>(sum, p, groups, weight.first_output(tile), live);
    }
}
