// Choices made by a given law (crates/ops/src/simulate_acceptance.rs).
#include "device.cuh"
#include "philox.cuh"
#include "tables.cuh"

struct SimulateAcceptanceParams {
    Batch batch;
    Tree tree;
    Slots slots;
    // [2, DEPTH_MAX].
    const float* law;
    uint32_t* choice;
    uint32_t seed_low;
    uint32_t seed_high;
};

// One thread per row.
extern "C" __global__ void __launch_bounds__(64) simulate_acceptance(
    const __grid_constant__ SimulateAcceptanceParams p) {
    pdl_launch();
    pdl_wait();
    const uint32_t row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= p.batch.live[0] || p.batch.row_sequence[row] == NONE) return;
    const uint32_t sequence = p.batch.row_sequence[row], depth = p.batch.depth[row];
    const uint32_t start = p.batch.sequence_start[sequence];
    const uint32_t index = p.slots.emitted[p.batch.sequence_slot[sequence]] + depth;
    // A row has fewer than 64 children, so one of the ids 0 .. 63 is free.
    uint64_t used = 0;
    int32_t node = p.tree.first_child[row];
    for (uint32_t rank = 0; node >= 0; ++rank) {
        const uint32_t token = p.batch.token[start + node];
        const float rate = p.law[(rank > 0 ? DEPTH_MAX : 0) + depth];
        if (philox_uniform(p.seed_low, p.seed_high, index, rank) < rate) {
            p.choice[row] = token;
            return;
        }
        if (token < 64) used |= 1ull << token;
        node = p.tree.next_sibling[start + node];
    }
    p.choice[row] = __ffsll((long long)~used) - 1;
}
