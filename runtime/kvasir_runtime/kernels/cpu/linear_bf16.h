// The product with a bfloat16 weight: AVX-512 BF16 dot products, float32 sums.
//
// One or few rows read the weight once, as fast as memory gives it. Many rows are computed from a panel that lies in the
// second-level cache while the panel after it is fetched.
#pragma once

#include "linear_amx.h"
#include "linear_tile.h"

#ifdef __AVX512BF16__
namespace KVASIR_ISA {

constexpr int64_t CHUNK = 8;  // pairs of k between two looks at what to fetch

// Up to so many rows, of more than STRIP, meet two tiles at once in place of four: registers hold the sums of all of them,
// so that a weight is loaded once, as far ahead as of one strip. The next two tiles of a block of so few pairs are computed
// before others. (Xeon with AVX-512 BF16 and without AMX, one core, 96 MiB of weights, time in that of two strips: 7 rows
// 0.82, 8 and 9 rows 0.78, 10 rows 0.83, 11 rows 0.89, 12 rows 0.95. More rows have three strips, which are as fast.)
constexpr int TALL = 2 * STRIP;
constexpr int64_t TALL_PAIRS = 16;

// Values of k in a block. A few strips leave little time between two uses of a line, so their block and the next one
// share the first-level cache; some more use a block from the first level while the next waits in the second, and many
// hide the way there.
KVASIR_INLINE int64_t block_k(int64_t strips, int64_t k) {
  return strips == 1 ? k : strips <= 4 ? 128 : strips <= 12 ? 256 : 2048;
}

// How far a single strip of several rows fetches ahead. One row alone is read fastest by the processor's prefetchers; with
// more, too few loads are under way at once. (Zen 5, one core, 4 rows: 20 GB/s without, 33 with; 1 row: 35 and 34.)
constexpr int64_t FAR_BYTES = 4096;

KVASIR_INLINE __m512bh line_of(const uint8_t* w) { return (__m512bh)_mm512_loadu_si512(w); }

KVASIR_INLINE __m512bh pair_of(const uint16_t* x) {
  int32_t both;
  __builtin_memcpy(&both, x, 4);
  return (__m512bh)_mm512_set1_epi32(both);
}

// acc += x[0..MR)[2 values of k] * w[NR tiles]. What is fetched stays between the products: where GCC moves all loads to
// the front, those of 7 to 12 rows are no faster than two strips.
template <int FAR, int MR, int NR>
KVASIR_INLINE void dot(__m512 (&acc)[MR][NR], const uint16_t* x, int64_t ldx, const uint8_t* w) {
  __m512bh b[NR];
  for (int j = 0; j < NR; ++j) b[j] = line_of(w + 64 * j);
  for (int i = 0; i < MR; ++i) {
    const __m512bh a = pair_of(x + i * ldx);
    for (int j = 0; j < NR; ++j) acc[i][j] = _mm512_dpbf16_ps(acc[i][j], b[j], a);
    for (int j = i * NR / MR; j < (i + 1) * NR / MR && FAR; ++j) _mm_prefetch(w + 64 * j + FAR, _MM_HINT_T0);
    if (FAR) __asm__ volatile("" ::: "memory");
  }
}

// The same of many pairs; `step` bytes from one pair's lines to the next. What comes from memory is read by a loop as it
// stands, so that each load is one instruction whose addresses prefetchers can follow: of GCC's choice that of four rows
// was unrolled. (Zen 4, one core, 4 rows: 12.6 GB/s, and 15.4 with this where 6 rows have 14.5.)
template <int FAR, int MR, int NR>
KVASIR_INLINE void dots(__m512 (&acc)[MR][NR], const uint16_t* x, int64_t ldx, const uint8_t* w, int64_t step, int64_t pairs) {
  if (FAR) {
#pragma GCC unroll 1
    for (int64_t p = 0; p < pairs; ++p, w += step, x += 2) dot<FAR>(acc, x, ldx, w);
  } else {
    for (int64_t p = 0; p < pairs; ++p, w += step, x += 2) dot<FAR>(acc, x, ldx, w);
  }
}

struct Strip {
  const uint16_t* x;
  int64_t ldx;
  const uint8_t* w;
  int64_t step;
  int64_t pairs;
  bool odd;  // one value of k is left after the pairs
  float* partial;  // (MR, NR, 16) sums of the blocks of k so far
  bool begins, ends;
};

template <int MR, int NR>
void strip(const Strip& s, Ahead& ahead, const Linear& weight, const Product& product, int64_t m, int64_t tile) {
  __m512 acc[MR][NR];
  for (int i = 0; i < MR; ++i)
    for (int j = 0; j < NR; ++j) acc[i][j] = s.begins ? _mm512_setzero_ps() : _mm512_loadu_ps(s.partial + (i * NR + j) * TILE);
  const uint16_t* x = s.x;
  const uint8_t* w = s.w;
  int64_t pairs = s.pairs;
  for (; pairs >= CHUNK; pairs -= CHUNK, x += 2 * CHUNK, w += CHUNK * s.step) {
    ahead.fetch(CHUNK);
    if (MR == 1 || ahead.width) dots<0>(acc, x, s.ldx, w, s.step, CHUNK);
    else dots<FAR_BYTES>(acc, x, s.ldx, w, s.step, CHUNK);
  }
  dots<0>(acc, x, s.ldx, w, s.step, pairs);
  if (s.odd) {
    x += 2 * pairs;
    w += pairs * s.step;
    for (int i = 0; i < MR; ++i) {
      const __m512bh a = (__m512bh)_mm512_set1_epi32(x[i * s.ldx]);
      for (int j = 0; j < NR; ++j) acc[i][j] = _mm512_dpbf16_ps(acc[i][j], line_of(w + 64 * j), a);
    }
  }
  if (s.ends) return finish<bfloat16>(acc, weight, product, m, tile);
  for (int i = 0; i < MR; ++i)
    for (int j = 0; j < NR; ++j) _mm512_storeu_ps(s.partial + (i * NR + j) * TILE, acc[i][j]);
}

template <int NR>
void strip_of(int rows, const Strip& s, Ahead& ahead, const Linear& w, const Product& p, int64_t m, int64_t tile) {
  switch (rows) {
    case 1: return strip<1, NR>(s, ahead, w, p, m, tile);
    case 2: return strip<2, NR>(s, ahead, w, p, m, tile);
    case 3: return strip<3, NR>(s, ahead, w, p, m, tile);
    case 4: return strip<4, NR>(s, ahead, w, p, m, tile);
    case 5: return strip<5, NR>(s, ahead, w, p, m, tile);
    default: return strip<6, NR>(s, ahead, w, p, m, tile);
  }
}

// Adds up to TALL_PAIRS pairs of k to the sums of MR rows and NR of `tiles` tiles. x: (MR, 2 * TALL_PAIRS); step: bytes from
// one pair's lines to the next; partial: (MR, tiles, 16), from the first of the NR on.
template <int MR, int NR>
void add_tall(const uint16_t* x, const uint8_t* w, int64_t step, int64_t pairs, float* partial, int64_t tiles) {
  __m512 acc[MR][NR];
  for (int i = 0; i < MR; ++i)
    for (int j = 0; j < NR; ++j) acc[i][j] = _mm512_loadu_ps(partial + (i * tiles + j) * TILE);
  dots<FAR_BYTES>(acc, x, 2 * TALL_PAIRS, w, step, pairs);
  for (int i = 0; i < MR; ++i)
    for (int j = 0; j < NR; ++j) _mm512_storeu_ps(partial + (i * tiles + j) * TILE, acc[i][j]);
}

template <int NR>
void add_tall_of(int rows, const uint16_t* x, const uint8_t* w, int64_t step, int64_t pairs, float* partial, int64_t tiles) {
  switch (rows) {
    case 7: return add_tall<7, NR>(x, w, step, pairs, partial, tiles);
    case 8: return add_tall<8, NR>(x, w, step, pairs, partial, tiles);
    case 9: return add_tall<9, NR>(x, w, step, pairs, partial, tiles);
    case 10: return add_tall<10, NR>(x, w, step, pairs, partial, tiles);
    case 11: return add_tall<11, NR>(x, w, step, pairs, partial, tiles);
    default: return add_tall<12, NR>(x, w, step, pairs, partial, tiles);
  }
}

// The sums of STRIP + 1 to TALL rows and so many tiles, but for a last odd value of k. x: (rows, k); partial: as above.
inline void tall_sums(int rows, const uint16_t* x, int64_t k, const uint8_t* w, int64_t step, float* partial, int64_t tiles) {
  alignas(64) uint16_t near[TALL][2 * TALL_PAIRS];
  __builtin_memset(partial, 0, rows * tiles * TILE * 4);
  for (int64_t left = k / 2; left > 0; left -= TALL_PAIRS, x += 2 * TALL_PAIRS, w += TALL_PAIRS * step) {
    const int64_t pairs = least(TALL_PAIRS, left);
    for (int i = 0; i < rows; ++i)
      _mm512_store_si512(near[i], _mm512_maskz_loadu_epi32(first16(pairs), x + i * k));
    for (int64_t j = 0; j < tiles; j += 2) {
      if (tiles - j == 1) add_tall_of<1>(rows, near[0], w + j * 64, step, pairs, partial + j * TILE, tiles);
      else add_tall_of<2>(rows, near[0], w + j * 64, step, pairs, partial + j * TILE, tiles);
    }
  }
}

// Rows [begin, end) times the tiles [tile, tile + tiles) of one panel.
inline void task_bf16(int tid, const Linear& w, const Product& p, int64_t begin, int64_t end, int64_t tile, int64_t tiles) {
  const uint16_t* x = static_cast<const uint16_t*>(p.x);
  const int64_t all_pairs = w.k / 2, lines = (w.k + 1) / 2, panel = tile / PANEL_TILES;
  const int64_t width = least(PANEL_TILES, w.tiles - panel * PANEL_TILES), step = width * 64;
  const uint8_t* base = w.weight + panel * PANEL_TILES * lines * 64;
  const uint8_t* end_of_weight = w.weight + w.tiles * lines * 64;
  base += (tile - panel * PANEL_TILES) * 64;
  const bool tall = end - begin > STRIP && end - begin <= TALL;
  const int64_t strips = ceil_div(end - begin, STRIP), blocks = tall ? 1 : ceil_div(w.k, block_k(strips, w.k));
  const int64_t block_pairs = ceil_div(ceil_div(all_pairs, blocks), CHUNK) * CHUNK;
  float* partial = blocks > 1 || tall ? (float*)kvasir::own_scratch(tid, kvasir::SLOT_LINEAR, (end - begin) * PANEL_TILES * TILE * 4) : nullptr;
  if (tall) tall_sums(end - begin, x + begin * w.k, w.k, base, step, partial, tiles);
  for (int64_t block = 0, first = tall ? all_pairs : 0; block < blocks; ++block, first += block_pairs) {
    const int64_t pairs = least(block_pairs, all_pairs - first);
    const bool ends = block + 1 == blocks;
    const uint8_t* next = base + (first + pairs) * step;
    Ahead ahead{next, next + least(pairs * step, end_of_weight - next), strips > 1 ? width : 0, strips, block_k(strips, w.k) <= 128};
    for (int64_t i = 0, m = begin; i < strips; ++i) {
      const int64_t until = begin + (end - begin) * (i + 1) / strips;
      const Strip s{x + m * w.k + 2 * first, w.k, base + first * step, step, pairs, ends && (w.k & 1),
                    partial + (m - begin) * tiles * TILE, first == 0, ends};
      switch (tiles) {
        case 1: strip_of<1>(until - m, s, ahead, w, p, m, tile); break;
        case 2: strip_of<2>(until - m, s, ahead, w, p, m, tile); break;
        case 3: strip_of<3>(until - m, s, ahead, w, p, m, tile); break;
        default: strip_of<4>(until - m, s, ahead, w, p, m, tile); break;
      }
      m = until;
    }
  }
}

inline void linear_bf16(int tid, int nth, const Grouped& g, const Product& p) {
  each_task(tid, nth, g, [&](const Linear& w, int64_t rows, int64_t begin, int64_t end, int64_t tile, int64_t tiles) {
    if (takes_amx(w, p, rows)) task_amx(w, p, begin, end, tile, tiles);
    else task_bf16(tid, w, p, begin, end, tile, tiles);
  });
}

}  // namespace KVASIR_ISA
#endif
