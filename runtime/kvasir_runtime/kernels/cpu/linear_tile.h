// What the products of all kinds of weights share: how rows and panels are cut into tasks, and what happens to a sum.
#pragma once

#include "linear.h"
#include "vector.h"

#ifdef __AVX512F__
namespace KVASIR_ISA {

using kvasir::Linear;
using kvasir::PANEL_TILES;
using kvasir::Product;
using kvasir::TILE;

KVASIR_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
KVASIR_INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
KVASIR_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

KVASIR_INLINE __m512 masked_load(__mmask16 there, const bfloat16* from) {
  return widen16(_mm256_maskz_loadu_epi16(there, from));
}
KVASIR_INLINE __m512 masked_load(__mmask16 there, const float* from) { return _mm512_maskz_loadu_ps(there, from); }
KVASIR_INLINE __m512 whole_load(const bfloat16* from) { return widen16(_mm256_loadu_si256((const __m256i*)from)); }
KVASIR_INLINE __m512 whole_load(const float* from) { return _mm512_loadu_ps(from); }
KVASIR_INLINE void whole_store(bfloat16* to, __m512 v) { _mm256_storeu_si256((__m256i*)to, narrow16(v)); }
KVASIR_INLINE void whole_store(float* to, __m512 v) { _mm512_storeu_ps(to, v); }
KVASIR_INLINE void masked_store(bfloat16* to, __mmask16 there, __m512 v) {
  _mm256_mask_storeu_epi16(to, there, narrow16(v));
}
KVASIR_INLINE void masked_store(float* to, __mmask16 there, __m512 v) { _mm512_mask_storeu_ps(to, there, v); }

// GATED and WHOLE are constants so that the loops unroll and sums stay in registers. WHOLE: all columns are there, and
// stores need no mask, which processors take several times as long for.
template <class T, bool GATED, bool WHOLE, int MR, int NR>
KVASIR_INLINE void put(__m512 (&acc)[MR][NR], const Linear& w, const Product& p, int64_t m, int64_t first) {
  for (int i = 0; i < MR; ++i) {
    T* out = static_cast<T*>(p.out) + (m + i) * w.outputs + first;
    const T* residual = p.residual ? static_cast<const T*>(p.residual) + (m + i) * w.outputs + first : nullptr;
    for (int j = 0; j < NR; j += GATED ? 2 : 1) {
      __m512 value = acc[i][j];
      if (GATED) value = _mm512_mul_ps(silu16(value), acc[i][j + 1 < NR ? j + 1 : j]);
      const int64_t column = (GATED ? j / 2 : j) * TILE;
      if (WHOLE) {
        if (residual) value = _mm512_add_ps(value, whole_load(residual + column));
        whole_store(out + column, value);
      } else {
        const __mmask16 there = first16(w.outputs - first - column);
        if (residual) value = _mm512_add_ps(value, masked_load(there, residual + column));
        masked_store(out + column, there, value);
      }
    }
  }
}

// Finishes MR rows of NR neighbouring tiles, from `tile` on, and writes them to rows m.. of out.
template <class T, int MR, int NR>
KVASIR_INLINE void finish(__m512 (&acc)[MR][NR], const Linear& w, const Product& p, int64_t m, int64_t tile) {
  if (w.bias) {
    for (int j = 0; j < NR; ++j) {
      const __m512 bias = _mm512_loadu_ps(w.bias + (tile + j) * TILE);
      for (int i = 0; i < MR; ++i) acc[i][j] = _mm512_add_ps(acc[i][j], bias);
    }
  }
  const int64_t first = (w.gated ? tile / 2 : tile) * TILE;
  const bool whole = first + (w.gated ? (NR + 1) / 2 : NR) * TILE <= w.outputs;
  if (whole && w.gated) put<T, true, true>(acc, w, p, m, first);
  else if (whole) put<T, false, true>(acc, w, p, m, first);
  else if (w.gated) put<T, true, false>(acc, w, p, m, first);
  else put<T, false, false>(acc, w, p, m, first);
}

// The weights that come next, fetched evenly while `strips` strips of rows use these. A single strip reads memory as it
// goes, and the processor's own prefetchers do that best: then `width` is 0.
struct Ahead {
  const uint8_t *next, *end;
  int64_t width, strips;
  bool near;  // into the first-level cache
  int64_t owed = 0;

  // Called before `lines` times `width` lines are used.
  KVASIR_INLINE void fetch(int64_t lines) {
    owed += lines * width;
    if (owed < strips) return;
    const int64_t count = owed / strips, left = (end - next + 63) / 64;
    owed -= count * strips;
    const uint8_t* from = next;
    const uint8_t* to = from + (count < left ? count : left) * 64;
    next = to;
    for (; from < to; from += 64) {
      if (near) _mm_prefetch(from, _MM_HINT_T0);
      else _mm_prefetch(from, _MM_HINT_T1);
    }
  }
};

// Rows are cut into blocks that share a panel while it is in the cache near the core, and blocks into strips that share
// registers. A task is a block times a panel, or a part of a panel where there are fewer panels than threads want.
constexpr int STRIP = 6;
constexpr int64_t BLOCK_ROWS = 240;

struct Cut {
  int64_t blocks, parts, part_tiles, tasks;
};

KVASIR_INLINE Cut cut(const Linear& w, int64_t rows, int nth) {
  const int64_t blocks = ceil_div(rows, BLOCK_ROWS), panels = ceil_div(w.tiles, PANEL_TILES);
  int64_t part_tiles = PANEL_TILES;
  const int64_t least_tiles = w.gated ? 2 : 1;
  while (part_tiles > least_tiles && blocks * panels * (PANEL_TILES / part_tiles) < 3 * nth) part_tiles /= 2;
  if (nth == 1) part_tiles = PANEL_TILES;
  const int64_t parts = ceil_div(w.tiles, part_tiles);
  return {blocks, parts, part_tiles, blocks * parts};
}

// Calls task(begin, end, tile, tiles) of rows and tiles of one panel, for those that this thread claims.
template <class Task>
KVASIR_INLINE void each_task(int tid, int nth, const Linear& w, int64_t rows, const Task& task) {
  const Cut c = cut(w, rows, nth);
  for (int64_t at; (at = kvasir::claim(tid, nth, c.tasks)) >= 0;) {
    const int64_t block = at / c.parts, tile = at % c.parts * c.part_tiles;
    task(rows * block / c.blocks, rows * (block + 1) / c.blocks, tile, least(c.part_tiles, w.tiles - tile));
  }
}

}  // namespace KVASIR_ISA
#endif
