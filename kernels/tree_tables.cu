// Tables of every row of a tree from the parents (crates/ops/src/tree_tables.rs).
#include "device.cuh"
#include "tables.cuh"

// Four threads per row: each looks at a quarter of the rows, or at one tap of the convolution.
constexpr int PARTS = 4;
constexpr int TABLE_THREADS = TREE_ROWS_MAX * PARTS;
constexpr int PART_ROWS = TREE_ROWS_MAX / PARTS;
constexpr int JUMPS = 6;  // 2^JUMPS >= TREE_ROWS_MAX

struct TreeTablesParams {
    Batch batch;
    const uint32_t* padding;  // [rows], null: no row is
    Tree tree;
};

struct TableShared {
    int parent[TREE_ROWS_MAX];
    uint64_t above[2][TREE_ROWS_MAX];
    int jump[2][TREE_ROWS_MAX];
    // Ancestors for the sizes of subtrees: padding rows have none.
    uint64_t weighs_on[TREE_ROWS_MAX];
    // parent << 16 | is_padding << 15 | size << 8 | row: rows of one parent in the scan's order.
    uint32_t sibling[TREE_ROWS_MAX];
    // Visits from the parent's on, and levels above the parent's << 8.
    uint32_t step[TREE_ROWS_MAX];
};

constexpr uint32_t IS_PADDING = 1u << 15;
constexpr uint32_t NO_ROW = 0x7fffu << 16;

__device__ __forceinline__ int size_of_subtree(uint32_t sibling) {
    return (int)(sibling >> 8) & 127;
}

__device__ __forceinline__ uint32_t sum_of_parts(uint32_t value) {
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

__device__ __forceinline__ uint64_t union_of_parts(uint64_t bits) {
    bits |= __shfl_xor_sync(0xffffffffu, bits, 1);
    return bits | __shfl_xor_sync(0xffffffffu, bits, 2);
}

// Source of a tap: 3 + the row so many generations above, and above row 0 the history from its
// newest column (2) on.
template <class Parents>
__device__ __forceinline__ uint32_t conv_source(const Parents& parent, int row, int tap) {
    int source = 3 + row;
    for (int i = 0; i < tap; ++i) {
        source = source > 3 ? 3 + parent[source - 3] : max(source - 1, 0);
    }
    return (uint32_t)source;
}

// The row itself and its ancestors, by pointer doubling.
__device__ uint64_t ancestors_of(TableShared& s, int row, int part) {
    uint64_t bits = 1ull << row;
    int above = s.parent[row];
    for (int i = 0; i < JUMPS; ++i) {
        if (part == 0) {
            s.above[i & 1][row] = bits;
            s.jump[i & 1][row] = above;
        }
        __syncthreads();
        if (above >= 0) {
            bits |= s.above[i & 1][above];
            above = s.jump[i & 1][above];
        }
    }
    return bits;
}

// What a row's neighbours say, over all parts.
struct Family {
    uint64_t children;  // without padding rows
    uint64_t siblings;  // without padding rows, the row itself included
    int before;         // rows in the subtrees of the siblings that the scan visits first
    int later;          // siblings that it visits afterwards
    int visits;         // children, padding rows included
};

__device__ Family family_of(const TableShared& s, int row, int part) {
    const uint32_t mine = s.sibling[row];
    Family family = {};
    uint32_t before = 0, later = 0, visits = 0;
    for (int i = 0; i < PART_ROWS; ++i) {
        const uint32_t other = s.sibling[part * PART_ROWS + i];
        const uint64_t bit = (uint64_t)((other & IS_PADDING) == 0) << (part * PART_ROWS + i);
        const uint32_t parent = other >> 16;
        if (parent == (uint32_t)row) {
            family.children |= bit;
            ++visits;
        }
        if (parent == mine >> 16) {
            family.siblings |= bit;
            if (other < mine) before += size_of_subtree(other);
            later += other > mine;
        }
    }
    family.children = union_of_parts(family.children);
    family.siblings = union_of_parts(family.siblings);
    const uint32_t counts = sum_of_parts(before | later << 8 | visits << 16);
    family.before = (int)(counts & 255);
    family.later = (int)(counts >> 8) & 255;
    family.visits = (int)(counts >> 16);
    return family;
}

__device__ __forceinline__ int32_t lowest(uint64_t bits) {
    return __ffsll((long long)bits) - 1;
}

// Segments of at most TREE_ROWS_MAX rows.
__device__ void all_tables(const TreeTablesParams& p, TableShared& s, uint32_t start, int rows) {
    const int row = threadIdx.x / PARTS, part = threadIdx.x % PARTS;
    const uint32_t at = start + row;
    const bool exists = row < rows;
    const bool is_padding = exists && p.padding != nullptr && p.padding[at] != 0;
    if (part == 0) s.parent[row] = exists ? p.batch.parent[at] : -1;
    __syncthreads();
    if (exists) p.tree.conv_source[(size_t)at * 4 + part] = conv_source(s.parent, row, part);
    const uint64_t ancestors = ancestors_of(s, row, part);
    if (part == 0) s.weighs_on[row] = !exists ? 0 : is_padding ? 1ull << row : ancestors;
    __syncthreads();
    uint32_t size = 0;
    for (int i = 0; i < PART_ROWS; ++i) size += s.weighs_on[part * PART_ROWS + i] >> row & 1;
    size = sum_of_parts(size);
    if (part == 0) {
        const uint32_t order = (is_padding ? IS_PADDING : 0) | size << 8 | row;
        s.sibling[row] = exists ? (uint32_t)s.parent[row] << 16 | order : NO_ROW | row;
    }
    __syncthreads();
    const Family family = family_of(s, row, part);
    const int rises = family.later > 0;
    if (part == 0) s.step[row] = row == 0 ? 0 : 1 + family.before + (rises << 8);
    __syncthreads();
    uint32_t steps = 0;
    for (int i = 0; i < PART_ROWS; ++i) {
        const int other = part * PART_ROWS + i;
        if (ancestors >> other & 1) steps += s.step[other];
    }
    steps = sum_of_parts(steps);
    if (part != 0 || !exists) return;
    const int visit = (int)(steps & 255), level = (int)(steps >> 8);
    const bool starts = row == 0 || family.before == 0;
    const uint64_t later_rows = ~((2ull << row) - 1);
    p.tree.ancestors[at] = ancestors;
    p.tree.first_child[at] = lowest(family.children);
    p.tree.next_sibling[at] = row == 0 || is_padding ? -1 : lowest(family.siblings & later_rows);
    p.tree.scan_order[start + visit] = (uint32_t)row;
    p.tree.scan_save[at] = family.visits > 1 ? level : -1;
    p.tree.scan_restore[at] = starts ? -1 : level - rises;
}

// One block per sequence.
extern "C" __global__ void __launch_bounds__(TABLE_THREADS)
    tree_tables(const __grid_constant__ TreeTablesParams p) {
    __shared__ TableShared s;
    const uint32_t sequence = blockIdx.x;
    pdl_launch();
    pdl_wait();
    const uint32_t start = p.batch.sequence_start[sequence];
    const int rows = (int)p.batch.sequence_rows[sequence];
    if (sequence >= p.batch.live[1]) return;
    if (rows <= TREE_ROWS_MAX) {
        all_tables(p, s, start, rows);
        return;
    }
    const int32_t* parent = p.batch.parent + start;
    for (int i = threadIdx.x; i < rows * PARTS; i += TABLE_THREADS) {
        p.tree.conv_source[(size_t)start * 4 + i] = conv_source(parent, i / PARTS, i % PARTS);
    }
}
