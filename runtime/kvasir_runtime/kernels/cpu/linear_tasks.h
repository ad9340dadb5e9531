// How a product is cut into tasks, for all kinds of weights and processors.
#pragma once

#include "linear.h"
#include "simd.h"

namespace KVASIR_ISA {

using kvasir::Grouped;
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
    const uint8_t* from = next;
    for (int64_t count = due(lines); count > 0; --count, from += 64) {
      if (near) __builtin_prefetch(from);
      else __builtin_prefetch(from, 0, 2);
    }
  }

  // The same for a caller that fetches them itself: how many lines from `next` on, which is then behind them.
  KVASIR_INLINE int64_t due(int64_t lines) {
    owed += lines * width;
    if (owed < strips) return 0;
    const int64_t count = owed / strips, left = (end - next + 63) / 64;
    owed -= count * strips;
    next += least(count, left) * 64;
    return least(count, left);
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

// Calls task(weight, rows, begin, end, tile, tiles) of a weight with so many rows, for rows and tiles of one panel that this
// thread claims.
template <class Task>
KVASIR_INLINE void each_task(int tid, int nth, const Grouped& g, const Task& task) {
  const auto cut_of = [&](int64_t i) { return cut(*g.weights[i], g.first[i + 1] - g.first[i], nth); };
  int64_t tasks = 0;
  for (int64_t i = 0; i < g.count; ++i) tasks += cut_of(i).tasks;
  int64_t index = 0, before = 0;  // the weight of the last task, and the tasks of those in front of it
  Cut c = cut_of(0);
  for (int64_t at; (at = kvasir::claim(tid, nth, tasks)) >= 0;) {
    if (at < before) {
      index = before = 0;
      c = cut_of(0);
    }
    for (; at >= before + c.tasks; c = cut_of(++index)) before += c.tasks;
    const int64_t block = (at - before) / c.parts, tile = (at - before) % c.parts * c.part_tiles;
    const int64_t first = g.first[index], rows = g.first[index + 1] - first;
    const Linear& w = *g.weights[index];
    task(w, rows, first + rows * block / c.blocks, first + rows * (block + 1) / c.blocks, tile,
         least(c.part_tiles, w.tiles - tile));
  }
}

// Numbers of all rows from which on they are prepared together.
constexpr int64_t PREPARED_ALONE = 1 << 14;

// What all threads share of the `bytes` that rows take when they are prepared.
KVASIR_INLINE int64_t shared_bytes(const Linear& w, int64_t rows, int64_t bytes) {
  return rows * w.k > PREPARED_ALONE ? bytes : 0;
}

// Rows are prepared before the products, by each thread for itself where they are few, which is quicker than waiting for
// one another, else by all together, with a barrier behind it.
//
// rows: of all weights; bytes: that they take. own: bytes each thread needs besides.
// prepare(memory, begin, end) of rows; task(memory, own, ...) as in each_task.
template <class Prepare, class Task>
KVASIR_INLINE void with_prepared_rows(int tid, int nth, const Grouped& g, int64_t rows, int64_t bytes, int64_t own,
                                      const Prepare& prepare, const Task& task) {
  const bool shared = shared_bytes(*g.weights[0], rows, bytes) > 0;
  if (!shared && kvasir::passed(tid)) return;
  auto* mine = static_cast<uint8_t*>(kvasir::own_scratch(tid, kvasir::SLOT_LINEAR, own + (shared ? 0 : bytes)));
  void* memory = shared ? kvasir::shared_scratch(kvasir::SLOT_LINEAR) : mine + own;
  if (shared) {
    for (int64_t m; (m = kvasir::claim(tid, nth, rows)) >= 0;) prepare(memory, m, m + 1);
    kvasir::barrier(tid, nth);
  } else {
    prepare(memory, 0, rows);
  }
  each_task(tid, nth, g, [&](const Linear& w, int64_t of_weight, int64_t begin, int64_t end, int64_t tile, int64_t tiles) {
    task(memory, mine, w, of_weight, begin, end, tile, tiles);
  });
}

}  // namespace KVASIR_ISA
