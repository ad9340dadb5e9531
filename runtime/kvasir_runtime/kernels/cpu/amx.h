// AMX: eight tiles of 16 rows of 64 bytes, and the product of two blocks of rows with two tiles of columns, whose lines are
// pairs of bfloat16 along the axis that is summed over.
//
// Sums are float32 but not those of the AVX-512 instruction: AMX adds 16 even and 16 odd products apart.
// KVASIR_AMX_EMULATED replaces the tiles by arrays, to test everything but the instructions where there are none.
#pragma once

#include "simd.h"

#ifdef __AVX512BF16__
namespace KVASIR_ISA {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

#ifndef KVASIR_AMX_EMULATED
#define KVASIR_TILE_CONFIGURE(config) asm volatile("ldtilecfg %0" ::"m"(config))
#define KVASIR_TILE_RELEASE() asm volatile("tilerelease")
#define KVASIR_TILE_ZERO(t) asm volatile("tilezero %%tmm" #t ::)
#define KVASIR_TILE_LOAD(t, from, stride) \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(from), "r"(int64_t(stride)) : "memory")
#define KVASIR_TILE_STORE(t, to, stride) \
  asm volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(to), "r"(int64_t(stride)) : "memory")
#define KVASIR_TILE_DOT(c, a, b) asm volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
#else
static thread_local uint8_t tile_bytes[8][16][64];
static thread_local TileConfig tile_config;

[[maybe_unused]] static void tile_dot(int c, int a, int b) {
  for (int m = 0; m < tile_config.rows[c]; ++m) {
    auto* sums = reinterpret_cast<float*>(tile_bytes[c][m]);
    for (int k = 0; k < tile_config.row_bytes[a] / 4; ++k)
      for (int n = 0; n < 16; ++n)
        for (int half = 0; half < 2; ++half)
          sums[n] += widen(reinterpret_cast<bfloat16*>(tile_bytes[a][m])[2 * k + half]) *
                     widen(reinterpret_cast<bfloat16*>(tile_bytes[b][k])[2 * n + half]);
  }
}

[[maybe_unused]] static void tile_copy(int t, uint8_t* memory, int64_t stride, bool load) {
  for (int row = 0; row < tile_config.rows[t]; ++row)
    if (load) __builtin_memcpy(tile_bytes[t][row], memory + row * stride, tile_config.row_bytes[t]);
    else __builtin_memcpy(memory + row * stride, tile_bytes[t][row], tile_config.row_bytes[t]);
}

#define KVASIR_TILE_CONFIGURE(config) tile_config = config
#define KVASIR_TILE_RELEASE() __builtin_memset(&tile_config, 0, sizeof tile_config)
#define KVASIR_TILE_ZERO(t) __builtin_memset(tile_bytes[t], 0, 1024)
#define KVASIR_TILE_LOAD(t, from, stride) tile_copy(t, (uint8_t*)(from), stride, true)
#define KVASIR_TILE_STORE(t, to, stride) tile_copy(t, (uint8_t*)(to), stride, false)
#define KVASIR_TILE_DOT(c, a, b) tile_dot(c, a, b)
#endif

constexpr int64_t AMX_ROWS = 16, AMX_K = 32;

// Tiles 0 to 3 are sums, of rows a (16) and b (`low` of them) times two tiles of columns; 4 and 5 rows, 6 and 7 columns.
inline TileConfig config_of(int64_t high, int64_t low) {
  TileConfig config;
  const int64_t rows[8] = {high, high, low, low, high, low, AMX_ROWS, AMX_ROWS};
  for (int t = 0; t < 8; ++t) {
    config.rows[t] = static_cast<uint8_t>(rows[t] ? rows[t] : 1);
    config.row_bytes[t] = 64;
  }
  return config;
}

// Adds to tiles 0 to 3. a: rows, a_step bytes apart, the second block at `low`; b: columns, b_step bytes from pair to pair.
// between: called before each of the `steps` of AMX_K.
template <bool TWO_BLOCKS, bool TWO_TILES, class Between>
KVASIR_INLINE void tile_dots(const void* a, const void* low, int64_t a_step, const void* b, int64_t b_step, int64_t steps,
                             const Between& between) {
  const auto *high_row = static_cast<const uint8_t*>(a), *low_row = static_cast<const uint8_t*>(low);
  const auto* column = static_cast<const uint8_t*>(b);
  for (int64_t i = 0; i < steps; ++i, high_row += 2 * AMX_K, low_row += 2 * AMX_K, column += AMX_K / 2 * b_step) {
    between();
    KVASIR_TILE_LOAD(4, high_row, a_step);
    KVASIR_TILE_LOAD(6, column, b_step);
    KVASIR_TILE_DOT(0, 4, 6);
    if (TWO_TILES) {
      KVASIR_TILE_LOAD(7, column + 64, b_step);
      KVASIR_TILE_DOT(1, 4, 7);
    }
    if (TWO_BLOCKS) {
      KVASIR_TILE_LOAD(5, low_row, a_step);
      KVASIR_TILE_DOT(2, 5, 6);
      if (TWO_TILES) KVASIR_TILE_DOT(3, 5, 7);
    }
  }
}

}  // namespace KVASIR_ISA
#endif
