// The product with a weight of 8 or 4 bits: rows are rounded to 8 bits too, group by group, and VNNI adds up integers.
//
//     a group g of k:  sx[m][g] = max |x[m][k]| / 127,  qx = round(x / sx)            (to nearest, ties to even)
//     out[m][o] = unit[o] * sum_g sx[m][g] * (scale[o][g] * sum_k(qx * q) - minimum[o][g] * sum_k(qx))
//
// Integer sums are exact; those over groups are one chain in float32. Weights are unsigned in the instruction: for 8
// bits, stored as q + 128, the sum begins at -128 * sum_k(qx), for 4 bits q is unsigned by itself.
#pragma once

#include "linear_amx.h"
#include "linear_form.h"
#include "linear_groups.h"

#ifdef __AVX512VNNI__
namespace KVASIR_ISA {

// Rows as the products take them.
struct Rounded {
  int8_t* values;  // (rows, k)
  float* scales;   // (rows, groups)
  int32_t* offsets;  // (rows, groups), of put_offset
};

inline int64_t rounded_bytes(const Linear& w, int64_t rows) { return rows * (w.k + 8 * (w.k / w.group)) + 128; }

inline Rounded rounded_in(void* memory, const Linear& w, int64_t rows) {
  auto* bytes = static_cast<uint8_t*>(memory);
  auto* scales = reinterpret_cast<float*>(bytes + (rows * w.k + 63) / 64 * 64);
  return {reinterpret_cast<int8_t*>(bytes), scales, reinterpret_cast<int32_t*>(scales + rows * (w.k / w.group))};
}

template <class T>
KVASIR_INLINE void round_row(const Linear& w, const T* x, int8_t* values, float* scales, int32_t* offsets) {
  const __m512 zero = _mm512_setzero_ps();
  for (int64_t g = 0; g < w.k / w.group; ++g, x += w.group, values += w.group) {
    __m512 most = zero;
    __mmask16 nan = 0;
    for (int64_t i = 0; i < w.group; i += 16) {
      const __m512 v = masked_load(first16(w.group - i), x + i);
      most = _mm512_max_ps(most, _mm512_abs_ps(v));
      nan |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    }
    const float largest = _mm512_reduce_max_ps(most);
    const __m512 inverse = _mm512_set1_ps(largest > 0 ? 127.0f / largest : 0.0f);
    __m512i sum = _mm512_setzero_si512();
    for (int64_t i = 0; i < w.group; i += 16) {
      const __mmask16 there = first16(w.group - i);
      const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(masked_load(there, x + i), inverse));
      sum = _mm512_add_epi32(sum, q);
      _mm_mask_storeu_epi8(values + i, there, _mm512_cvtsepi32_epi8(q));
    }
    const int32_t total = _mm512_reduce_add_epi32(sum);
    scales[g] = nan ? __builtin_nanf("") : largest / 127.0f;
    put_offset(w, total, scales[g], offsets + g);
  }
}

// round_row of groups of 32 bfloat16, all of one in a register: the largest by their bits, which for numbers without sign
// are in order, with infinity and NaN above all others.
KVASIR_INLINE void round_row_32(const Linear& w, const bfloat16* x, int8_t* values, float* scales, int32_t* offsets) {
  const __m512i magnitude = _mm512_set1_epi16(0x7fff);
  const __m256i bias = _mm256_set1_epi8(-128);
  for (int64_t g = 0; g < w.k / GROUP; ++g, x += GROUP, values += GROUP) {
    const __m512i all = _mm512_and_si512(_mm512_loadu_si512(x), magnitude);
    const __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
    const __m128i eight = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi16(-1)));
    const uint32_t bits = static_cast<uint16_t>(~_mm_cvtsi128_si32(least));
    const float largest = widen(bfloat16{static_cast<uint16_t>(bits)});
    const __m512 inverse = _mm512_set1_ps(bits ? 127.0f / largest : 0.0f);
    const __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(whole_load(x), inverse));
    const __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(whole_load(x + TILE), inverse));
    const __m256i q = _mm256_set_m128i(_mm512_cvtsepi32_epi8(high), _mm512_cvtsepi32_epi8(low));
    _mm256_storeu_si256((__m256i*)values, q);
    const __m256i sums = _mm256_sad_epu8(_mm256_xor_si256(q, bias), _mm256_setzero_si256());
    const __m128i pair = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    const int32_t total = _mm_cvtsi128_si32(pair) + _mm_extract_epi32(pair, 2) - 128 * static_cast<int32_t>(GROUP);
    scales[g] = bits > 0x7f80 ? __builtin_nanf("") : largest / 127.0f;
    put_offset(w, total, scales[g], offsets + g);
  }
}

