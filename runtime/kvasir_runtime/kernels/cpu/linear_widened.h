// The product with a bfloat16 weight on processors without dot products of bfloat16: both sides are widened to float32,
// which is exact, and multiplied and added with one rounding.
#pragma once

#include "linear_finish.h"

#ifndef __AVX512BF16__
namespace KVASIR_ISA {

// Pairs of k in a block: a panel's lines of it, those of the next one, which are asked for meanwhile, and the rows' numbers
// share the first-level cache. For so many rows the lines of a block, of half as many pairs, are widened once.
constexpr int64_t BLOCK_PAIRS = 64, WIDE_PAIRS = BLOCK_PAIRS / 2, WIDE_ROWS = 16 * STRIP;
constexpr int64_t WIDE_BYTES = WIDE_PAIRS * 2 * PANEL_WIDTH * 4;

// Tiles beside one another whose sums stay in registers.
KVASIR_INLINE constexpr int widened_tiles(int rows) { return kLanes == 16 || rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

inline int64_t widened_bytes(const Linear& w, int64_t rows) { return rows * w.k * 4; }

// One value of each pair: the one of the lower bits or of the upper ones.
KVASIR_INLINE Floats half_of(Words pair, int upper) {
  return reinterpret_cast<Floats>(upper ? pair & 0xffff0000u : pair << 16);
}

// sum += a * b. PINNED: GCC moves sums of six rows to the stack around a multiplication of its own.
template <bool PINNED>
KVASIR_INLINE void add_product(Floats& sum, Floats a, Floats b) {
#ifdef __x86_64__
  if constexpr (PINNED) {
    asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return;
  }
#endif
  sum = multiply_add(a, b, sum);
}

// Lines of so many tiles for add_widened's WIDE; those of the next block are prefetched.
inline void widen_lines(const uint8_t* lines, int64_t step, int64_t pairs, int64_t tiles, uint8_t* to) {
  for (int64_t p = 0; p < pairs; ++p, lines += step, to += tiles * 128) {
    for (int64_t t = 0; t < tiles; ++t) __builtin_prefetch(lines + WIDE_PAIRS * step + 64 * t);
    for (int64_t at = 0; at < tiles * 64; at += kLanes * 4) {
      const Words pair = load_as<Words>(lines + at);
      store(reinterpret_cast<float*>(to + at), half_of(pair, 0));
      store(reinterpret_cast<float*>(to + tiles * 64 + at), half_of(pair, 1));
    }
  }
}

inline void widen_rows(const Linear& w, const Product& p, float* to, int64_t begin, int64_t end) {
  const auto* x = static_cast<const bfloat16*>(p.x);
  int64_t i = begin * w.k;
  for (; i + kLanes <= end * w.k; i += kLanes) store(to + i, load(x + i));
  for (; i < end * w.k; ++i) to[i] = widen(x[i]);
}

// sums (MR, NT tiles) += x (MR, 2 * pairs) * lines. step: bytes from one pair's lines to the next. odd: of the last pair
// the weight has one value only. WIDE: a pair's lines are those of its lower values and behind them those of its upper
// ones, in float32.
template <int MR, int NT, bool WIDE>
void add_widened(const float* x, int64_t ldx, const uint8_t* lines, int64_t step, int64_t pairs, bool odd, float* sums) {
  constexpr int VECTORS = NT * TILE_VECTORS;
  Floats acc[MR][VECTORS];
#pragma GCC unroll 6
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) acc[i][v] = load(sums + i * PANEL_WIDTH + v * kLanes);
  }
  // One value of k times the lower or upper half of each pair. A number of a row serves vectors beside one another, few
  // enough that they, the sums and the number fit the registers.
  constexpr int BESIDE = kLanes == 16 ? VECTORS : 2;
  const auto add = [&](int upper) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int first = 0; first < VECTORS; first += BESIDE) {
      Floats weight[BESIDE];
#pragma GCC unroll 4
      for (int v = 0; v < BESIDE; ++v) {
        const uint8_t* line = lines + (first + v) * kLanes * 4;
        weight[v] = WIDE ? load_as<Floats>(line + upper * step / 2) : half_of(load_as<Words>(line), upper);
      }
#pragma GCC unroll 6
      for (int i = 0; i < MR; ++i) {
        const Floats number = splat(x[i * ldx + upper]);
#pragma GCC unroll 4
        for (int v = 0; v < BESIDE; ++v) add_product<kLanes == 8 && MR >= 4 && !WIDE>(acc[i][first + v], number, weight[v]);
      }
    }
  };
  for (int64_t p = pairs - odd; p > 0; --p, lines += step, x += 2) {
    for (int t = 0; t < NT && MR > 1 && !WIDE; ++t) __builtin_prefetch(lines + BLOCK_PAIRS * step + 64 * t);
    add(0);
    add(1);
  }
  if (odd) add(0);
