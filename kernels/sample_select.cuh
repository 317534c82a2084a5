// Which ids top_k and top_p keep: all whose key is at least a lowest key
// (crates/ops/src/sample/law.rs), by one block. Candidates of the segments decide most rows; where
// they do not reach, a radix search over the row does.
#pragma once
#include "block_scan.cuh"
#include "sample_history.cuh"
#include "sample_params.cuh"

constexpr uint32_t PICK_THREADS = 512;
// Keys that are sorted at once.
constexpr uint32_t PICK_LIST = 2048;
constexpr uint32_t PICK_STAGED_IDS = 2048;
constexpr uint32_t WIDE_IDS = 8192;
constexpr uint32_t BINS = 1024;

struct Law {
    float temperature;
    // The largest tempered logit.
    float largest;
    float min_p;
    // Keys of tempered logits below this are dropped.
    uint64_t lowest_key;
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
            float staged[staged_words(PICK_STAGED_IDS)];
        } ranked;
        float wide[staged_words(WIDE_IDS)];
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

// Weight of a tempered logit whose key is kept, unless min_p drops it.
__device__ __forceinline__ float kept_weight(const Law& law, uint64_t key) {
    const float weight = weight_of(value_of_key(key), law.largest);
    return weight < law.min_p || key < law.lowest_key ? 0.0f : weight;
}

// Weight of a processed logit.
__device__ __forceinline__ float kept_weight(const Law& law, float z, uint32_t id) {
    return kept_weight(law, make_key(order_of(tempered(z, law.temperature)), id));
}

__device__ __forceinline__ uint32_t sorted_size(uint32_t n) {
    return n <= 2 ? 2 : 1u << (32 - __clz(n - 1));
}

// What a set of the largest keys must reach: top_k's count or top_p's mass.
struct Goal {
    uint32_t count;
    float mass;
    bool by_mass;

    __device__ __forceinline__ bool operator()(const Tally& tally) const {
        return by_mass ? mass_to_float(tally.mass) >= mass : tally.count >= count;
    }
};

__device__ __forceinline__ Tally tally_of(const Law& law, uint64_t key) {
    return {1, mass_of(weight_of(value_of_key(key), law.largest))};
}

// The mass of an open row.
__device__ __forceinline__ uint64_t row_mass(const SampleParams& p, uint32_t row,
                                             PickShared& shared) {
    const uint64_t* masses = p.masses + (size_t)row * p.chunks;
    const auto entry = [&](uint32_t n) { return Tally{0, masses[n]}; };
    return block_sum(p.chunks, entry, shared.scan).mass;
}

// Sorts the candidates of all segments into shared.ranked.keys. The first n, which it returns, are
// the n largest keys of the row; shared.bound is 0 if those are all keys above -inf.
__device__ __forceinline__ uint32_t sort_candidates(const SampleParams& p, uint32_t row,
                                                    PickShared& shared) {
    const uint32_t count = p.segments * RANKED, size = sorted_size(count);
    const uint64_t* ranked = p.ranked + (size_t)row * count;
    uint64_t* keys = shared.ranked.keys;
    for (uint32_t i = threadIdx.x; i < size; i += blockDim.x) keys[i] = i < count ? ranked[i] : 0;
    if (threadIdx.x < 32) {
        // What a segment left out is below its last candidate.
        uint64_t bound = 0;
        for (uint32_t n = threadIdx.x; n < p.segments; n += 32) {
            bound = max(bound, ranked[n * RANKED + RANKED - 1]);
        }
        bound = warp_largest(bound);
        if (threadIdx.x == 0) shared.bound = bound, shared.count = 0;
    }
    __syncthreads();
    sort_descending(keys, size);
    const uint64_t lowest = max(shared.bound, (uint64_t)1);
    for (uint32_t i = threadIdx.x; i < size; i += blockDim.x) {
        if (keys[i] >= lowest && (i + 1 == size || keys[i + 1] < lowest)) shared.count = i + 1;
    }
    __syncthreads();
    return shared.count;
}