inline void round_rows(const Linear& w, const Product& p, const Rounded& to, int64_t begin, int64_t end) {
  const int64_t groups = w.k / w.group;
  for (int64_t m = begin; m < end; ++m) {
    int8_t* values = to.values + m * w.k;
    if (p.type == kvasir::BFLOAT16 && w.group == GROUP)
      round_row_32(w, static_cast<const bfloat16*>(p.x) + m * w.k, values, to.scales + m * groups, to.offsets + m * groups);
    else if (p.type == kvasir::BFLOAT16)
      round_row(w, static_cast<const bfloat16*>(p.x) + m * w.k, values, to.scales + m * groups, to.offsets + m * groups);
    else
      round_row(w, static_cast<const float*>(p.x) + m * w.k, values, to.scales + m * groups, to.offsets + m * groups);
  }
}

// GCC keeps copies of the sums around the intrinsic, which costs as much as the products.
KVASIR_INLINE void add_products(__m512i& sum, __m512i u, __m512i s) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(u), "v"(s));
}

constexpr int STRIP_QUANTISED = 3;  // 3 x 4 sums of integers and as many of floats

// How far a single strip fetches ahead; one row of 8 bits alone is read fastest by the processor's own prefetchers.
template <int MR, class F>
constexpr int FAR_QUANTISED = MR == 1 && F::PER_LINE == 4 ? 0 : 4096;

// Bytes of a row of weights in a block, which stays in the first-level cache, with much of the one after it when strips
// are few.
KVASIR_INLINE int64_t block_bytes(int64_t strips) { return strips <= 8 ? 128 : 384; }

// Groups [group, group + groups) of some rows times tiles of a panel.
template <class F>
struct StripQuantized {
  const Linear* weight;
  const Product* product;
  Rounded rows;
  const uint8_t* lines;  // of the first group and tile
  const typename F::Scale* scales;
  const uint16_t* minima;
  int64_t step;  // lines from one value of k (four, eight) to the next: the panel's width
  int64_t group, groups, left;  // left: groups from the first on with its scales
  float* partial;
  bool begins, ends;
};

template <int MR, int NR>
KVASIR_INLINE void finish_quantized(__m512 (&acc)[MR][NR], const Linear& w, const Product& p, int64_t m, int64_t tile) {
  for (int j = 0; j < NR; ++j) {
    const __m512 unit = _mm512_loadu_ps(w.units + (tile + j) * TILE);
    for (int i = 0; i < MR; ++i) acc[i][j] = _mm512_mul_ps(acc[i][j], unit);
  }
  if (p.type == kvasir::BFLOAT16) finish<bfloat16>(acc, w, p, m, tile);
  else finish<float>(acc, w, p, m, tile);
}

