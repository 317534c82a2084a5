// What becomes of a warpgroup's sums. Of a warp's 16 weight rows lane l holds row l / 4 in
// d[4j], d[4j + 1] and row l / 4 + 8 in d[4j + 2], d[4j + 3], rows of x 8j + 2 (l % 4) and one
// more.
#pragma once
#include "wide_params.cuh"

// Where 64 weight rows go.
struct WideTarget {
    int consumer;
    int thread;  // in the consumer
    int slice;
    int row;     // first row of x
    int rows_end;
    int output;  // first output
    int outputs_end;
    int out_row;  // values from row to row
};

__device__ __forceinline__ void consumer_sync(const WideTarget& t) {
    warpgroup_sync(1 + t.consumer);
}

// Eight neighbouring outputs, or the `count` that exist.
__device__ __forceinline__ void store_eight(bf16* out, uint4 values, int count, bool aligned) {
    if (aligned && count >= 8) {
        *reinterpret_cast<uint4*>(out) = values;
        return;
    }
    const bf16* value = reinterpret_cast<const bf16*>(&values);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (i < count) out[i] = value[i];
    }
}

// Staged rows are pieces of 16 bytes; piece i of row r lies at i ^ (r * PIECES / 8), so that the
// pieces which a warp touches at once lie in different banks.
template <int PIECES>
__device__ __forceinline__ int staged_piece(int row, int piece) {
    return piece ^ (row / (8 / PIECES) & (PIECES - 1));
}

// Copies ROWS staged rows of 8 PIECES outputs to memory, whole lines at a time.
template <int ROWS, int PIECES>
__device__ __forceinline__ void store_staged(bf16* out, const WideTarget& t, uint32_t staging,
                                             int row) {
    const bool aligned = t.out_row % 8 == 0;
#pragma unroll
    for (int first = 0; first < ROWS * PIECES; first += 128) {
        const int r = (first + t.thread) / PIECES, piece = t.thread % PIECES;
        // 128 threads may be more than a last part of the rows needs.
        if (ROWS * PIECES % 128 != 0 && r >= ROWS) break;
        const int output = t.output + 8 * piece;
        const uint4 values =
            load_shared16(staging + 16 * (r * PIECES + staged_piece<PIECES>(r, piece)));
        if (row + r < t.rows_end && output < t.outputs_end) {
            store_eight(out + static_cast<size_t>(row + r) * t.out_row + output, values,
                        t.outputs_end - output, aligned);
        }
    }
}

// Whether the copy engine stores `count` rows: it knows nothing of live ones.
template <class T>
__device__ __forceinline__ bool is_bulk(const WideParams& p, const WideTarget& t, int row,
                                        int count) {
    return T::BULK && p.bulk && row + count <= t.rows_end;
}

// The buffer of a part, once what was in it has been read.
template <class T>
__device__ __forceinline__ uint32_t part_buffer(const WideTarget& t, uint32_t staging, int part) {
    if (T::BULK && t.thread == 0) {
        if (part == 0) copy_out_wait_read<0>();
        if (part != 0) copy_out_wait_read<1>();
    }
    consumer_sync(t);
    return T::BULK ? staging + part % 2 * T::PART_BYTES : staging;
}

// Sends a part of ROWS rows by 8 PIECES outputs of bf16 on its way.
template <class T, int ROWS, int PIECES>
__device__ __forceinline__ void store_part(const WideParams& p, const WideTarget& t,
                                           uint32_t buffer, int row) {
    if (T::BULK) copy_out_fence();
    consumer_sync(t);
    if (!is_bulk<T>(p, t, t.row + row, ROWS)) {
        store_staged<ROWS, PIECES>(static_cast<bf16*>(p.out), t, buffer, t.row + row);
    } else if (t.thread == 0) {
        copy_tile_out(buffer, p.target, t.output, t.row + row, 0);
    }
    // A group for every part, if only an empty one: waits count them.
    if (T::BULK && t.thread == 0) copy_out_commit();
}

template <class T>
__device__ __forceinline__ void store_bf16(const WideParams& p, const WideTarget& t,
                                           uint32_t staging, const float (&d)[T::ROWS / 2]) {
    const int lane = t.thread % 32, warp = t.thread / 32;
    // Stored matrices: outputs 0-7 and 8-15 of rows 0-7, then of rows 8-15.
    const int r = lane / 16 * 8 + lane % 8, piece = 2 * warp + lane / 8 % 2;
    const uint32_t at = 16 * (8 * r + staged_piece<8>(r, piece));
#pragma unroll
    for (int row = 0; row < T::ROWS; row += T::PART_ROWS_BF16) {
        const uint32_t buffer = part_buffer<T>(t, staging, row / T::PART_ROWS_BF16);
#pragma unroll
        for (int i = 0; i < T::PART_ROWS_BF16; i += 16) {
            const float* v = d + (row + i) / 2;
            store_transposed(buffer + at + i * 128, pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]),
                             pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
        }
        store_part<T, T::PART_ROWS_BF16, 8>(p, t, buffer, row);
    }
}

