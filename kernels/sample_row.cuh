// A row whose token is drawn: its law, its blocks, and visits to its logits.
#pragma once
#include "block_scan.cuh"
#include "sample_history.cuh"
#include "sample_params.cuh"

constexpr uint32_t PICK_THREADS = 512;
// Ids that are staged beside lists, and alone.
constexpr uint32_t STAGED_IDS = 2048;
constexpr uint32_t CHUNK_IDS = 8192;

struct Law {
    float inverse_temperature;
    // The largest tempered logit.
    float largest;
    float min_p;
    // Keys of tempered logits below this are dropped.
    uint64_t lowest_key;
};

struct DrawnRow {
    const float* logits;
    uint32_t row;
    uint32_t vocab;
    RowPlan plan;
    RowGroup group;
};

// Counts and masses; a mass in two words, since shared memory adds words only.
struct Bins {
    uint32_t count[BINS];
    uint32_t low[BINS];
    uint32_t high[BINS];
};

struct PickShared {
    union {
        struct {
            uint64_t keys[PICK_LIST];
            Bins bins;
            float staged[staged_words(STAGED_IDS)];
        } ranked;
        float chunk[staged_words(CHUNK_IDS)];
    };
    float sums[PICK_LIST];
    ScanShared scan;
    PathShared path;
    uint64_t bound;
    uint32_t count;
    uint32_t tile;
    float largest;
    float total;
    float before;
};

// Weight of a tempered logit, unless the law drops it.
__device__ __forceinline__ float kept_weight(const Law& law, float x, uint64_t key) {
    const float weight = weight_of(x, law.largest);
    return weight < law.min_p || key < law.lowest_key ? 0.0f : weight;
}

__device__ __forceinline__ Tally tally_of(const Law& law, uint64_t key) {
    return {1, mass_of(weight_of(value_of_key(key), law.largest))};
}

__device__ __forceinline__ void stage_row(const SampleParams& p, const DrawnRow& drawn,
                                          uint32_t first, uint32_t count, float* staged,
                                          PickShared& shared) {
    stage_processed(p.batch, p.slots, p.masks, drawn.plan, drawn.row, drawn.logits, first, count,
                    staged, shared.path);
}

// Calls visit(id, x) for the tempered logits above -inf of this block's share of the row.
template <class Visit>
__device__ __forceinline__ void visit_share(const SampleParams& p, const DrawnRow& drawn,
                                            const Law& law, PickShared& shared, Visit visit) {
    const auto visit_logit = [&](uint32_t id, float z) {
        const float x = tempered(z, law.inverse_temperature);
        if (x > -CUDART_INF_F) visit(id, x);
    };
    if ((drawn.plan.kind & ROW_CHANGED) == 0) {
        constexpr uint32_t AHEAD = 8;
        const uint32_t stride = PICK_THREADS * AHEAD;
        for (uint32_t block = drawn.group.rank * stride; block < drawn.vocab;
             block += drawn.group.size * stride) {
            float z[AHEAD];
#pragma unroll
            for (uint32_t j = 0; j < AHEAD; ++j) {
                const uint32_t id = block + j * PICK_THREADS + threadIdx.x;
                z[j] = id < drawn.vocab ? drawn.logits[id] : -CUDART_INF_F;
            }
#pragma unroll
            for (uint32_t j = 0; j < AHEAD; ++j) {
                visit_logit(block + j * PICK_THREADS + threadIdx.x, z[j]);
            }
        }
        return;
    }
    float* staged = shared.ranked.staged;
    for (uint32_t first = drawn.group.rank * STAGED_IDS; first < drawn.vocab;
         first += drawn.group.size * STAGED_IDS) {
        const uint32_t count = min(STAGED_IDS, drawn.vocab - first);
        stage_row(p, drawn, first, count, staged, shared);
        for (uint32_t place = threadIdx.x; place < count; place += blockDim.x) {
            visit_logit(first + place, staged[staged_at(place)]);
        }
        __syncthreads();
    }
}

// The mass of the whole row, by all blocks of the group.
__device__ __forceinline__ uint64_t row_mass(const SampleParams& p, DrawnRow& drawn,
                                             const Law& law, PickShared& shared) {
    Tally own = {0, 0}, total;
    visit_share(p, drawn, law, shared, [&](uint32_t, float x) {
        own.mass += mass_of(weight_of(x, law.largest));
    });
    block_exclusive_sum(own, total, shared.scan);
    uint64_t* mass = &drawn.group.state->mass;
    if (threadIdx.x == 0) atomic_add(mass, total.mass);
    group_barrier(drawn.group);
    return load_fresh(mass);
}

// Tile sums of the row under the law, by all blocks of the group.
__device__ __forceinline__ void sum_tiles(const SampleParams& p, DrawnRow& drawn, const Law& law,
                                          PickShared& shared) {
    float* staged = shared.chunk;
    float* tile_sums = p.tile_sums + (size_t)drawn.row * p.tiles;
    __syncthreads();
    for (uint32_t first = drawn.group.rank * CHUNK_IDS; first < drawn.vocab;
         first += drawn.group.size * CHUNK_IDS) {
        const uint32_t count = min(CHUNK_IDS, drawn.vocab - first);
        stage_row(p, drawn, first, count, staged, shared);
#pragma unroll 4
        for (uint32_t place = threadIdx.x; place < count; place += blockDim.x) {
            float& z = staged[staged_at(place)];
            const float x = tempered(z, law.inverse_temperature);
            z = kept_weight(law, x, make_key(order_of(x), first + place));
        }
        __syncthreads();
        for (uint32_t tile = threadIdx.x; tile * TILE_IDS < count; tile += blockDim.x) {
            const uint32_t end = min(count, (tile + 1) * TILE_IDS);
            float sum = 0.0f;
            for (uint32_t place = tile * TILE_IDS; place < end; ++place) {
                sum = __fadd_rn(sum, staged[staged_at(place)]);
            }
            tile_sums[first / TILE_IDS + tile] = sum;
        }
        __syncthreads();
    }
    group_barrier(drawn.group);
}