// The groups of a whole panel in assembly, those that share scales at a time.
template <int MR, class F, int64_t SIZE>
void strip_groups(const StripQuantized<F>& s, Ahead& ahead, int64_t m, int64_t tile) {
  const int64_t k = s.weight->k, groups = k / SIZE;
  alignas(64) static const float zeros[MR * PANEL_TILES * TILE] = {};
  constexpr int64_t SCALES = PANEL_TILES * TILE, LINES = SIZE / F::PER_LINE;
  const int64_t sharing = s.weight->sharing, own = sharing == 1;
  int64_t left = own ? s.groups : s.left, scales_at = 0;
  Groups at{s.lines, s.scales, s.minima, s.rows.values + m * k + s.group * SIZE, s.rows.scales + m * groups + s.group,
            s.rows.offsets + m * groups + s.group, k, 4 * groups, own * SCALES * int64_t{sizeof(typename F::Scale)},
            nullptr, 0, s.weight->table};
  for (int64_t g = 0, count; g < s.groups; g += count) {
    count = least(s.groups - g, left);
    at.next = ahead.next;
    at.next_step = ceil_div(ahead.due(count * LINES) * 64, count * LINES * ASKED_PER_LINE);
    add_groups<MR, F, SIZE>(at, count, s.begins && !g ? zeros : s.partial, s.partial);
    if (own || (left -= count)) continue;
    // Not from `at`: reading both pointers at once right after the loop stored each would wait for the whole loop.
    left = sharing, scales_at += SCALES, at.scales = s.scales + scales_at, at.minima = s.minima + scales_at;
  }
  if (!s.ends) return;
  __m512 acc[MR][PANEL_TILES];
  for (int i = 0; i < MR; ++i)
    for (int j = 0; j < PANEL_TILES; ++j) acc[i][j] = _mm512_loadu_ps(s.partial + (i * PANEL_TILES + j) * TILE);
  finish_quantized(acc, *s.weight, *s.product, m, tile);
}

template <int MR, int NR, class F, int FAR>
void strip_quantized(const StripQuantized<F>& s, Ahead& ahead, int64_t m, int64_t tile) {
  const Linear& w = *s.weight;
  if constexpr (MR > 1 && NR == PANEL_TILES && !FAR) {
    const bool is_panel = s.step == PANEL_TILES, e4m3 = w.scale_shift == kvasir::SHIFT_E4M3;
    if (is_panel && w.group == GROUP && !e4m3) return strip_groups<MR, F, GROUP>(s, ahead, m, tile);
    if constexpr (F::ZERO != 12)
      if (is_panel && w.group == LONG_GROUP) return strip_groups<MR, F, LONG_GROUP>(s, ahead, m, tile);
    if constexpr (F::ZERO == 12)
      if (is_panel && w.group == NVFP4_GROUP && e4m3) return strip_groups<MR, F, NVFP4_GROUP>(s, ahead, m, tile);
  }
  const int64_t all_groups = w.k / w.group;
  __m512 acc[MR][NR];
  for (int i = 0; i < MR; ++i)
    for (int j = 0; j < NR; ++j)
      acc[i][j] = s.begins ? _mm512_setzero_ps() : _mm512_loadu_ps(s.partial + (i * NR + j) * TILE);
  const uint8_t* line = s.lines;
  const int8_t* x = s.rows.values + m * w.k + s.group * w.group;
  const float* scales = s.rows.scales + m * all_groups + s.group;
  const int32_t* offsets = s.rows.offsets + m * all_groups + s.group;
  const auto* weight_scales = s.scales;
  const uint16_t* minima = s.minima;
  int64_t left = s.left;
  for (int64_t g = 0; g < s.groups; ++g) {
    ahead.fetch(w.group / F::PER_LINE);
    __m512i sum[MR][NR];
    for (int i = 0; i < MR; ++i)
      for (int j = 0; j < NR; ++j)
        sum[i][j] = F::ZERO ? _mm512_set1_epi32(offsets[i * all_groups + g]) : _mm512_setzero_si512();
    for (int64_t n = w.group / F::PER_LINE; n > 0; --n, line += s.step * 64, x += F::PER_LINE) {
      for (int j = 0; j < NR && FAR; ++j) _mm_prefetch(line + 64 * j + FAR, _MM_HINT_T0);
      for (int half = 0; half < HALVES<F>; ++half) {
        __m512i a[MR];
        for (int i = 0; i < MR; ++i) {
          int32_t four;
          __builtin_memcpy(&four, x + i * w.k + 4 * half, 4);
          a[i] = _mm512_set1_epi32(four);
        }
        for (int j = 0; j < NR; ++j) {
          const auto u = reinterpret_cast<__m512i>(F::numbers(w, load_as<Ints>(line + 64 * j), half));
          for (int i = 0; i < MR; ++i) add_products(sum[i][j], u, a[i]);
        }
      }
    }
    for (int j = 0; j < NR; ++j) {
      const auto scale = reinterpret_cast<__m512>(F::scales(w, weight_scales + j * TILE));
      for (int i = 0; i < MR; ++i) {
        const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[i][j]), _mm512_set1_ps(scales[i * all_groups + g]));
        acc[i][j] = _mm512_fmadd_ps(scaled, scale, acc[i][j]);
      }
      if (F::MINIMA) {
        const auto minimum = reinterpret_cast<__m512>(load_float16(minima + j * TILE));
        for (int i = 0; i < MR; ++i) {
          const __m512 total = _mm512_castsi512_ps(_mm512_set1_epi32(offsets[i * all_groups + g]));
          acc[i][j] = _mm512_fnmadd_ps(total, minimum, acc[i][j]);
        }
      }
    }
    if (--left) continue;
    left = w.sharing, weight_scales += s.step * TILE, minima += s.step * TILE;
  }
  if (!s.ends) {
    for (int i = 0; i < MR; ++i)
      for (int j = 0; j < NR; ++j) _mm512_storeu_ps(s.partial + (i * NR + j) * TILE, acc[i][j]);
    return;
  }
  finish_quantized(acc, *s.weight, *s.product, m, tile);
}

