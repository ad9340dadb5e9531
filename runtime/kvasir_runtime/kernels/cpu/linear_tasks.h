// How a product is cut into tasks, for all kinds of weights and processors.
#pragma once

#include "linear.h"
#include "simd.h"

namespace KVASIR_ISA {

using kvasir::Linear;
using kvasir::PANEL_TILES;
using kvasir::Product;
using kvasir::TILE;

KVASIR_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
KVASIR_INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
KVASIR_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

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

// Rows are prepared before the products, by each thread for itself where they are few, which is quicker than waiting for
// one another, else by all together, with a barrier behind it.
//
// bytes: that all prepared rows take; shared: whether they lie in SLOT_LINEAR. own: bytes each thread needs besides.
// prepare(memory, begin, end) of rows; task(memory, own, begin, end, tile, tiles), of rows and tiles of one panel.
template <class Prepare, class Task>
KVASIR_INLINE void with_prepared_rows(int tid, int nth, const Linear& w, int64_t rows, int64_t bytes, bool shared, int64_t own,
                                      const Prepare& prepare, const Task& task) {
  if (!shared && kvasir::passed(tid)) return;
  auto* mine = static_cast<uint8_t*>(kvasir::own_scratch(tid, kvasir::SLOT_LINEAR, own + (shared ? 0 : bytes)));
  void* memory = shared ? kvasir::shared_scratch(kvasir::SLOT_LINEAR) : mine + own;
  if (shared) {
    for (int64_t m; (m = kvasir::claim(tid, nth, rows)) >= 0;) prepare(memory, m, m + 1);
    kvasir::barrier(tid, nth);
  } else {
    prepare(memory, 0, rows);
  }
  each_task(tid, nth, w, rows, [&](int64_t begin, int64_t end, int64_t tile, int64_t tiles) {
    task(memory, mine, begin, end, tile, tiles);
  });
}

// Numbers of all rows from which on they are prepared together.
constexpr int64_t PREPARED_ALONE = 1 << 14;

}  // namespace KVASIR_ISA
