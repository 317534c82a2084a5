// Products of up to 8, 16, 32 or 64 rows a block, stored as bf16, as f32 (logits, and the slices
// of K that add_norm.cuh sums), or gated.
#include "linear.cuh"

using Tile8 = LinearTile<8, 128, 8, 1, 1>;
using Tile16 = LinearTile<16, 128, 8, 1, 1>;
using Tile32 = LinearTile<32, 128, 8, 1, 1>;
// 32 rows a warp, since a warp of 16 outputs by 64 rows spends its time on loading x.
using Tile64 = LinearTile<64, 64, 4, 2, 2>;

// Two blocks share a multiprocessor where shared memory allows.
#define LINEAR(name, Tile, Output)                                 \
    extern "C" __global__ void __launch_bounds__(Tile::THREADS, 2) \
        name(const __grid_constant__ LinearParams p) {             \
        linear<Tile, Output>(p);                                   \
    }

LINEAR(linear_bf16_8, Tile8, StoreBf16)
LINEAR(linear_bf16_16, Tile16, StoreBf16)
LINEAR(linear_bf16_32, Tile32, StoreBf16)
LINEAR(linear_bf16_64, Tile64, StoreBf16)
LINEAR(linear_f32_8, Tile8, StoreF32)
LINEAR(linear_f32_16, Tile16, StoreF32)
LINEAR(linear_f32_32, Tile32, StoreF32)
LINEAR(linear_f32_64, Tile64, StoreF32)
LINEAR(linear_swiglu_8, Tile8, StoreSwiglu)
LINEAR(linear_swiglu_16, Tile16, StoreSwiglu)
LINEAR(linear_swiglu_32, Tile32, StoreSwiglu)
LINEAR(linear_swiglu_64, Tile64, StoreSwiglu)
