// The tail of a tree: the tiles that hold positions at or after the committed length.
//
// There every node has keys of its own: the committed ones of the tile, then its ancestors by
// depth. The rows of a node take part in products whose keys are gathered by address from a window
// in shared memory (the cache from the tile of the committed length on, tree rows included); for
// all other rows those products have zero operands, which leave their sums as they are. So a row
// meets the same operands at the same places of the same instructions as in plain decoding.
#pragma once
#include "attention_ring.cuh"
#include "tables.cuh"

// The window and the nodes of a block.
struct Window {
    uint32_t ring;              // its slots
    uint32_t slots;             // of the ring
    uint32_t first;             // first slot of the window
    uint32_t committed;         // window index of the first tree row
    uint32_t offset;            // window index of the first position of the tile
    uint32_t group;             // query heads per node
    uint32_t nodes;             // of the block
    const uint64_t* ancestors;  // [nodes], themselves included

    template <class S>
    __device__ __forceinline__ uint32_t row_address(uint32_t index) const {
        const uint32_t slot = first + index / SLOT_ROWS;
        return ring + (slot < slots ? slot : slot - slots) * S::SLOT_BYTES +
               (index % SLOT_ROWS) * S::ROW_BYTES;
    }

    // Window position of a node.
    __device__ __forceinline__ uint32_t last(uint32_t node) const {
        return committed + __popcll(ancestors[node]) - 1;
    }

    __device__ __forceinline__ bool shared(uint32_t chunk) const {
        return offset + chunk * CHUNK_KEYS + CHUNK_KEYS <= committed;
    }
};

// Place of set bit number `number` of a mask that has more than `number`.
__device__ __forceinline__ uint32_t nth_bit(uint64_t mask, uint32_t number) {
    const uint32_t low = static_cast<uint32_t>(mask);
    uint32_t word = low;
    uint32_t place = 0;
    if (number >= __popc(low)) {
        number -= __popc(low);
        word = static_cast<uint32_t>(mask >> 32);
        place = 32;
    }
#pragma unroll
    for (uint32_t width = 16; width > 0; width /= 2) {
        const uint32_t below = __popc(word & ((1u << width) - 1));
        if (number >= below) {
            number -= below;
            word >>= width;
            place += width;
        }
    }
    return place;
}

// Window index of the key at window position `position` on the path of a node. Behind the node it
// is the node itself: such keys get weight 0, and its values are finite whenever the output is.
__device__ __forceinline__ uint32_t path_index(const Window& window, uint32_t node,
                                               uint32_t position) {
    if (position < window.committed) return position;
    const uint64_t ancestors = window.ancestors[node];
    const uint32_t depth = min(position - window.committed,
                               static_cast<uint32_t>(__popcll(ancestors)) - 1);
    return window.committed + nth_bit(ancestors, depth);
}

// Nodes that a pair's rows belong to.
template <class S>
struct PairNodes {
    uint32_t first, last;
    uint32_t node[S::TILES];  // of this lane's row in each tile of rows

    __device__ __forceinline__ PairNodes(const Window& window, const Lane& at) {
        const uint32_t row = at.pair * S::PAIR_ROWS;
        first = row / window.group;
        last = min((row + S::PAIR_ROWS - 1) / window.group, window.nodes - 1);
#pragma unroll
        for (uint32_t n = 0; n < S::TILES; ++n) node[n] = (row + 8 * n + at.row) / window.group;
    }
};

// All ones for the tiles of rows in which some row takes part, and for this lane's operand in it.
template <class S>
struct Part {
    bool touched[S::TILES];
    uint32_t mask[S::TILES];

    __device__ __forceinline__ Part(const PairNodes<S>& nodes, const Lane& at, uint32_t group,
                                    uint32_t node, bool everyone) {
        const uint32_t base = at.pair * S::PAIR_ROWS, begin = node * group, end = begin + group;
#pragma unroll
        for (uint32_t n = 0; n < S::TILES; ++n) {
            touched[n] = everyone || (begin < base + 8 * n + 8 && end > base + 8 * n);
            mask[n] = everyone || nodes.node[n] == node ? ~0u : 0;
        }
    }
};

