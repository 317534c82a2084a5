// Processes the logits of every row with the row's own history and chooses its token
// (crates/ops/src/sample.rs): one pass by segments that finds the largest logit and, where top_k
// or top_p asks, candidates; one by chunks that weighs rows of which top_k leaves all; the choice.
#include "sample_history.cuh"
#include "sample_params.cuh"
#include "sample_pick.cuh"
#include "segment.cuh"

// Whether a raw logit of this thread is NaN or infinite.
__device__ __forceinline__ bool has_odd(const float (&z)[THREAD_VALUES], Segment segment) {
    bool odd = false;
#pragma unroll
    for (int i = 0; i < THREAD_VALUES; ++i) {
        odd |= !(fabsf(z[i]) < CUDART_INF_F) && segment.first + place_of(i) < segment.end;
    }
    return odd;
}

// Complement of the lowest id of this thread whose logit is NaN, 0 without one.
__device__ __forceinline__ uint32_t lowest_nan(const float (&z)[THREAD_VALUES], Segment segment) {
    uint32_t nan = 0;
#pragma unroll
    for (int i = THREAD_VALUES - 1; i >= 0; --i) {
        if (z[i] != z[i]) nan = ~(segment.first + place_of(i));
    }
    return nan;
}

// Key of the largest logit of this thread; 0 if none is above -inf.
__device__ __forceinline__ uint64_t largest_key(const float (&z)[THREAD_VALUES], Segment segment) {
    float best = -CUDART_INF_F;
    int at = -1;
#pragma unroll
    for (int i = 0; i < THREAD_VALUES; ++i) {
        if (z[i] > best) best = z[i], at = i;
    }
    return at < 0 ? 0 : make_key(order_of(best), segment.first + place_of(at));
}

struct FindShared {
    Found warp[SEGMENT_WARPS];
};

__device__ __forceinline__ void write_found(const SampleParams& p, const RowPlan& plan,
                                            uint32_t row, const float (&z)[THREAD_VALUES],
                                            Segment segment, bool odd, FindShared& shared) {
    uint64_t best = warp_largest(largest_key(z, segment));
    uint32_t nan = 0;
    if (odd || (plan.kind & ROW_CHANGED) != 0) nan = lowest_nan(z, segment);
    nan = __reduce_max_sync(~0u, nan);
    const bool any_odd = __any_sync(~0u, odd);
    if (threadIdx.x % 32 == 0) shared.warp[threadIdx.x / 32] = {best, nan, any_odd};
    __syncthreads();
    if (threadIdx.x > 0) return;
    Found all = shared.warp[0];
    for (uint32_t warp = 1; warp < SEGMENT_WARPS; ++warp) {
        all.best = max(all.best, shared.warp[warp].best);
        all.nan = max(all.nan, shared.warp[warp].nan);
        all.odd |= shared.warp[warp].odd;
    }
    p.found[(size_t)row * p.segments + blockIdx.x] = all;
    if (blockIdx.x == 0) p.plans[row] = plan;
}

// One block for each segment (x) of a row (y).
extern "C" __global__ void __launch_bounds__(SEGMENT_THREADS, 2) sample_segments(
    const __grid_constant__ SampleParams p) {
    __shared__ float staged[staged_words(SEGMENT_IDS)];
    __shared__ SegmentShared shared;
    __shared__ FindShared find;
    __shared__ PathShared path;
    pdl_launch();
    pdl_wait();
    const uint32_t row = blockIdx.y;
    if (row >= p.live[0]) return;
    const Segment segment = segment_of(blockIdx.x, p.slots.vocab_used);
    const float* logits = row_logits(p, row);
    float z[THREAD_VALUES];
    load_values(logits, p.slots.vocab_rows % 4 == 0, segment, z);
    const RowPlan plan = plan_row(p.batch, p.slots, row);
    if (plan.kind == 0) {
        if (blockIdx.x == 0 && threadIdx.x == 0) p.plans[row] = plan;
        return;
    }
    const bool odd = has_odd(z, segment);
    if ((plan.kind & ROW_CHANGED) != 0) {
        stage_processed(p.batch, p.slots, plan, row, logits, segment.first,
                        segment.end - segment.first, staged, path);
#pragma unroll
        for (int i = 0; i < THREAD_VALUES; ++i) {
            const uint32_t place = place_of(i);
            if (segment.first + place < segment.end) z[i] = staged[staged_at(place)];
        }
    }
    write_found(p, plan, row, z, segment, odd, find);
    if ((plan.kind & ROW_RANKED) == 0) return;
    const float temperature = p.slots.sampling[plan.slot].temperature;
#pragma unroll
    for (int i = 0; i < THREAD_VALUES; ++i) z[i] = tempered(z[i], temperature);
    constexpr uint32_t FLOOR = ORDER_NEGATIVE_INFINITY + 1;
    constexpr int ROUNDS = RANKED / SEGMENT_WARPS;
    static_assert(ROUNDS * SEGMENT_WARPS == RANKED, "the bound leaves as many candidates");
    const SegmentBounds bounds = segment_bounds<ROUNDS>(z, FLOOR, shared);
    segment_best(z, segment, 0, FLOOR, bounds.bound, RANKED, shared,
                 p.ranked + ((size_t)row * p.segments + blockIdx.x) * RANKED);
}

