// What the tests of launches and graphs run.
#include "device.cuh"

struct ProbeParams {
    uint32_t* values;
    uint32_t len;
};

extern "C" __global__ void __launch_bounds__(256) probe_add_one(
    const __grid_constant__ ProbeParams p) {
    pdl_launch();
    pdl_wait();
    const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < p.len) p.values[index] += 1;
}