// Adds the scores of 16 keys for the rows of one node, or of all where the keys are committed.
template <class S>
__device__ __forceinline__ void score_chunk(float (&c)[S::TILES][4], const Queries<S>& queries,
                                            uint32_t key, const Part<S>& part) {
#pragma unroll
    for (uint32_t step = 0; step < S::STEPS; ++step) {
        uint32_t a[4];
        load_matrix_x4(a, advance(key, step));
#pragma unroll
        for (uint32_t n = 0; n < S::TILES; ++n) {
            if (part.touched[n]) {
                mma_bf16(c[n], a, queries.b[n][step][0] & part.mask[n],
                         queries.b[n][step][1] & part.mask[n]);
            }
        }
    }
}

// Scores of a tail tile; -inf behind a row's own position.
template <class S>
__device__ __forceinline__ void score_tail(Scores<S>& scores, const Queries<S>& queries,
                                           const Window& window) {
    const Lane at;
    const PairNodes<S> nodes(window, at);
    clear(scores);
#pragma unroll
    for (uint32_t m = 0; m < 2; ++m) {
        const uint32_t chunk = 2 * at.half + m;
        const uint32_t position = window.offset + chunk * CHUNK_KEYS;
        const bool everyone = window.shared(chunk);
        for (uint32_t node = nodes.first; node <= (everyone ? nodes.first : nodes.last); ++node) {
            if (!everyone && position > window.last(node)) continue;
            const uint32_t index = path_index(window, node, position + key_row(at.lane));
            const Part<S> part(nodes, at, window.group, node, everyone);
            const uint32_t key =
                window.row_address<S>(index) + swizzled(key_column(at.lane), index & 7);
            score_chunk<S>(scores.c[m], queries, key, part);
        }
    }
#pragma unroll
    for (uint32_t n = 0; n < S::TILES; ++n) {
#pragma unroll
        for (uint32_t j = 0; j < 2; ++j) {
            const uint32_t row = at.pair * S::PAIR_ROWS + 8 * n + 2 * at.column + j;
            const uint32_t node = row / window.group;
            const uint32_t end = node < window.nodes ? window.last(node) + 1 : 0;
            const uint32_t position = window.offset + at.half * 2 * CHUNK_KEYS + at.row;
#pragma unroll
            for (uint32_t k = 0; k < 4; ++k) {
                float& score = scores.c[k / 2][n][2 * (k % 2) + j];
                if (position + 8 * k >= end) score = -INFINITY;
            }
        }
    }
}

// Adds the weighted values of a tail tile.
template <class S>
__device__ __forceinline__ void gather_tail(Running<S>& running, const Exchange<S>& exchange,
                                            const Window& window) {
    const Lane at;
    const PairNodes<S> nodes(window, at);
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
        uint32_t b[S::TILES][4];
        load_weights(b, exchange, at, half);
#pragma unroll
        for (uint32_t c = 0; c < 2; ++c) {
            const uint32_t chunk = 2 * half + c;
            const uint32_t position = window.offset + chunk * CHUNK_KEYS;
            const bool everyone = window.shared(chunk);
            for (uint32_t node = nodes.first; node <= (everyone ? nodes.first : nodes.last); ++node) {
                if (!everyone && position > window.last(node)) continue;
                const uint32_t index = path_index(window, node, position + value_row(at.lane));
                const uint32_t row = window.row_address<S>(index) + at.half * S::DIM +
                                     swizzled(value_column(at.lane), index & 7);
                const Part<S> part(nodes, at, window.group, node, everyone);
#pragma unroll
                for (uint32_t i = 0; i < S::STRIPS; ++i) {
                    uint32_t a[4];
                    load_matrix_x4_transposed(a, advance(row, i));
#pragma unroll
                    for (uint32_t n = 0; n < S::TILES; ++n) {
                        if (part.touched[n]) {
                            mma_bf16(running.out[i][n], a, b[n][2 * c] & part.mask[n],
                                     b[n][2 * c + 1] & part.mask[n]);
                        }
                    }
                }
            }
        }
    }
}
