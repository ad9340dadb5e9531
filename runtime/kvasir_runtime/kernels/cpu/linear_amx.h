// Products by AMX, for 16 rows and more: the lines of a bfloat16 weight are the rows of AMX's second tile. A weight of 8 or
// 4 bits is unpacked to such lines, a panel at a time, which stay in the cache near the core for all rows of a task; rows
// are then not rounded to 8 bits, and the values of the weight to bfloat16.
//
// A token's bits depend on whether its step has 16 rows or more, since AMX sums in another order. `Linear::amx` permits
// this kernel weight by weight, so that no result depends on what else the process computed.
#pragma once

#include "amx.h"
#include "linear_form.h"
#include "linear_tile.h"

#ifdef __AVX512BF16__
namespace KVASIR_ISA {

// Fewer rows do not pay for the unpacking.
constexpr int64_t UNPACKED_ROWS = 64;

// rows: of this weight.
inline bool takes_amx(const Linear& w, const Product& p, int64_t rows) {
  const bool whole = w.kind == kvasir::Weights::BFLOAT16;
  return w.amx && p.type == kvasir::BFLOAT16 && rows >= (whole ? AMX_ROWS : UNPACKED_ROWS) && w.k % AMX_K == 0;
}

// sums: (2, 2, 16, 16) of two blocks of rows times one or two tiles. fetched: lines of what comes next for each AMX_K.
template <bool TWO_BLOCKS, bool TWO_TILES>
void amx_sums(const uint16_t* x, int64_t high, int64_t k, const uint8_t* w, int64_t step, int64_t fetched, float* sums,
              Ahead& ahead) {
  KVASIR_TILE_ZERO(0);
  if (TWO_TILES) KVASIR_TILE_ZERO(1);
  if (TWO_BLOCKS) KVASIR_TILE_ZERO(2);
  if (TWO_BLOCKS && TWO_TILES) KVASIR_TILE_ZERO(3);
  const auto between = [&] { ahead.fetch(fetched); };
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
    for (int j = 0; j < NR; ++j) {
      acc[0][j] = _mm512_loadu_ps(sums + i / 16 * 512 + j * 256 + i % 16 * 16);
      if (w.units) acc[0][j] = _mm512_mul_ps(acc[0][j], _mm512_loadu_ps(w.units + (tile + j) * TILE));
    }
    finish<bfloat16>(acc, w, p, m + i, tile);
  }
}

// Rows [begin, end) times the tiles [tile, tile + tiles), whose lines are at `from`, `step` bytes from pair to pair.
inline void rows_amx(const Linear& w, const Product& p, int64_t begin, int64_t end, int64_t tile, int64_t tiles,
                     const uint8_t* from, int64_t step, int64_t fetched, Ahead& ahead) {
  alignas(64) float sums[4 * 256];
  for (int64_t m = begin; m < end; m += 2 * AMX_ROWS) {
    const int64_t high = least(AMX_ROWS, end - m), low = least(AMX_ROWS, end - m - high);
    const TileConfig config = config_of(high, low);
    KVASIR_TILE_CONFIGURE(config);
    const uint16_t* x = static_cast<const uint16_t*>(p.x) + m * w.k;
    for (int64_t t = 0; t < tiles; t += 2) {
      const bool two = t + 1 < tiles;
      const auto sum = low && two ? amx_sums<true, true>
                       : low      ? amx_sums<true, false>
                       : two      ? amx_sums<false, true>
                                  : amx_sums<false, false>;
      sum(x, high, w.k, from + t * 64, step, fetched, sums, ahead);
      if (two) amx_finish<2>(sums, w, p, m, high + low, tile + t);
      else amx_finish<1>(sums, w, p, m, high + low, tile + t);
    }
  }
  KVASIR_TILE_RELEASE();
}

// Where the panel of a tile lies, in lines of 64 bytes of `per_line` values of k.
struct Panel {
  int64_t width, inside;
  const uint8_t* base;
  Ahead ahead;
};