template <int NR, class F>
void strip_quantized_alone(int rows, const StripQuantized<F>& s, Ahead& ahead, int64_t m, int64_t tile) {
  switch (rows) {
    case 1: return strip_quantized<1, NR, F, FAR_QUANTISED<1, F>>(s, ahead, m, tile);
    case 2: return strip_quantized<2, NR, F, FAR_QUANTISED<2, F>>(s, ahead, m, tile);
    default: return strip_quantized<3, NR, F, FAR_QUANTISED<3, F>>(s, ahead, m, tile);
  }
}

template <int NR, class F>
void strip_quantized_of(int rows, const StripQuantized<F>& s, Ahead& ahead, int64_t m, int64_t tile) {
  if (!ahead.width) return strip_quantized_alone<NR, F>(rows, s, ahead, m, tile);
  switch (rows) {
    case 1: return strip_quantized<1, NR, F, 0>(s, ahead, m, tile);
    case 2: return strip_quantized<2, NR, F, 0>(s, ahead, m, tile);
    default: return strip_quantized<3, NR, F, 0>(s, ahead, m, tile);
  }
}

template <class F>
void task_quantized(const Linear& w, const Product& p, const Rounded& x, int64_t begin, int64_t end, int64_t tile,
                    int64_t tiles, float* partial) {
  const int64_t lines = w.k / F::PER_LINE, groups = w.k / w.group, panel = tile / PANEL_TILES;
  const int64_t width = least(PANEL_TILES, w.tiles - panel * PANEL_TILES), inside = tile - panel * PANEL_TILES;
  const uint8_t* base = w.weight + panel * PANEL_TILES * lines * 64;
  const int64_t scales_at = (panel * PANEL_TILES * (groups / w.sharing) + inside) * TILE;
  const auto* scales = static_cast<const typename F::Scale*>(w.scales) + scales_at;
  const uint8_t* end_of_weight = w.weight + w.tiles * lines * 64;
  const int64_t strips = ceil_div(end - begin, STRIP_QUANTISED);
  // Blocks of the same size, one group more or less: what is fetched ahead is as much as the block at hand.
  const int64_t at_most = strips == 1 ? groups : most(1, block_bytes(strips) * HALVES<F> / w.group);
  const int64_t blocks = ceil_div(groups, at_most);
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t group = groups * block / blocks, count = groups * (block + 1) / blocks - group;
    const int64_t line = group * w.group / F::PER_LINE, bytes = count * w.group / F::PER_LINE * width * 64;
    const uint8_t* next = base + line * width * 64 + bytes;
    Ahead ahead{next, next + least(bytes, end_of_weight - next), strips > 1 ? width : 0, strips, true};
    const int64_t at = scales_of(w, group, width), left = w.sharing - group % w.sharing;
    StripQuantized<F> s{&w, &p, x, base + (line * width + inside) * 64, scales + at, w.minima + scales_at + at, width, group,
                        count, left, partial, group == 0, group + count == groups};
    for (int64_t i = 0, m = begin; i < strips; ++i) {
      const int64_t until = begin + (end - begin) * (i + 1) / strips;
      s.partial = partial + i * STRIP_QUANTISED * PANEL_TILES * TILE;
      switch (tiles) {
        case 1: strip_quantized_of<1, F>(until - m, s, ahead, m, tile); break;
        case 2: strip_quantized_of<2, F>(until - m, s, ahead, m, tile); break;
        case 3: strip_quantized_of<3, F>(until - m, s, ahead, m, tile); break;
        default: strip_quantized_of<4, F>(until - m, s, ahead, m, tile); break;
      }
      m = until;
    }
  }
}

