// Options of a row and the arithmetic of the law (crates/ops/src/sample.rs and sample/law.rs).
// Nothing here may be contracted: a choice has the same bits on the CPU.
#pragma once
#include <math_constants.h>
#include <stdint.h>

#include "device.cuh"
#include "exp.cuh"
#include "tables.cuh"

// Ids summed together before they are added to the running sum.
constexpr uint32_t TILE_IDS = 64;

// What a row needs.
enum RowKind : uint32_t {
    ROW_LIVE = 1,
    // A random number decides.
    ROW_DRAWN = 2,
    // top_k or top_p ranks the ids.
    ROW_RANKED = 4,
    // top_k leaves all ids: the whole row is weighed.
    ROW_OPEN = 8,
    // A mask, bans, bias or penalties change the logits.
    ROW_CHANGED = 16,
    // The row has a mask.
    ROW_MASKED = 32,
};

// Tokens that rows may choose (crates/ops/src/token_masks.rs); masked is null where no row has a mask.
struct TokenMasks {
    const uint32_t* masked;
    const uint32_t* words;
    uint32_t words_per_row;
};

struct RowPlan {
    uint32_t kind;
    uint32_t slot;
    // 0-based index of the output token that the row decides.
    uint32_t index;
    // First row of the segment.
    uint32_t start;
};

__device__ __forceinline__ bool has_penalties(const SamplingRow& options) {
    return options.repetition_penalty != 1.0f || options.frequency_penalty != 0.0f ||
           options.presence_penalty != 0.0f;
}

// Stop ids that are banned at an output index.
__device__ __forceinline__ uint32_t banned_count(const SamplingRow& options, uint32_t index) {
    return index < options.tokens_min ? options.stop_count : 0;
}

__device__ __forceinline__ RowPlan plan_row(const Batch& batch, const Slots& slots,
                                            const TokenMasks& masks, uint32_t row) {
    const uint32_t sequence = batch.row_sequence[row];
    if (sequence == NONE) return {0, 0, 0, 0};
    const uint32_t slot = batch.sequence_slot[sequence];
    const uint32_t index = slots.emitted[slot] + batch.depth[row];
    const SamplingRow options = slots.sampling[slot];
    uint32_t kind = ROW_LIVE;
    if (banned_count(options, index) > 0 || options.bias_count > 0 || has_penalties(options)) {
        kind |= ROW_CHANGED;
    }
    if (masks.masked != nullptr && masks.masked[row] != 0) kind |= ROW_CHANGED | ROW_MASKED;
    const bool greedy =
        options.temperature < 1e-5f || options.top_k == 1 || options.top_p <= 0.0f;
    if (!greedy) {
        const bool open = options.top_k == 0 || options.top_k >= slots.vocab_used;
        kind |= ROW_DRAWN;
        if (open) kind |= ROW_OPEN;
        if (!open || options.top_p < 1.0f) kind |= ROW_RANKED;
    }
    return {kind, slot, index, batch.sequence_start[sequence]};
}

// A processed logit times the inverse of the temperature; -inf for NaN.
__device__ __forceinline__ float tempered(float z, float inverse_temperature) {
    return z != z ? -CUDART_INF_F : __fmul_rn(z, inverse_temperature);
}

// e^(x - largest) in 0 .. 1; x is not NaN, largest above -inf.
__device__ __forceinline__ float weight_of(float x, float largest) {
    return x == largest ? 1.0f : portable_exp(__fsub_rn(x, largest));
}

// A weight in units of 2^-44, rounded down: sums are exact in any order.
__device__ __forceinline__ uint64_t mass_of(float weight) {
    return __float2ull_rz(__fmul_rn(weight, 0x1p44f));
}

__device__ __forceinline__ float mass_to_float(uint64_t mass) { return __ull2float_rn(mass); }