inline Panel panel_of(const Linear& w, int64_t tile, int64_t per_line, int64_t rows) {
  const int64_t lines = w.k / per_line, panel = tile / PANEL_TILES, width = least(PANEL_TILES, w.tiles - panel * PANEL_TILES);
  const uint8_t *base = w.weight + panel * PANEL_TILES * lines * 64, *end = w.weight + w.tiles * lines * 64;
  const uint8_t* next = base + lines * width * 64;
  const int64_t strips = ceil_div(rows, 2 * AMX_ROWS);
  return {width, tile - panel * PANEL_TILES, base, {next, next + least(lines * 256, end - next), width, strips, false}};
}

inline void task_amx(const Linear& w, const Product& p, int64_t begin, int64_t end, int64_t tile, int64_t tiles) {
  Panel panel = panel_of(w, tile, 2, end - begin);
  rows_amx(w, p, begin, end, tile, tiles, panel.base + panel.inside * 64, panel.width * 64, AMX_K / 4, panel.ahead);
}

KVASIR_INLINE __m512i lanes() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

// Four values of k for 16 outputs as two lines; each a byte of a lane.
KVASIR_INLINE void unpack_four(Ints numbers, Floats scales, Floats offsets, uint16_t* to, int64_t stride) {
  const auto bytes = reinterpret_cast<__m512i>(numbers);
  const auto scale = reinterpret_cast<__m512>(scales), offset = reinterpret_cast<__m512>(offsets);
  const __m512i low = _mm512_set1_epi32(255);
  // 0, 16, 1, 17 and so on: the two values of an output beside one another.
  const __m512i order = _mm512_add_epi32(_mm512_set1_epi32(16 << 16), _mm512_mullo_epi32(_mm512_set1_epi32(0x10001), lanes()));
  for (int pair = 0; pair < 2; ++pair) {
    const __m512i first = _mm512_and_si512(_mm512_srli_epi32(bytes, 16 * pair), low);
    const __m512i second = _mm512_and_si512(_mm512_srli_epi32(bytes, 16 * pair + 8), low);
    const __m512 even = _mm512_fmsub_ps(_mm512_cvtepi32_ps(first), scale, offset);
    const __m512 odd = _mm512_fmsub_ps(_mm512_cvtepi32_ps(second), scale, offset);
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
    _mm512_storeu_si512(to + pair * stride, _mm512_permutexvar_epi16(order, both));
  }
}

// Tiles of a panel as lines of bfloat16, (k / 2, tiles, 16, 2), relative to the units of their outputs.
template <class F>
void unpack_tiles(const Linear& w, const Panel& panel, int64_t tile, int64_t tiles, uint16_t* to) {
  const int64_t groups = w.k / w.group, stride = tiles * 2 * TILE;
  const int64_t first = ((tile - panel.inside) * (groups / w.sharing) + panel.inside) * TILE;
  for (int64_t t = 0; t < tiles; ++t) {
    const uint8_t* line = panel.base + (panel.inside + t) * 64;
    uint16_t* next = to + t * 2 * TILE;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t at = first + scales_of(w, g, panel.width) + t * TILE;
      const Floats scale = F::scales(w, static_cast<const typename F::Scale*>(w.scales) + at);
      const Floats offset = F::MINIMA ? load_float16(w.minima + at) : scale * splat(F::ZERO);
      for (int64_t n = w.group / F::PER_LINE; n > 0; --n, line += panel.width * 64) {
        for (int half = 0; half < HALVES<F>; ++half, next += 2 * stride)
          unpack_four(F::numbers(w, load_as<Ints>(line), half), scale, offset, next, stride);
      }
    }
  }
}

template <class F>
void task_unpacked(int tid, const Linear& w, const Product& p, int64_t begin, int64_t end, int64_t tile, int64_t tiles) {
  Panel panel = panel_of(w, tile, F::PER_LINE, end - begin);
  auto* lines = static_cast<uint16_t*>(kvasir::own_scratch(tid, kvasir::SLOT_LINEAR, PANEL_TILES * TILE * w.k * 2));
  unpack_tiles<F>(w, panel, tile, tiles, lines);
  const auto* from = reinterpret_cast<const uint8_t*>(lines);
  rows_amx(w, p, begin, end, tile, tiles, from, tiles * 64, AMX_K / (2 * F::PER_LINE), panel.ahead);
}

}  // namespace KVASIR_ISA
#endif
