// The product with a bfloat16 weight by AMX, for 16 rows and more: the layout's lines are the rows of AMX's second tile.
//
// Sums are float32 but not those of the AVX-512 instruction: AMX adds 16 even and 16 odd products of k apart. A token's
// bits therefore depend on whether its step has 16 rows or more. `Linear::amx` permits this kernel weight by weight, so
// that no result depends on what else the process computed. KVASIR_AMX_EMULATED replaces the tiles by arrays, to test
// everything but the instructions where there are none.
#pragma once

#include "linear_tile.h"

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

inline void tile_dot(int c, int a, int b) {
  for (int m = 0; m < tile_config.rows[c]; ++m) {
    auto* sums = reinterpret_cast<float*>(tile_bytes[c][m]);
    for (int k = 0; k < tile_config.row_bytes[a] / 4; ++k)
      for (int n = 0; n < 16; ++n)
        for (int half = 0; half < 2; ++half)
          sums[n] += widen(reinterpret_cast<bfloat16*>(tile_bytes[a][m])[2 * k + half]) *
                     widen(reinterpret_cast<bfloat16*>(tile_bytes[b][k])[2 * n + half]);
  }
}

inline void tile_copy(int t, uint8_t* memory, int64_t stride, bool load) {
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

inline bool takes_amx(const Linear& w, const Product& p) {
  return w.amx && p.rows >= AMX_ROWS && w.k % AMX_K == 0;
}

// Tiles 0 to 3 are sums, of rows a (16) and b (`low` of them) times two tiles of the weight; 4 and 5 rows, 6 and 7 weights.
inline TileConfig config_of(int64_t high, int64_t low) {
  TileConfig config;
  const int64_t rows[8] = {high, high, low, low, high, low, AMX_ROWS, AMX_ROWS};
  for (int t = 0; t < 8; ++t) {
    config.rows[t] = static_cast<uint8_t>(rows[t] ? rows[t] : 1);
    config.row_bytes[t] = 64;
  }
  return config;
}

// sums: (2, 2, 16, 16) of two blocks of rows times one or two tiles.
template <bool TWO_BLOCKS, bool TWO_TILES>
void amx_sums(const uint16_t* x, int64_t high, int64_t k, const uint8_t* w, int64_t step, float* sums, Ahead& ahead) {
  KVASIR_TILE_ZERO(0);
  if (TWO_TILES) KVASIR_TILE_ZERO(1);
  if (TWO_BLOCKS) KVASIR_TILE_ZERO(2);
  if (TWO_BLOCKS && TWO_TILES) KVASIR_TILE_ZERO(3);
  for (int64_t i = 0; i < k; i += AMX_K, w += AMX_K / 2 * step) {
    ahead.fetch(AMX_K / 4);
    KVASIR_TILE_LOAD(4, x + i, 2 * k);
    KVASIR_TILE_LOAD(6, w, step);
    KVASIR_TILE_DOT(0, 4, 6);
    if (TWO_TILES) {
      KVASIR_TILE_LOAD(7, w + 64, step);
      KVASIR_TILE_DOT(1, 4, 7);
    }
    if (TWO_BLOCKS) {
      KVASIR_TILE_LOAD(5, x + high * k + i, 2 * k);
      KVASIR_TILE_DOT(2, 5, 6);
      if (TWO_TILES) KVASIR_TILE_DOT(3, 5, 7);
    }
  }
  KVASIR_TILE_STORE(0, sums, 64);
  if (TWO_TILES) KVASIR_TILE_STORE(1, sums + 256, 64);
  if (TWO_BLOCKS) KVASIR_TILE_STORE(2, sums + 512, 64);
  if (TWO_BLOCKS && TWO_TILES) KVASIR_TILE_STORE(3, sums + 768, 64);
}

template <int NR>
void amx_finish(const float* sums, const Linear& w, const Product& p, int64_t m, int64_t rows, int64_t tile) {
  for (int64_t i = 0; i < rows; ++i) {
    __m512 acc[1][NR];
    for (int j = 0; j < NR; ++j) acc[0][j] = _mm512_loadu_ps(sums + i / 16 * 512 + j * 256 + i % 16 * 16);
    finish<bfloat16>(acc, w, p, m + i, tile);
  }
}

// Rows [begin, end) times the tiles [tile, tile + tiles) of one panel.
inline void task_amx(const Linear& w, const Product& p, int64_t begin, int64_t end, int64_t tile, int64_t tiles) {
  const int64_t lines = w.k / 2, panel = tile / PANEL_TILES;
  const int64_t width = least(PANEL_TILES, w.tiles - panel * PANEL_TILES), step = width * 64;
  const uint8_t* base = w.weight + panel * PANEL_TILES * lines * 64;
  const uint8_t *next = base + lines * step, *end_of_weight = w.weight + w.tiles * lines * 64;
  const int64_t strips = ceil_div(end - begin, 2 * AMX_ROWS);
  Ahead ahead{next, next + least(lines * 256, end_of_weight - next), width, strips, false};
  alignas(64) float sums[4 * 256];
  for (int64_t m = begin; m < end; m += 2 * AMX_ROWS) {
    const int64_t high = least(AMX_ROWS, end - m), low = least(AMX_ROWS, end - m - high);
    const TileConfig config = config_of(high, low);
    KVASIR_TILE_CONFIGURE(config);
    const uint16_t* x = static_cast<const uint16_t*>(p.x) + m * w.k;
    for (int64_t t = 0; t < tiles; t += 2) {
      const uint8_t* from = base + (tile + t - panel * PANEL_TILES) * 64;
      const bool two = t + 1 < tiles;
      if (low && two) amx_sums<true, true>(x, high, w.k, from, step, sums, ahead);
      else if (low) amx_sums<true, false>(x, high, w.k, from, step, sums, ahead);
      else if (two) amx_sums<false, true>(x, high, w.k, from, step, sums, ahead);
      else amx_sums<false, false>(x, high, w.k, from, step, sums, ahead);
      if (two) amx_finish<2>(sums, w, p, m, high + low, tile + t);
      else amx_finish<1>(sums, w, p, m, high + low, tile + t);
    }
  }
  KVASIR_TILE_RELEASE();
}

}  // namespace KVASIR_ISA
#endif
