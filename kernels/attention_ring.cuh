// A ring of slots in shared memory through which queries, keys and values of a block flow.
//
// All threads copy and all consume. Slots are taken in the order in which the loader fills them; a
// unit (the slots taken at once) is held until the next unit is taken. All counters are the same
// in every thread of the block.
#pragma once
#include "attention.cuh"

// Waits until at most `pending` groups of this thread's copies are under way.
__device__ __forceinline__ void copy_wait_for(uint32_t pending) {
    switch (pending) {
        case 0: copy_wait<0>(); break;
        case 1: copy_wait<1>(); break;
        case 2: copy_wait<2>(); break;
        case 3: copy_wait<3>(); break;
        case 4: copy_wait<4>(); break;
        case 5: copy_wait<5>(); break;
        case 6: copy_wait<6>(); break;
        default: copy_wait<7>(); break;
    }
}

// `Loader` is the stream: `more()` tells whether a slot is left, `copy(slot)` enqueues this thread's
// part of the next one.
template <class S, class Loader>
struct Ring {
    uint32_t base;
    uint32_t slots;
    // Next slot to take; slots filled or filling and not taken yet; slots of the unit taken last:
    // a byte each, from the lowest. One register instead of three.
    uint32_t state;
    Loader& loader;

    // `filled` slots at the start of the ring were filled by the caller, a group of copies each.
    __device__ __forceinline__ Ring(uint32_t base, uint32_t slots, uint32_t filled, Loader& loader)
        : base(base), slots(slots), state(filled << 8), loader(loader) {
        fill();
    }

    __device__ __forceinline__ uint32_t read() const { return state & 0xff; }
    __device__ __forceinline__ uint32_t ahead() const { return state >> 8 & 0xff; }
    __device__ __forceinline__ uint32_t held() const { return state >> 16; }

    // `slot` may lie one turn behind the end.
    __device__ __forceinline__ uint32_t address(uint32_t slot) const {
        return base + (slot < slots ? slot : slot - slots) * S::SLOT_BYTES;
    }

    __device__ __forceinline__ void fill() {
        while (ahead() + held() < slots && loader.more()) {
            loader.copy(address(read() + ahead()));
            copy_commit();
            state += 1 << 8;
        }
    }

    // Takes the next `count` slots and gives back those held; what other threads wrote to shared
    // memory before is visible afterwards. Returns the number of the first slot.
    __device__ __forceinline__ uint32_t take(uint32_t count) {
        if (ahead() < count) {
            __syncthreads();
            state &= 0xffff;
            fill();
        }
        copy_wait_for(ahead() - count);
        __syncthreads();
        const uint32_t first = read();
        const uint32_t next = first + count < slots ? first + count : first + count - slots;
        state = next | (ahead() - count) << 8 | count << 16;
        fill();
        return first;
    }
};

// Fills a slot with 32 rows of a head, `stride` values apart; rows from `valid` on become zeros.
template <class S>
__device__ __forceinline__ void copy_rows(uint32_t slot, const bf16* rows, uint32_t stride,
                                          uint32_t valid) {
    constexpr uint32_t COLUMNS = S::DIM / 8;  // of 16 bytes
    constexpr uint32_t STEP = S::THREADS / COLUMNS;
    const uint32_t thread = thread_number(), first = thread / COLUMNS, column = thread % COLUMNS;
    const bf16* from = rows + first * stride + 8 * column;
    const uint32_t to = slot + first * S::ROW_BYTES + swizzled(column, first & 7);
#pragma unroll
    for (uint32_t i = 0; i < SLOT_ROWS; i += STEP) {
        // `first` is below STEP, a power of two: its bits and those of i do not meet.
        copy16_async_or_zero((to ^ ((i & 7) << 4)) + i * S::ROW_BYTES, from, first + i < valid);
        from += STEP * stride;
    }
}

// Puts the queries of `tokens` rows of the batch from `first` on, the `group` heads of KV head
// `head` each, into the first slots of a ring; a group of copies per slot. `heads`: of a row.
template <class S>
__device__ __forceinline__ void copy_queries(const bf16* query, uint32_t first, uint32_t heads,
                                             uint32_t head, uint32_t group, uint32_t tokens,
                                             uint32_t ring) {
    constexpr uint32_t COLUMNS = S::DIM / 8;
    const uint32_t column = threadIdx.x % COLUMNS;
    query += (static_cast<size_t>(first) * heads + head * group) * S::DIM + 8 * column;
    for (uint32_t slot = 0; slot * SLOT_ROWS < tokens * group; ++slot) {
        for (uint32_t i = threadIdx.x / COLUMNS; i < SLOT_ROWS; i += S::THREADS / COLUMNS) {
            const uint32_t row = slot * SLOT_ROWS + i, token = row / group;
            const uint32_t source = token * heads + row - token * group;
            copy16_async_or_zero(ring + row * S::ROW_BYTES + swizzled(column, row & 7),
                                 query + static_cast<size_t>(source) * S::DIM, token < tokens);
        }
        copy_commit();
    }
}