// Whether the candidates decide what is kept; if so, the first n of shared.ranked.keys.
__device__ __forceinline__ bool rank_candidates(const SampleParams& p, uint32_t row,
                                                const RowPlan& plan, const SamplingRow& options,
                                                const Law& law, uint32_t& n, PickShared& shared) {
    if (p.segments * RANKED > PICK_LIST) return false;
    n = sort_candidates(p, row, shared);
    const bool open = (plan.kind & ROW_OPEN) != 0, complete = shared.bound == 0;
    if (!open) {
        if (n < options.top_k && !complete) return false;
        n = min(n, options.top_k);
    }
    if (!(options.top_p < 1.0f)) return true;
    const auto entry = [&](uint32_t i) { return tally_of(law, shared.ranked.keys[i]); };
    const uint64_t total =
        open ? row_mass(p, row, shared) : block_sum(n, entry, shared.scan).mass;
    const Goal goal = {0, __fmul_rn(options.top_p, mass_to_float(total)), true};
    Tally before = {0, 0};
    const uint32_t last = first_reaching(n, entry, goal, before, shared.scan);
    if (last == n) return !open || complete;
    n = last + 1;
    return true;
}

// Calls visit(id, x) for the tempered logits of a row, by every thread for its share.
template <class Visit>
__device__ __forceinline__ void visit_row(const SampleParams& p, uint32_t row, const RowPlan& plan,
                                          float temperature, PickShared& shared, Visit visit) {
    const float* logits = row_logits(p, row);
    const uint32_t vocab = p.slots.vocab_used;
    if ((plan.kind & ROW_CHANGED) == 0) {
        constexpr uint32_t AHEAD = 8;
        for (uint32_t first = threadIdx.x; first < vocab; first += PICK_THREADS * AHEAD) {
            float z[AHEAD];
#pragma unroll
            for (uint32_t j = 0; j < AHEAD; ++j) {
                const uint32_t id = first + j * PICK_THREADS;
                z[j] = id < vocab ? logits[id] : -CUDART_INF_F;
            }
#pragma unroll
            for (uint32_t j = 0; j < AHEAD; ++j) {
                visit(first + j * PICK_THREADS, tempered(z[j], temperature));
            }
        }
        return;
    }
    float* staged = shared.ranked.staged;
    for (uint32_t first = 0; first < vocab; first += PICK_STAGED_IDS) {
        const uint32_t count = min(PICK_STAGED_IDS, vocab - first);
        stage_processed(p.batch, p.slots, plan, row, logits, first, count, staged, shared.path);
        for (uint32_t place = threadIdx.x; place < count; place += blockDim.x) {
            visit(first + place, tempered(staged[staged_at(place)], temperature));
        }
        __syncthreads();
    }
}

// Keys among which a search goes on: those of one bin of the distance from the largest logit, and
// with the given leading bits.
struct Prefix {
    uint32_t bin;
    uint32_t shift;
    uint64_t bits;
};

// Bins of 1/32; the last holds all the rest. The distance falls as the logit grows.
__device__ __forceinline__ uint32_t distance_bin(const Law& law, float x) {
    const float distance = x == law.largest ? 0.0f : __fsub_rn(law.largest, x);
    return (uint32_t)fminf(distance * 32.0f, (float)(BINS - 1));
}

__device__ __forceinline__ bool matches(const Law& law, const Prefix& prefix, float x,
                                        uint64_t key) {
    if (prefix.shift < 64 && key >> prefix.shift != prefix.bits) return false;
    return prefix.bin == NONE || distance_bin(law, x) == prefix.bin;
}

__device__ __forceinline__ void add_to_bin(Bins& bins, uint32_t bin, uint64_t mass) {
    atomicAdd(&bins.count[bin], 1);
    const uint32_t low = (uint32_t)mass;
    const uint32_t carry = atomicAdd(&bins.low[bin], low) + low < low;
    atomicAdd(&bins.high[bin], (uint32_t)(mass >> 32) + carry);
}

