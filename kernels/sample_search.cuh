// A radix search over a row for the key at which top_k or top_p ends, by all blocks of its group.
#pragma once
#include "sample_row.cuh"

// What a set of the largest keys must reach: top_k's count or top_p's mass.
struct Goal {
    uint32_t count;
    float mass;
    bool by_mass;

    __device__ __forceinline__ bool operator()(const Tally& tally) const {
        return by_mass ? mass_to_float(tally.mass) >= mass : tally.count >= count;
    }
};

__device__ __forceinline__ Goal goal_of_top_k(const SamplingRow& options) {
    return {options.top_k, 0.0f, false};
}

__device__ __forceinline__ Goal goal_of_top_p(const SamplingRow& options, uint64_t total) {
    return {0, __fmul_rn(options.top_p, mass_to_float(total)), true};
}

__device__ __forceinline__ uint32_t sorted_size(uint32_t n) {
    return n <= 2 ? 2 : 1u << (32 - __clz(n - 1));
}

// Keys among which a search goes on: those of one bin of the distance from the largest logit, and
// with the given leading bits.
struct Prefix {
    uint32_t bin;
    uint32_t shift;
    uint64_t bits;
};

// Bins of 1/64; the last holds all the rest. The distance falls as the logit grows.
__device__ __forceinline__ uint32_t distance_bin(const Law& law, float x) {
    const float distance = x == law.largest ? 0.0f : __fsub_rn(law.largest, x);
    return (uint32_t)fminf(distance * 64.0f, (float)(BINS - 1));
}

// Calls visit(key, x) for this block's share of the keys that match, from law.lowest_key on.
template <class Visit>
__device__ __forceinline__ void visit_matching(const SampleParams& p, const DrawnRow& drawn,
                                               const Law& law, const Prefix& prefix,
                                               PickShared& shared, Visit visit) {
    visit_share(p, drawn, law, shared, [&](uint32_t id, float x) {
        if (prefix.bin != NONE && distance_bin(law, x) != prefix.bin) return;
        const uint64_t key = make_key(order_of(x), id);
        if (key < law.lowest_key) return;
        if (prefix.shift < 64 && key >> prefix.shift != prefix.bits) return;
        visit(key, x);
    });
}

__device__ __forceinline__ void add_to_bin(Bins& bins, uint32_t bin, uint64_t mass) {
    atomicAdd(&bins.count[bin], 1);
    const uint32_t low = (uint32_t)mass;
    if (mass == 0) return;
    const uint32_t carry = atomicAdd(&bins.low[bin], low) + low < low;
    const uint32_t high = (uint32_t)(mass >> 32) + carry;
    if (high > 0) atomicAdd(&bins.high[bin], high);
}

// Adds the block's bins to those of the group and takes back the sum.
__device__ __forceinline__ void share_bins(DrawnRow& drawn, Bins& bins, GlobalBins& all,
                                           GlobalBins& next) {
    __syncthreads();
    for (uint32_t n = threadIdx.x; n < BINS; n += blockDim.x) {
        const uint64_t mass = (uint64_t)bins.high[n] << 32 | bins.low[n];
        if (bins.count[n] == 0) continue;
        atomicAdd(&all.count[n], bins.count[n]);
        if (mass > 0) atomic_add(&all.mass[n], mass);
    }
    for (uint32_t n = drawn.group.rank * blockDim.x + threadIdx.x; n < BINS;
         n += drawn.group.size * blockDim.x) {
        next.count[n] = 0, next.mass[n] = 0;
    }
    group_barrier(drawn.group);
    for (uint32_t n = threadIdx.x; n < BINS; n += blockDim.x) {
        const uint64_t mass = load_fresh(&all.mass[n]);
        bins.count[n] = load_fresh(&all.count[n]);
        bins.low[n] = (uint32_t)mass, bins.high[n] = (uint32_t)(mass >> 32);
    }
    __syncthreads();
}

// Where a search stands.
struct Search {
    SearchSpace* space;
    // Searches of the row so far, and sets of bins used.
    uint32_t number;
    uint32_t level;
    Prefix prefix;
    // Tally of the keys above those that match.
    Tally before;
};

