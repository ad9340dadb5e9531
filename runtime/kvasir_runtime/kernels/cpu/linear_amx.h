// The product with a bfloat16 weight by AMX, for 16 rows and more: the layout's lines are the rows of AMX's second tile.
//
// A token's bits depend on whether its step has 16 rows or more, since AMX sums in another order. `Linear::amx` permits
// this kernel weight by weight, so that no result depends on what else the process computed.
#pragma once

#include "amx.h"
#include "linear_tile.h"

#ifdef __AVX512BF16__
namespace KVASIR_ISA {

inline bool takes_amx(const Linear& w, const Product& p) {
  return w.amx && p.rows >= AMX_ROWS && w.k % AMX_K == 0;
}

// sums: (2, 2, 16, 16) of two blocks of rows times one or two tiles.
template <bool TWO_BLOCKS, bool TWO_TILES>
void amx_sums(const uint16_t* x, int64_t high, int64_t k, const uint8_t* w, int64_t step, float* sums, Ahead& ahead) {
  KVASIR_TILE_ZERO(0);
  if (TWO_TILES) KVASIR_TILE_ZERO(1);
  if (TWO_BLOCKS) KVASIR_TILE_ZERO(2);
  if (TWO_BLOCKS && TWO_TILES) KVASIR_TILE_ZERO(3);
  const auto between = [&] { ahead.fetch(AMX_K / 4); };
  tile_dots<TWO_BLOCKS, TWO_TILES>(x, x + high * k, 2 * k, w, step, k / AMX_K, between);
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