// Tallies keys from law.lowest_key on that match the prefix: by distance first, then by the next
// bits, larger keys in lower bins. Returns the bin at which the goal is reached, BINS if none.
__device__ __forceinline__ uint32_t search_bins(const SampleParams& p, uint32_t row,
                                                const RowPlan& plan, const Law& law,
                                                const Prefix& prefix, uint32_t shift,
                                                const Goal& goal, Tally& before,
                                                PickShared& shared) {
    Bins& bins = shared.ranked.bins;
    __syncthreads();
    for (uint32_t n = threadIdx.x; n < BINS; n += blockDim.x) {
        bins.count[n] = 0, bins.low[n] = 0, bins.high[n] = 0;
    }
    __syncthreads();
    visit_row(p, row, plan, law.temperature, shared, [&](uint32_t id, float x) {
        const uint64_t key = make_key(order_of(x), id);
        if (!(x > -CUDART_INF_F) || key < law.lowest_key || !matches(law, prefix, x, key)) return;
        const uint32_t bin = prefix.bin == NONE
                                 ? distance_bin(law, x)
                                 : BINS - 1 - ((uint32_t)(key >> shift) & (BINS - 1));
        add_to_bin(bins, bin, mass_of(weight_of(x, law.largest)));
    });
    __syncthreads();
    const auto entry = [&](uint32_t n) {
        return Tally{bins.count[n], (uint64_t)bins.high[n] << 32 | bins.low[n]};
    };
    return first_reaching(BINS, entry, goal, before, shared.scan);
}

// Puts the keys that match into shared.ranked.keys and sorts them; at most PICK_LIST.
__device__ __forceinline__ uint32_t sort_matching(const SampleParams& p, uint32_t row,
                                                  const RowPlan& plan, const Law& law,
                                                  const Prefix& prefix, PickShared& shared) {
    uint64_t* keys = shared.ranked.keys;
    __syncthreads();
    if (threadIdx.x == 0) shared.count = 0;
    __syncthreads();
    visit_row(p, row, plan, law.temperature, shared, [&](uint32_t id, float x) {
        const uint64_t key = make_key(order_of(x), id);
        if (!(x > -CUDART_INF_F) || key < law.lowest_key || !matches(law, prefix, x, key)) return;
        keys[atomicAdd(&shared.count, 1)] = key;
    });
    __syncthreads();
    const uint32_t count = shared.count, size = sorted_size(count);
    for (uint32_t i = count + threadIdx.x; i < size; i += blockDim.x) keys[i] = 0;
    __syncthreads();
    sort_descending(keys, size);
    return count;
}

// The key through which the goal is reached in descending order of keys from law.lowest_key on,
// and the tally through it; law.lowest_key where all together do not reach it.
__device__ __forceinline__ uint64_t search_row(const SampleParams& p, uint32_t row,
                                               const RowPlan& plan, const Law& law,
                                               const Goal& goal, Tally& through,
                                               PickShared& shared) {
    Prefix prefix = {NONE, 64, 0};
    through = {0, 0};
    const uint32_t bin = search_bins(p, row, plan, law, prefix, 64, goal, through, shared);
    if (bin == BINS) return law.lowest_key;
    uint32_t size = shared.ranked.bins.count[bin];
    prefix.bin = bin;
    while (size > PICK_LIST) {
        const uint32_t shift = prefix.shift > 10 ? prefix.shift - 10 : 0;
        const uint32_t next = search_bins(p, row, plan, law, prefix, shift, goal, through, shared);
        size = shared.ranked.bins.count[next];
        // The last step is shorter: its bins are numbered by leading bits as well.
        const uint64_t digit = BINS - 1 - next;
        const uint32_t width = prefix.shift - shift;
        prefix.bits = prefix.bits << width | (digit & ((1u << width) - 1));
        prefix.shift = shift;
    }
    const uint32_t count = sort_matching(p, row, plan, law, prefix, shared);
    const uint64_t* keys = shared.ranked.keys;
    const auto entry = [&](uint32_t i) { return tally_of(law, keys[i]); };
    const uint32_t last = first_reaching(count, entry, goal, through, shared.scan);
    through = through + tally_of(law, keys[last]);
    return keys[last];
}

// The lowest key that top_k and top_p keep.
__device__ __forceinline__ uint64_t select_in_row(const SampleParams& p, uint32_t row,
                                                  const RowPlan& plan, const SamplingRow& options,
                                                  Law law, PickShared& shared) {
    uint64_t total;
    if ((plan.kind & ROW_OPEN) != 0) {
        total = row_mass(p, row, shared);
    } else {
        Tally through;
        const Goal goal = {options.top_k, 0.0f, false};
        law.lowest_key = search_row(p, row, plan, law, goal, through, shared);
        total = through.mass;
    }
    if (!(options.top_p < 1.0f)) return law.lowest_key;
    Tally through;
    const Goal goal = {0, __fmul_rn(options.top_p, mass_to_float(total)), true};
    return search_row(p, row, plan, law, goal, through, shared);
}