// Ids of a block of sample_tiles.
constexpr uint32_t CHUNK_IDS = 8192;

// The chunk's mass, by every thread of the block.
__device__ __forceinline__ void write_mass(const SampleParams& p, uint32_t row, float largest,
                                           float temperature, uint32_t count, const float* staged,
                                           uint64_t* warp_mass) {
    uint64_t mass = 0;
    for (uint32_t place = threadIdx.x; place < count; place += blockDim.x) {
        mass += mass_of(weight_of(tempered(staged[staged_at(place)], temperature), largest));
    }
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) {
        mass += __shfl_xor_sync(~0u, (unsigned long long)mass, lane);
    }
    if (threadIdx.x % 32 == 0) warp_mass[threadIdx.x / 32] = mass;
    __syncthreads();
    if (threadIdx.x > 0) return;
    mass = 0;
    for (uint32_t warp = 0; warp < blockDim.x / 32; ++warp) mass += warp_mass[warp];
    p.masses[(size_t)row * p.chunks + blockIdx.x] = mass;
}

// One block for each chunk (x) of a row (y): the mass of the chunk under top_p, else tile sums.
extern "C" __global__ void __launch_bounds__(256) sample_tiles(
    const __grid_constant__ SampleParams p) {
    __shared__ float staged[staged_words(CHUNK_IDS)];
    __shared__ uint64_t warp_mass[8];
    __shared__ PathShared path;
    pdl_launch();
    pdl_wait();
    const uint32_t row = blockIdx.y;
    if (row >= p.live[0]) return;
    const RowPlan plan = p.plans[row];
    if ((plan.kind & ROW_OPEN) == 0) return;
    const SamplingRow options = p.slots.sampling[plan.slot];
    const float largest =
        tempered(value_of_key(found_in_row(p, row).best), options.temperature);
    if (!(largest > -CUDART_INF_F)) return;
    const uint32_t first = blockIdx.x * CHUNK_IDS;
    const uint32_t count = min(CHUNK_IDS, p.slots.vocab_used - first);
    stage_processed(p.batch, p.slots, plan, row, row_logits(p, row), first, count, staged, path);
    if ((plan.kind & ROW_RANKED) != 0) {
        write_mass(p, row, largest, options.temperature, count, staged, warp_mass);
        return;
    }
    const Law law = {options.temperature, largest, options.min_p, 0};
    sum_tiles(law, first, count, staged, p.tile_sums + (size_t)row * p.tiles);
}

// One block per row.
extern "C" __global__ void __launch_bounds__(PICK_THREADS) sample_pick(
    const __grid_constant__ SampleParams p) {
    __shared__ PickShared shared;
    pdl_launch();
    pdl_wait();
    const uint32_t row = blockIdx.x;
    if (row >= p.live[0]) return;
    const RowPlan plan = p.plans[row];
    const bool drawn = (plan.kind & ROW_DRAWN) != 0;
    if (plan.kind == 0 || (!drawn && threadIdx.x >= 32)) return;
    if (threadIdx.x < 32) {
        const Found found = found_in_row(p, row);
        if (threadIdx.x == 0) {
            // Stays where no random number decides or no id has a weight.
            p.choice[row] = found.best != 0 ? id_of(found.best) : found.nan != 0 ? ~found.nan : 0;
            p.finite[row] = found.odd == 0;
            shared.largest = found.best == 0 ? -CUDART_INF_F : value_of_key(found.best);
        }
    }
    if (!drawn) return;
    __syncthreads();
    const SamplingRow options = p.slots.sampling[plan.slot];
    const float largest = tempered(shared.largest, options.temperature);
    if (!(largest > -CUDART_INF_F)) return;
    const Law law = {options.temperature, largest, options.min_p, 0};
    draw(p, row, plan, options, law, shared);
}
