// The product with a weight of 8 or 4 bits for processors without AVX-512: the formula of linear_quantized.h, whose sums of
// integers are exact and whose sums over groups are the same chain in float32, so that the results are its bits.
//
// With AVX-VNNI and on arm64 one instruction multiplies four values of k and adds them up. With AVX2 alone 8 bits are widened
// to 16, since two products of unsigned and signed bytes do not fit 16 bits; rows then have their values in the order 0 2 1 3
// of each four, as the even and the odd bytes of a word of the weight are multiplied. Of 4 bits some lines' products fit.
#pragma once

#include "linear_finish.h"
#include "linear_form.h"

#include <type_traits>

#ifndef __AVX512F__
namespace KVASIR_ISA {

constexpr int64_t BLOCK_BYTES = 16384;  // of a panel's lines, which stay in the first-level cache for all strips

#if defined(__AVXVNNI__) || defined(__aarch64__)
#define KVASIR_BYTE_DOTS
constexpr bool DOTS = true;
#else
constexpr bool DOTS = false;
#endif
// Whether both sides of a dot product have signs: weights of 8 bits lose their 128 then, and sums begin at 0.
#ifdef __aarch64__
constexpr bool SIGNED = true;
#else
constexpr bool SIGNED = false;
#endif

// Calls f(0) to f(N - 1) with constants.
template <int N, int I = 0, class F>
KVASIR_INLINE void each(const F& f) {
  if constexpr (I < N) {
    f(std::integral_constant<int, I>{});
    each<N, I + 1>(f);
  }
}

// Rows whose sums stay in registers, with two vectors each.
template <class F>
constexpr int STRIP_QUANTISED = !DOTS && HALVES<F> == 1 ? 6 : 4;

// Whether rows are 16 bits wide.
KVASIR_INLINE bool are_wide(const Linear& w) { return !DOTS && w.kind == Weights::BITS8; }

// Rows as the products take them.
struct Rounded {
  uint8_t* values;   // (rows, k) of 8 or 16 bits
  float* scales;     // (rows, groups)
  int32_t* offsets;  // (rows, groups), of put_offset
};

inline int64_t rounded_bytes(const Linear& w, int64_t rows) {
  return rows * (w.k * (are_wide(w) ? 2 : 1) + 8 * (w.k / w.group)) + 128;
}

inline Rounded rounded_in(void* memory, const Linear& w, int64_t rows) {
  auto* bytes = static_cast<uint8_t*>(memory);
  auto* scales = reinterpret_cast<float*>(bytes + (rows * w.k * (are_wide(w) ? 2 : 1) + 63) / 64 * 64);
  return {bytes, scales, reinterpret_cast<int32_t*>(scales + rows * (w.k / w.group))};
}

// As many numbers as lanes, each four in the order 0 2 1 3 where they are wide.
KVASIR_INLINE void put_rounded(uint8_t* to, Ints numbers, [[maybe_unused]] bool wide) {
#ifdef __aarch64__
  const int16x4_t words = vqmovn_s32(numbers);
  const int8x8_t bytes = vqmovn_s16(vcombine_s16(words, words));
  __builtin_memcpy(to, &bytes, kLanes);
#else
  const auto eight = reinterpret_cast<__m256i>(numbers);
  const __m128i low = _mm256_castsi256_si128(eight), high = _mm256_extracti128_si256(eight, 1);
  const __m128i words = _mm_packs_epi32(low, high);
  if (!wide) {
    _mm_storel_epi64((__m128i*)to, _mm_packs_epi16(words, words));
    return;
  }
  const __m128i swapped = _mm_shufflehi_epi16(_mm_shufflelo_epi16(words, 0xd8), 0xd8);
  _mm_storeu_si128((__m128i*)to, swapped);
#endif
}

template <class T>
KVASIR_INLINE void round_row(const Linear& w, const T* x, uint8_t* values, float* scales, int32_t* offsets) {
  const bool wide = are_wide(w);
  const int64_t step = kLanes * (wide ? 2 : 1);
  for (int64_t g = 0; g < w.k / w.group; ++g, x += w.group) {
    Floats most{};
    Ints nan{};
    for (int64_t i = 0; i < w.group; i += kLanes) {
      const Floats v = load(x + i);
      nan |= v != v;
      most = larger(larger(v, -v), most);
    }
    const float top = largest(most);
    const Floats inverse = splat(top > 0 ? 127.0f / top : 0.0f);
    Ints sum{};
    for (int64_t i = 0; i < w.group; i += kLanes, values += step) {
      const Ints q = rounded(load(x + i) * inverse);
      sum += q;
      put_rounded(values, q, wide);
    }
    int32_t total = 0, any_nan = 0;
    for (int i = 0; i < kLanes; ++i) {
      total = static_cast<int32_t>(static_cast<uint32_t>(total) + static_cast<uint32_t>(sum[i]));
      any_nan |= nan[i];
    }
    scales[g] = any_nan ? __builtin_nanf("") : top / 127.0f;
    put_offset(w, total, scales[g], offsets + g);
  }
}

inline void round_rows(const Linear& w, const Product& p, const Rounded& to, int64_t begin, int64_t end) {
  const int64_t groups = w.k / w.group, bytes = w.k * (are_wide(w) ? 2 : 1);
  for (int64_t m = begin; m < end; ++m) {
    uint8_t* values = to.values + m * bytes;
    float* scales = to.scales + m * groups;
    int32_t* offsets = to.offsets + m * groups;
    if (p.type == kvasir::BFLOAT16) round_row(w, static_cast<const bfloat16*>(p.x) + m * w.k, values, scales, offsets);
    else round_row(w, static_cast<const float*>(p.x) + m * w.k, values, scales, offsets);
  }
}

KVASIR_INLINE Ints word_at(const uint8_t* from) { return load_as<int32_t>(from) - Ints{}; }

#ifdef KVASIR_BYTE_DOTS
// sum + the products of each lane's four bytes, those of u without a sign, or with one where SIGNED.
KVASIR_INLINE Ints add_dots(Ints sum, Ints u, Ints x) {
#ifdef __aarch64__
  return vdotq_s32(sum, reinterpret_cast<int8x16_t>(u), reinterpret_cast<int8x16_t>(x));
#else
  return reinterpret_cast<Ints>(
      _mm256_dpbusd_avx_epi32(reinterpret_cast<__m256i>(sum), reinterpret_cast<__m256i>(u), reinterpret_cast<__m256i>(x)));
#endif
}
#else
// Products of numbers of 16 bits, two neighbours added up.
KVASIR_INLINE Ints pair_sums(Ints a, Ints b) {
  return reinterpret_cast<Ints>(_mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
}

// The same added to a sum. GCC moves the sums of a strip to the stack around an addition of its own.
KVASIR_INLINE void add_pairs(Ints& sum, Ints a, Ints b) { asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(pair_sums(a, b))); }

// Every other byte of a word in 16 bits, from the first or from the second on.
KVASIR_INLINE Ints every_other(Ints bytes, int second) {
  const auto words = reinterpret_cast<__m256i>(bytes);
  return second ? reinterpret_cast<Ints>(_mm256_srli_epi16(words, 8)) : bytes & 0x00ff00ff;
}

// Products of bytes, those of u without a sign, two neighbours added up, added to a sum in 16 bits.
KVASIR_INLINE void add_byte_pairs(Ints& sum, Ints u, Ints x) {
  const __m256i products = _mm256_maddubs_epi16(reinterpret_cast<__m256i>(u), reinterpret_cast<__m256i>(x));
  asm("vpaddw %1, %0, %0" : "+x"(sum) : "x"(products));
}

// Products of bytes that both have signs, none of them -128, added up by lane: the sign of x goes to the other.
KVASIR_INLINE void add_signed_bytes(Ints& sum, Ints number, Ints x) {
  const auto by = reinterpret_cast<__m256i>(x);
  const __m256i turned = _mm256_sign_epi8(reinterpret_cast<__m256i>(number), by);
  add_pairs(sum, reinterpret_cast<Ints>(_mm256_maddubs_epi16(_mm256_abs_epi8(by), turned)), Ints{} + 0x00010001);
}
#endif

// Rows of a strip, from a group on: bytes from row to row of the values, numbers of groups.
struct StripRows {
  const uint8_t* values;
  const float* scales;
  const int32_t* offsets;
  int64_t stride, groups;
  int64_t left;  // groups from here on with the scales of the first
};

// The same line of the next block, which is asked for meanwhile; one row alone is read fastest by the processor's own
// prefetchers.
template <int MR, int VECTORS>
KVASIR_INLINE void ask(const uint8_t* line) {
  for (int byte = 0; byte < VECTORS * kLanes * 4 && MR > 1; byte += 64) __builtin_prefetch(line + BLOCK_BYTES + byte);
}

// What one line of 8 bits adds to the sums of MR rows: four values of k, VECTORS times as many outputs as there are lanes.
template <int MR, int VECTORS>
KVASIR_INLINE void add_bytes(Ints (&sum)[MR][VECTORS], const uint8_t* line, const uint8_t* x, int64_t stride) {
  ask<MR, VECTORS>(line);
#ifdef KVASIR_BYTE_DOTS
  each<VECTORS>([&](auto v) __attribute__((always_inline)) {
    const Ints u = load_as<Ints>(line + 4 * kLanes * v);
    const Ints weight = SIGNED ? u ^ static_cast<int32_t>(0x80808080) : u;
    each<MR>([&](auto i) __attribute__((always_inline)) { sum[i][v] = add_dots(sum[i][v], weight, word_at(x + i * stride)); });
  });
#else
  // Two vectors and one half of their bytes at a time: with the sums of six rows all fit the registers.
  const auto add = [&](int second) __attribute__((always_inline)) {
    each<VECTORS / 2>([&](auto pair) __attribute__((always_inline)) {
      constexpr int v = 2 * pair();
      const uint8_t* from = line + 4 * kLanes * v;
      const Ints left = every_other(load_as<Ints>(from), second), right = every_other(load_as<Ints>(from + 4 * kLanes), second);
      each<MR>([&](auto i) __attribute__((always_inline)) {
        const Ints number = word_at(x + i * stride + 4 * second);
        add_pairs(sum[i][v], number, left);
        add_pairs(sum[i][v + 1], number, right);
      });
    });
  };
  add(0);
  add(1);
#endif
}

// The same of a line whose bytes have two halves: eight values of k. Without dot products sums are of 16 bits, two beside
// one another; of a codebook two products at most fit those.
template <class F, int MR, int VECTORS>
KVASIR_INLINE void add_halves(Ints (&sum)[MR][VECTORS], const Linear& w, const uint8_t* line, const uint8_t* x, int64_t stride) {
  ask<MR, VECTORS>(line);
  each<VECTORS>([&](auto v) __attribute__((always_inline)) {
    const Ints u = load_as<Ints>(line + 4 * kLanes * v), low = F::numbers(w, u, 0), high = F::numbers(w, u, 1);
    each<MR>([&](auto i) __attribute__((always_inline)) {
      const Ints first = word_at(x + i * stride), second = word_at(x + i * stride + 4);
#ifdef KVASIR_BYTE_DOTS
      sum[i][v] = add_dots(add_dots(sum[i][v], low, first), high, second);
#else
      if constexpr (F::FITS) {
        add_byte_pairs(sum[i][v], low, first);
        add_byte_pairs(sum[i][v], high, second);
      } else {
        add_signed_bytes(sum[i][v], low, first);
        add_signed_bytes(sum[i][v], high, second);
      }
#endif
    });
  });
}

// Sums of one group of a line's values. per_x: bytes of a row that a line takes.
template <int MR, int VECTORS, class F>
KVASIR_INLINE void group_sums(Ints (&sum)[MR][VECTORS], const Linear& w, const StripRows& r, int64_t g, const uint8_t* lines,
                              int64_t step, const uint8_t* x, int64_t num_lines) {
  constexpr int64_t PER_X = HALVES<F> == 2 || !DOTS ? 8 : 4;
  constexpr bool BEGINS = F::ZERO && !(SIGNED && F::ZERO == 128);
  each<MR>([&](auto i) __attribute__((always_inline)) {
    each<VECTORS>([&](auto v) __attribute__((always_inline)) { sum[i][v] = BEGINS ? r.offsets[i * r.groups + g] - Ints{} : Ints{}; });
  });
  if constexpr (HALVES<F> == 1) {
    for (int64_t n = 0; n < num_lines; ++n) add_bytes(sum, lines + n * step, x + n * PER_X, r.stride);
  } else if constexpr (DOTS || !F::FITS) {
    for (int64_t n = 0; n < num_lines; ++n) add_halves<F>(sum, w, lines + n * step, x + n * PER_X, r.stride);
  } else {
#ifndef KVASIR_BYTE_DOTS
    for (int64_t n = 0; n < num_lines; n += F::FITS) {
      Ints halves[MR][VECTORS];
      each<MR * VECTORS>([&](auto n) __attribute__((always_inline)) { halves[n / VECTORS][n % VECTORS] = Ints{}; });
      for (int64_t l = n; l < least(num_lines, n + F::FITS); ++l) add_halves<F>(halves, w, lines + l * step, x + l * PER_X, r.stride);
      each<MR * VECTORS>([&](auto n) __attribute__((always_inline)) {
        add_pairs(sum[n / VECTORS][n % VECTORS], halves[n / VECTORS][n % VECTORS], Ints{} + 0x00010001);
      });
    }
#endif
  }
}

// Groups [0, groups) of what the pointers lead to: MR rows times NT tiles, added to sums (MR, PANEL_WIDTH).
template <int MR, int NT, class F>
void add_quantized(const Linear& w, const StripRows& r, const uint8_t* lines, const typename F::Scale* scales,
                   const uint16_t* minima, int64_t width, int64_t groups, float* sums) {
  constexpr int VECTORS = NT * TILE_VECTORS;
  const int64_t num_lines = w.group / F::PER_LINE, step = width * 64;
  const uint8_t* x = r.values;
  int64_t left = r.left;
  for (int64_t g = 0; g < groups; ++g) {
    Ints sum[MR][VECTORS];
    group_sums<MR, VECTORS, F>(sum, w, r, g, lines, step, x, num_lines);
    lines += num_lines * step;
    x += w.group * (are_wide(w) ? 2 : 1);
    each<VECTORS>([&](auto v) __attribute__((always_inline)) {
      const Floats scale = F::scales(w, scales + v * kLanes);
      const Floats minimum = F::MINIMA ? load_float16(minima + v * kLanes) : Floats{};
      each<MR>([&](auto i) __attribute__((always_inline)) {
        float* to = sums + i * PANEL_WIDTH + v * kLanes;
        const Floats whole = __builtin_convertvector(sum[i][v], Floats);
        Floats total = multiply_add(whole * splat(r.scales[i * r.groups + g]), scale, load(to));
        if (F::MINIMA) {
          float offset;
          __builtin_memcpy(&offset, r.offsets + i * r.groups + g, 4);
          total = multiply_add(-splat(offset), minimum, total);
        }
        store(to, total);
      });
    });
    if (--left) continue;
    left = w.sharing, scales += width * TILE, minima += width * TILE;
  }
}

template <int MR, class F>
void add_quantized_tiles(const Linear& w, const StripRows& r, const uint8_t* lines, const typename F::Scale* scales,
                         const uint16_t* minima, int64_t width, int64_t groups, float* sums, int64_t tiles) {
  constexpr int MOST = MR == 1 ? 4 : MR == 2 ? 2 : 1;
  for (; tiles >= MOST; tiles -= MOST, lines += 64 * MOST, scales += MOST * TILE, minima += MOST * TILE, sums += MOST * TILE)
    add_quantized<MR, MOST, F>(w, r, lines, scales, minima, width, groups, sums);
  for (; tiles > 0; --tiles, lines += 64, scales += TILE, minima += TILE, sums += TILE)
    add_quantized<MR, 1, F>(w, r, lines, scales, minima, width, groups, sums);
}

// Rows [begin, end) times the tiles [tile, tile + tiles) of one panel. sums: (rows, PANEL_WIDTH).
template <class F>
void task_quantized(const Linear& w, const Product& p, const Rounded& x, int64_t begin, int64_t end, int64_t tile,
                    int64_t tiles, float* sums) {
  const int64_t lines = w.k / F::PER_LINE, groups = w.k / w.group, panel = tile / PANEL_TILES;
  const int64_t width = least(PANEL_TILES, w.tiles - panel * PANEL_TILES), inside = tile - panel * PANEL_TILES;
  const uint8_t* base = w.weight + panel * PANEL_TILES * lines * 64 + inside * 64;
  const auto* scales = static_cast<const typename F::Scale*>(w.scales);
  const int64_t scales_at = (panel * PANEL_TILES * (groups / w.sharing) + inside) * TILE;
  const int64_t group_bytes = w.group / F::PER_LINE * width * 64;
  const int64_t at_once = end - begin == 1 ? groups : most(1, BLOCK_BYTES / group_bytes);
  const int64_t row_bytes = w.k * (are_wide(w) ? 2 : 1), group_x = w.group * (are_wide(w) ? 2 : 1);
  constexpr int MOST = STRIP_QUANTISED<F>;
  const int64_t strips = ceil_div(end - begin, MOST);
  __builtin_memset(sums, 0, (end - begin) * PANEL_WIDTH * 4);
  for (int64_t group = 0; group < groups; group += at_once) {
    const int64_t count = least(at_once, groups - group), at = scales_at + scales_of(w, group, width);
    const int64_t left = w.sharing - group % w.sharing;
    const uint8_t* from = base + group * group_bytes;
    for (int64_t i = 0, m = begin; i < strips; ++i) {
      const int64_t until = begin + (end - begin) * (i + 1) / strips;
      const StripRows r{x.values + m * row_bytes + group * group_x, x.scales + m * groups + group,
                        x.offsets + m * groups + group, row_bytes, groups, left};
      float* to = sums + (m - begin) * PANEL_WIDTH;
      switch (until - m) {
        case 1: add_quantized_tiles<1, F>(w, r, from, scales + at, w.minima + at, width, count, to, tiles); break;
        case 2: add_quantized_tiles<2, F>(w, r, from, scales + at, w.minima + at, width, count, to, tiles); break;
        case 3: add_quantized_tiles<3, F>(w, r, from, scales + at, w.minima + at, width, count, to, tiles); break;
        case 4: add_quantized_tiles<4, F>(w, r, from, scales + at, w.minima + at, width, count, to, tiles); break;
        case 5: add_quantized_tiles<MOST < 5 ? MOST : 5, F>(w, r, from, scales + at, w.minima + at, width, count, to, tiles); break;
        default: add_quantized_tiles<MOST, F>(w, r, from, scales + at, w.minima + at, width, count, to, tiles); break;
      }
      m = until;
    }
  }
  if (p.type == kvasir::BFLOAT16) finish_rows<bfloat16>(sums, w, p, begin, end - begin, tile, tiles);
  else finish_rows<float>(sums, w, p, begin, end - begin, tile, tiles);
}

inline void linear_quantized(int tid, int nth, const Grouped& g, const Product& p) {
  const Linear& any = *g.weights[0];
  const auto prepare = [&](void* memory, int64_t begin, int64_t end) {
    round_rows(any, p, rounded_in(memory, any, p.rows), begin, end);
  };
  const auto task = [&](void* memory, uint8_t* own, const Linear& w, int64_t, int64_t begin, int64_t end, int64_t tile,
                        int64_t tiles) {
    const Rounded x = rounded_in(memory, w, p.rows);
    auto* sums = reinterpret_cast<float*>(own);
    with_form(w, [&](auto form) { task_quantized<decltype(form)>(w, p, x, begin, end, tile, tiles, sums); });
  };
  with_prepared_rows(tid, nth, g, p.rows, rounded_bytes(any, p.rows), BLOCK_ROWS * PANEL_WIDTH * 4, prepare, task);
}

}  // namespace KVASIR_ISA
#endif