#pragma GCC unroll 6
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) store(sums + i * PANEL_WIDTH + v * kLanes, acc[i][v]);
  }
}

// As add_widened for any number of tiles of a panel.
template <int MR, bool WIDE>
void add_widened_tiles(const float* x, int64_t ldx, const uint8_t* lines, int64_t step, int64_t pairs, bool odd, float* sums,
                       int64_t tiles) {
  constexpr int MOST = widened_tiles(MR);
  for (; tiles >= MOST; tiles -= MOST, lines += 64 * MOST, sums += MOST * TILE)
    add_widened<MR, MOST, WIDE>(x, ldx, lines, step, pairs, odd, sums);
  for (; tiles > 0; --tiles, lines += 64, sums += TILE) add_widened<MR, 1, WIDE>(x, ldx, lines, step, pairs, odd, sums);
}

template <bool WIDE>
void add_widened_rows(int64_t rows, const float* x, int64_t ldx, const uint8_t* lines, int64_t step, int64_t pairs,
                             bool odd, float* sums, int64_t tiles) {
  switch (rows) {
    case 1: return add_widened_tiles<1, WIDE>(x, ldx, lines, step, pairs, odd, sums, tiles);
    case 2: return add_widened_tiles<2, WIDE>(x, ldx, lines, step, pairs, odd, sums, tiles);
    case 3: return add_widened_tiles<3, WIDE>(x, ldx, lines, step, pairs, odd, sums, tiles);
    case 4: return add_widened_tiles<4, WIDE>(x, ldx, lines, step, pairs, odd, sums, tiles);
    case 5: return add_widened_tiles<5, WIDE>(x, ldx, lines, step, pairs, odd, sums, tiles);
    default: return add_widened_tiles<6, WIDE>(x, ldx, lines, step, pairs, odd, sums, tiles);
  }
}

// Rows [begin, end) times the tiles [tile, tile + tiles) of one panel. sums: (rows, PANEL_WIDTH); wide: WIDE_BYTES.
inline void task_widened(const Linear& w, const Product& p, const float* x, int64_t begin, int64_t end, int64_t tile,
                         int64_t tiles, float* sums, uint8_t* wide) {
  const int64_t lines = (w.k + 1) / 2, panel = tile / PANEL_TILES;
  const int64_t width = least(PANEL_TILES, w.tiles - panel * PANEL_TILES), step = width * 64;
  const uint8_t* base = w.weight + panel * PANEL_TILES * lines * 64 + (tile - panel * PANEL_TILES) * 64;
  const int64_t strips = ceil_div(end - begin, STRIP);
  const bool widens = end - begin >= WIDE_ROWS;
  // One row alone reads its weights in order.
  const int64_t at_once = end - begin == 1 ? lines : widens ? WIDE_PAIRS : BLOCK_PAIRS;
  __builtin_memset(sums, 0, (end - begin) * PANEL_WIDTH * 4);
  for (int64_t first = 0; first < lines; first += at_once) {
    const int64_t pairs = least(at_once, lines - first);
    const bool odd = first + pairs == lines && (w.k & 1);
    const uint8_t* from = base + first * step;
    if (widens) widen_lines(from, step, pairs, tiles, wide);
    for (int64_t i = 0, m = begin; i < strips; ++i) {
      const int64_t until = begin + (end - begin) * (i + 1) / strips;
      const float* numbers = x + m * w.k + 2 * first;
      float* to = sums + (m - begin) * PANEL_WIDTH;
      if (widens) add_widened_rows<true>(until - m, numbers, w.k, wide, tiles * 128, pairs, odd, to, tiles);
      else add_widened_rows<false>(until - m, numbers, w.k, from, step, pairs, odd, to, tiles);
      m = until;
    }
  }
  finish_rows<bfloat16>(sums, w, p, begin, end - begin, tile, tiles);
}

inline void linear_widened(int tid, int nth, const Grouped& g, const Product& p) {
  const Linear& any = *g.weights[0];
  const auto prepare = [&](void* memory, int64_t begin, int64_t end) {
    widen_rows(any, p, static_cast<float*>(memory), begin, end);
  };
  const auto task = [&](void* memory, uint8_t* own, const Linear& w, int64_t, int64_t begin, int64_t end, int64_t tile,
                        int64_t tiles) {
    task_widened(w, p, static_cast<const float*>(memory), begin, end, tile, tiles, reinterpret_cast<float*>(own + WIDE_BYTES),
                 own);
  };
  const int64_t own = WIDE_BYTES + BLOCK_ROWS * PANEL_WIDTH * 4;
  with_prepared_rows(tid, nth, g, p.rows, widened_bytes(any, p.rows), own, prepare, task);
}

}  // namespace KVASIR_ISA
#endif
