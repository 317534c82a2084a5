// Processes the logits of every row with the row's own history and chooses its token
// (crates/ops/src/sample.rs): segments of each row find the largest logit and, where top_k or top_p
// asks, candidates; then a group of blocks per row chooses.
#include "sample_pick.cuh"
#include "segment.cuh"

// Whether a raw logit of this thread is NaN or infinite.
__device__ __forceinline__ bool has_odd(const float (&z)[THREAD_VALUES], Segment segment) {
    float zero = 0.0f;
#pragma unroll
    for (int i = 0; i < THREAD_VALUES; ++i) zero = fmaf(z[i], 0.0f, zero);
    if (zero == 0.0f) return false;
    bool odd = false;
#pragma unroll
    for (int i = 0; i < THREAD_VALUES; ++i) {
        odd |= !(fabsf(z[i]) < CUDART_INF_F) && segment.first + place_of(i) < segment.end;
    }
    return odd;
}

// Complement of the lowest id of this thread whose logit is `value`, or is NaN if `value` is; 0
// without one.
__device__ __forceinline__ uint32_t lowest_id(const float (&z)[THREAD_VALUES], Segment segment,
                                              float value) {
    uint32_t found = 0;
#pragma unroll
    for (int i = THREAD_VALUES - 1; i >= 0; --i) {
        const bool same = z[i] == value || (value != value && z[i] != z[i]);
        if (same) found = ~(segment.first + place_of(i));
    }
    return found;
}

struct FindShared {
    uint32_t warp_order[SEGMENT_WARPS];
    // Complements of the lowest ids.
    uint32_t best;
    uint32_t nan;
    uint32_t odd;
};

// best is this thread's largest processed logit; odd whether it has a raw one that is not finite.
__device__ __forceinline__ void write_found(const SampleParams& p, const RowPlan& plan,
                                            uint32_t row, const float (&z)[THREAD_VALUES],
                                            Segment segment, float best, bool odd,
                                            FindShared& shared) {
    uint32_t order = order_of(best);
    order = __reduce_max_sync(~0u, order);
    if (threadIdx.x % 32 == 0) shared.warp_order[threadIdx.x / 32] = order;
    if (threadIdx.x == 0) shared.best = 0, shared.nan = 0, shared.odd = 0;
    __syncthreads();
#pragma unroll
    for (uint32_t warp = 0; warp < SEGMENT_WARPS; ++warp) {
        order = max(order, shared.warp_order[warp]);
    }
    const bool above = order > ORDER_NEGATIVE_INFINITY;
    if (above && order_of(best) == order) atomicMax(&shared.best, lowest_id(z, segment, best));
    if (odd) shared.odd = 1;
    if (odd || (plan.kind & ROW_CHANGED) != 0) {
        const uint32_t nan = lowest_id(z, segment, CUDART_NAN_F);
        if (nan > 0) atomicMax(&shared.nan, nan);
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    const uint64_t key = above ? (uint64_t)order << 32 | shared.best : 0;
    p.found[(size_t)row * p.segments + blockIdx.x] = {key, shared.nan, shared.odd};
    if (blockIdx.x == 0) p.plans[row] = plan, p.groups[row] = {};
}

// This thread's processed logits of a row with a history.
__device__ __forceinline__ void process_values(const SampleParams& p, const RowPlan& plan,
                                               uint32_t row, Segment segment,
                                               float (&z)[THREAD_VALUES], float* staged,
                                               PathShared& path) {
    stage_processed(p.batch, p.slots, p.masks, plan, row, row_logits(p, row), segment.first,
                    segment.end - segment.first, staged, path);
#pragma unroll
    for (int i = 0; i < THREAD_VALUES; ++i) {
        const uint32_t place = place_of(i);
        if (segment.first + place < segment.end) z[i] = staged[staged_at(place)];
    }
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
    float z[THREAD_VALUES];
    load_values(row_logits(p, row), p.slots.vocab_rows % 4 == 0, segment, z);
    const RowPlan plan = plan_row(p.batch, p.slots, p.masks, row);
    if (plan.kind == 0) {
        if (blockIdx.x == 0 && threadIdx.x == 0) p.plans[row] = plan;
        return;
    }
    const bool odd = has_odd(z, segment);
    if ((plan.kind & ROW_CHANGED) != 0) process_values(p, plan, row, segment, z, staged, path);
    const float best = largest_value(z);
    write_found(p, plan, row, z, segment, best, odd, find);
    if ((plan.kind & ROW_RANKED) == 0) return;
    // NaN stays and is no candidate; the order of the others stays as it is.
    const float inverse = __frcp_rn(p.slots.sampling[plan.slot].temperature);
#pragma unroll
    for (int i = 0; i < THREAD_VALUES; ++i) z[i] = __fmul_rn(z[i], inverse);
    constexpr uint32_t FLOOR = ORDER_NEGATIVE_INFINITY + 1;
    constexpr int ROUNDS = RANKED / SEGMENT_WARPS;
    static_assert(ROUNDS * SEGMENT_WARPS == RANKED, "the bound leaves as many candidates");
    const SegmentBounds bounds = segment_bounds<ROUNDS>(__fmul_rn(best, inverse), FLOOR, shared);
    segment_best(z, segment, 0, FLOOR, bounds.bound, RANKED, shared,
                 p.ranked + ((size_t)row * p.segments + blockIdx.x) * RANKED);
}

// Blocks on a multiprocessor; on sm_120 two would leave a register too few.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
#define PICK_RESIDENT 1
#else
#define PICK_RESIDENT 2
#endif

// A group of blocks (x) for each row (y).
extern "C" __global__ void __launch_bounds__(PICK_THREADS, PICK_RESIDENT) sample_pick(
    const __grid_constant__ SampleParams p) {
    __shared__ PickShared shared;
    pdl_launch();
    pdl_wait();
    const uint32_t row = blockIdx.y;
    if (row >= p.live[0]) return;
    const RowPlan plan = p.plans[row];
    const bool drawn = (plan.kind & ROW_DRAWN) != 0;
    if (plan.kind == 0 || (!drawn && (blockIdx.x > 0 || threadIdx.x >= 32))) return;
    if (threadIdx.x < 32) {
        const Found found = found_in_row(p, row);
        if (threadIdx.x == 0 && blockIdx.x == 0) {
            // Stays where no random number decides or no id has a weight.
            p.choice[row] = found.best != 0 ? id_of(found.best) : found.nan != 0 ? ~found.nan : 0;
            p.finite[row] = found.odd == 0;
        }
        if (threadIdx.x == 0) {
            shared.largest = found.best == 0 ? -CUDART_INF_F : value_of_key(found.best);
        }
    }
    if (!drawn) return;
    __syncthreads();
    const SamplingRow options = p.slots.sampling[plan.slot];
    const float inverse = __frcp_rn(options.temperature);
    const float largest = tempered(shared.largest, inverse);
    if (!(largest > -CUDART_INF_F)) return;
    const Law law = {inverse, largest, options.min_p, 0};
    const RowGroup group = {p.groups + row, gridDim.x, blockIdx.x, 0};
    draw(p, {row_logits(p, row), row, p.slots.vocab_used, plan, group}, options, law, shared);
}