// 32 outputs of 64 weight rows; `t` counts outputs after the activation.
template <class T>
__device__ __forceinline__ void store_swiglu(const WideParams& p, const WideTarget& t,
                                             uint32_t staging, const float (&d)[T::ROWS / 2]) {
    const int r = t.thread % 16, piece = t.thread / 32;
    const uint32_t at = 16 * (4 * r + staged_piece<4>(r, piece));
#pragma unroll
    for (int row = 0; row < T::ROWS; row += T::PART_ROWS_BF16) {
        const uint32_t buffer = part_buffer<T>(t, staging, row / T::PART_ROWS_BF16);
#pragma unroll
        for (int i = 0; i < T::PART_ROWS_BF16; i += 16) {
            const float* v = d + (row + i) / 2;
            store_transposed(buffer + at + i * 64,
                             pack_bf16(silu(v[0]) * v[2], silu(v[1]) * v[3]),
                             pack_bf16(silu(v[4]) * v[6], silu(v[5]) * v[7]));
        }
        store_part<T, T::PART_ROWS_BF16, 4>(p, t, buffer, row);
    }
}

// Rows row.. of a part straight from registers: eight lanes hold eight neighbouring outputs.
template <class T>
__device__ __forceinline__ void store_f32_rows(const WideParams& p, const WideTarget& t, int row,
                                               const float* d) {
    const int lane = t.thread % 32, first = t.row + row + 2 * (lane % 4);
    const int output = t.output + t.thread / 32 * 16 + lane / 4;
    const bool low = output < t.outputs_end, high = output + 8 < t.outputs_end;
    float* to = static_cast<float*>(p.out) + t.slice * p.out_slice +
                static_cast<size_t>(first) * t.out_row + output;
    int left = t.rows_end - first;
#pragma unroll
    for (int i = 0; i < T::PART_ROWS / 2; i += 4) {
        if (left > 0 && low) to[0] = d[i];
        if (left > 1 && low) to[t.out_row] = d[i + 1];
        if (left > 0 && high) to[8] = d[i + 2];
        if (left > 1 && high) to[t.out_row + 8] = d[i + 3];
        to += 8 * static_cast<size_t>(t.out_row);
        left -= 8;
    }
}

// As store_f32, added to what is there; the values of two pieces are read before any is written,
// since memory answers late.
template <class T>
__device__ __forceinline__ void add_f32(float* out, const WideTarget& t,
                                        const float (&d)[T::ROWS / 2]) {
    constexpr int PIECES = 2;
    const int lane = t.thread % 32, row = t.row + 2 * (lane % 4);
    const int output = t.output + t.thread / 32 * 16 + lane / 4;
    const bool low = output < t.outputs_end, high = output + 8 < t.outputs_end;
    float* to = out + static_cast<size_t>(row) * t.out_row + output;
    const size_t step = 8 * static_cast<size_t>(t.out_row);
    int left = t.rows_end - row;
#pragma unroll
    for (int first = 0; first < T::ROWS / 8; first += PIECES) {
        float sum[PIECES][4];
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const float* from = to + i * step;
            const int rows = left - 8 * i;
            sum[i][0] = rows > 0 && low ? from[0] : 0.0f;
            sum[i][1] = rows > 1 && low ? from[t.out_row] : 0.0f;
            sum[i][2] = rows > 0 && high ? from[8] : 0.0f;
            sum[i][3] = rows > 1 && high ? from[t.out_row + 8] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const float* v = d + 4 * (first + i);
            if (left > 0 && low) to[0] = sum[i][0] + v[0];
            if (left > 1 && low) to[t.out_row] = sum[i][1] + v[1];
            if (left > 0 && high) to[8] = sum[i][2] + v[2];
            if (left > 1 && high) to[t.out_row + 8] = sum[i][3] + v[3];
            to += step;
            left -= 8;
        }
    }
}

// Two tiles of 32 outputs, rows of 128 bytes, swizzled as the copy engine does: every store of a
// warp meets 32 banks.
template <class T>
__device__ __forceinline__ void store_f32(const WideParams& p, const WideTarget& t,
                                          uint32_t staging, const float (&d)[T::ROWS / 2]) {
    const int lane = t.thread % 32, warp = t.thread / 32;
    uint32_t at[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = 2 * (lane % 4) + i % 2, column = warp % 2 * 16 + i / 2 * 8 + lane / 4;
        at[i] = warp / 2 * (T::PART_BYTES / 2) + row * 128 +
                16 * staged_piece<8>(row, column / 4) + column % 4 * 4;
    }
#pragma unroll
    for (int row = 0; row < T::ROWS; row += T::PART_ROWS) {
        if (!is_bulk<T>(p, t, t.row + row, T::PART_ROWS)) {
            store_f32_rows<T>(p, t, row, d + row / 2);
            continue;
        }
        const uint32_t buffer = part_buffer<T>(t, staging, row / T::PART_ROWS);
#pragma unroll
        for (int i = 0; i < T::PART_ROWS / 2; i++) {
            store_shared(buffer + at[i % 4] + i / 4 * 1024, d[row / 2 + i]);
        }
        copy_out_fence();
        consumer_sync(t);
        if (t.thread == 0) {
            const int y = t.row + row;
            copy_tile_out(buffer, p.target, t.output, y, t.slice);
            copy_tile_out(buffer + T::PART_BYTES / 2, p.target, t.output + 32, y, t.slice);
            copy_out_commit();
        }
    }
}

template <class T>
__device__ __forceinline__ void store_sums(const WideParams& p, WideTarget t, uint32_t staging,
                                           const typename T::Sums& sums) {
    if (p.output == STORE_BF16) {
        store_bf16<T>(p, t, staging, sums);
    } else if (p.output == STORE_F32) {
        store_f32<T>(p, t, staging, sums);
    } else if (p.output == STORE_ADD) {
        add_f32<T>(static_cast<float*>(p.out), t, sums);
    } else {
        t.output /= 2;
        t.outputs_end /= 2;
        store_swiglu<T>(p, t, staging, sums);
    }
}