#ifdef __AVX512BF16__
KVASIR_INLINE void task_unpacked_of(int tid, const Linear& w, const Product& p, int64_t begin, int64_t end, int64_t tile,
                                    int64_t tiles) {
  with_form(w, [&](auto form) { task_unpacked<decltype(form)>(tid, w, p, begin, end, tile, tiles); });
}
#endif

inline void linear_quantized(int tid, int nth, const Grouped& g, const Product& p) {
  const Linear& any = *g.weights[0];
#ifdef __AVX512BF16__
  // Of a group all rows are rounded, also for tiles: a thread that comes too late, when its rows are others already,
  // must pass as many barriers as the others did.
  if (g.count == 1 && takes_amx(any, p, p.rows)) {
    return each_task(tid, nth, g, [&](const Linear& w, int64_t, int64_t begin, int64_t end, int64_t tile, int64_t tiles) {
      task_unpacked_of(tid, w, p, begin, end, tile, tiles);
    });
  }
#endif
  // Of a group some weights may be unpacked into the same memory, which must not move then.
  const int64_t unpacked = any.amx ? PANEL_TILES * TILE * any.k * 2 : 0;
  const int64_t partials = most((BLOCK_ROWS + STRIP_QUANTISED) * PANEL_TILES * TILE * 4, unpacked);
  const auto prepare = [&](void* memory, int64_t begin, int64_t end) {
    round_rows(any, p, rounded_in(memory, any, p.rows), begin, end);
  };
  const auto task = [&](void* memory, uint8_t* own, const Linear& w, [[maybe_unused]] int64_t rows, int64_t begin,
                        int64_t end, int64_t tile, int64_t tiles) {
#ifdef __AVX512BF16__
    if (takes_amx(w, p, rows)) return task_unpacked_of(tid, w, p, begin, end, tile, tiles);
#endif
    const Rounded x = rounded_in(memory, w, p.rows);
    auto* partial = reinterpret_cast<float*>(own);
    with_form(w, [&](auto form) { task_quantized<decltype(form)>(w, p, x, begin, end, tile, tiles, partial); });
  };
  with_prepared_rows(tid, nth, g, p.rows, rounded_bytes(any, p.rows), partials, prepare, task);
}

}  // namespace KVASIR_ISA
#endif