// Tallies what matches: by distance first, then by the next bits from `shift` on, larger keys in
// lower bins. Returns the bin at which the goal is reached, BINS if none.
__device__ __forceinline__ uint32_t search_bins(const SampleParams& p, DrawnRow& drawn,
                                                const Law& law, uint32_t shift, const Goal& goal,
                                                Search& search, PickShared& shared) {
    Bins& bins = shared.ranked.bins;
    __syncthreads();
    for (uint32_t n = threadIdx.x; n < BINS; n += blockDim.x) {
        bins.count[n] = 0, bins.low[n] = 0, bins.high[n] = 0;
    }
    __syncthreads();
    const bool by_distance = search.prefix.bin == NONE;
    visit_matching(p, drawn, law, search.prefix, shared, [&](uint64_t key, float x) {
        const uint32_t digit = (uint32_t)(key >> shift) & (BINS - 1);
        const uint32_t bin = by_distance ? distance_bin(law, x) : BINS - 1 - digit;
        add_to_bin(bins, bin, mass_of(weight_of(x, law.largest)));
    });
    GlobalBins* sets = search.space->bins;
    share_bins(drawn, bins, sets[search.level % 3], sets[(search.level + 1) % 3]);
    ++search.level;
    const auto entry = [&](uint32_t n) {
        return Tally{bins.count[n], (uint64_t)bins.high[n] << 32 | bins.low[n]};
    };
    return first_reaching(BINS, entry, goal, search.before, shared.scan);
}

// Narrows the prefix by its next ten bits, or those that are left. Returns how many keys match.
__device__ __forceinline__ uint32_t narrow(const SampleParams& p, DrawnRow& drawn, const Law& law,
                                           const Goal& goal, Search& search, PickShared& shared) {
    Prefix& prefix = search.prefix;
    const uint32_t shift = prefix.shift > 10 ? prefix.shift - 10 : 0;
    const uint32_t bin = search_bins(p, drawn, law, shift, goal, search, shared);
    // The last step is shorter: its bins are numbered by leading bits as well.
    const uint32_t width = prefix.shift - shift;
    prefix.bits = prefix.bits << width | ((BINS - 1 - bin) & ((1u << width) - 1));
    prefix.shift = shift;
    return shared.ranked.bins.count[bin];
}

// Puts the keys that match into shared.ranked.keys and sorts them; at most PICK_LIST.
__device__ __forceinline__ uint32_t sort_matching(const SampleParams& p, DrawnRow& drawn,
                                                  const Law& law, const Search& search,
                                                  PickShared& shared) {
    uint32_t* listed = &drawn.group.state->listed[search.number];
    visit_matching(p, drawn, law, search.prefix, shared, [&](uint64_t key, float) {
        search.space->keys[atomicAdd(listed, 1)] = key;
    });
    group_barrier(drawn.group);
    const uint32_t count = load_fresh(listed), size = sorted_size(count);
    uint64_t* keys = shared.ranked.keys;
    for (uint32_t i = threadIdx.x; i < size; i += blockDim.x) {
        keys[i] = i < count ? load_fresh(&search.space->keys[i]) : 0;
    }
    // The list may be filled anew only when all have read it.
    group_barrier(drawn.group);
    sort_descending(keys, size);
    return count;
}

// The key through which the goal is reached in descending order of keys from law.lowest_key on,
// and the tally through it; law.lowest_key where all together do not reach it.
__device__ __forceinline__ uint64_t search_row(const SampleParams& p, DrawnRow& drawn,
                                               const Law& law, const Goal& goal, Search& search,
                                               Tally& through, PickShared& shared) {
    search.prefix = {NONE, 64, 0};
    search.before = {0, 0};
    const uint32_t bin = search_bins(p, drawn, law, 0, goal, search, shared);
    through = search.before;
    if (bin == BINS) return law.lowest_key;
    search.prefix.bin = bin;
    uint32_t matching = shared.ranked.bins.count[bin];
    while (matching > PICK_LIST) matching = narrow(p, drawn, law, goal, search, shared);
    const uint32_t count = sort_matching(p, drawn, law, search, shared);
    const uint64_t* keys = shared.ranked.keys;
    const auto entry = [&](uint32_t i) { return tally_of(law, keys[i]); };
    const uint32_t last = first_reaching(count, entry, goal, search.before, shared.scan);
    through = search.before + tally_of(law, keys[last]);
    ++search.number;
    return keys[last];
}

// The lowest key that top_k and top_p keep; total is the mass of the row where top_k keeps all.
__device__ __forceinline__ uint64_t lowest_kept_key(const SampleParams& p, DrawnRow& drawn,
                                                    const SamplingRow& options, Law law,
                                                    uint64_t total, PickShared& shared) {
    Search search = {p.searches + drawn.row, 0, 0};
    GlobalBins& first = search.space->bins[0];
    for (uint32_t n = drawn.group.rank * blockDim.x + threadIdx.x; n < BINS;
         n += drawn.group.size * blockDim.x) {
        first.count[n] = 0, first.mass[n] = 0;
    }
    group_barrier(drawn.group);
    Tally through;
    if ((drawn.plan.kind & ROW_OPEN) == 0) {
        const Goal goal = goal_of_top_k(options);
        law.lowest_key = search_row(p, drawn, law, goal, search, through, shared);
        total = through.mass;
    }
    if (!(options.top_p < 1.0f)) return law.lowest_key;
    return search_row(p, drawn, law, goal_of_top_p(options, total), search, through, shared);
}
