// What attention_few.h computes where there are dot products of pairs of bfloat16. Neighbouring values are interleaved, as
// these want it, in an order of columns that is put right at the end. Rows of int8 become bfloat16 first, which all heads
// that share them use.
#pragma once

#include "attention_tile.h"

#ifdef __AVX512BF16__
namespace KVASIR_ISA {
namespace {

// What a query and a weight of a value are here.
using FewNumber = bfloat16;

template <int LINES>
constexpr int few_values() {
  return LINES == 2 ? 4 : 2;
}

KVASIR_INLINE __m512bh pairs_at(const void* from) { return (__m512bh)_mm512_loadu_si512(from); }

// 32 numbers as bfloat16, which is the upper half of their float32.
KVASIR_INLINE __m512i widened(__m256i numbers) {
  const __m512i pairs = _mm512_cvtepi16_epi32(numbers), even = _mm512_srai_epi32(_mm512_slli_epi32(pairs, 24), 24);
  const __m512 low = _mm512_cvtepi32_ps(even), high = _mm512_cvtepi32_ps(_mm512_srai_epi32(pairs, 8));
  return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(_mm512_castps_si512(low), 16), _mm512_castps_si512(high));
}

// A chunk's rows of one head as bfloat16, exactly: as they stand in the cache, else in `memory`, with their scales.
template <class From, int LINES>
KVASIR_INLINE void widen_rows(const uint8_t* const* rows, int64_t offset, uint8_t* memory, float* scales, const uint8_t** to) {
  for (int j = 0; j < CHUNK; ++j) {
    const uint8_t* row = rows[j] + offset;
    to[j] = row;
    if (sizeof(From) == 2) continue;
    to[j] = memory + j * LINES * 64;
    __builtin_memcpy(scales + j, row + LINES * 32, sizeof *scales);
#pragma GCC unroll 4
    for (int line = 0; line < LINES; ++line) {
      const __m256i numbers = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 32 * line));
      _mm512_store_si512(memory + (j * LINES + line) * 64, widened(numbers));
    }
  }
}

// Scores of R rows, one after another at `query`, and 16 keys, which lie at rows[.]. LINES: of a key.
template <int R, class From, int LINES>
KVASIR_INLINE void score(const bfloat16* query, const uint8_t* const* rows, float* scores, int64_t stride) {
  Floats four[R][4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    __m512 sum[R][4];
#pragma GCC unroll 4
    for (int key = 0; key < 4; ++key) {
#pragma GCC unroll 4
      for (int line = 0; line < LINES; ++line) {
        const __m512bh k = pairs_at(rows[4 * j + key] + 64 * line);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const __m512bh q = pairs_at(query + (r * LINES + line) * 32);
          sum[r][key] = _mm512_dpbf16_ps(line ? sum[r][key] : _mm512_setzero_ps(), k, q);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const auto of = [&](int key) { return reinterpret_cast<Floats>(sum[r][key]); };
      four[r][j] = quarter_sums(of(0), of(1), of(2), of(3));
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) store(scores + r * stride, lane_sums(four[r]));
}

// sums[r] += weights of R rows times 16 values, columns in the order that interleaving gives them.
template <int R, class From, int LINES>
KVASIR_INLINE void add_values(const uint8_t* const* rows, const bfloat16* weights, int64_t stride, float* sums) {
  __m512 sum[R][2 * LINES];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < 2 * LINES; ++n) sum[r][n] = _mm512_loadu_ps(sums + (r * 2 * LINES + n) * 16);
  for (int pair = 0; pair < CHUNK / 2; ++pair) {
    const uint8_t *even = rows[2 * pair], *odd = rows[2 * pair + 1];
#pragma GCC unroll 4
    for (int line = 0; line < LINES; ++line) {
      const __m512i a = _mm512_loadu_si512(even + 64 * line), b = _mm512_loadu_si512(odd + 64 * line);
      const __m512bh low = (__m512bh)_mm512_unpacklo_epi16(a, b), high = (__m512bh)_mm512_unpackhi_epi16(a, b);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const __m512bh weight = (__m512bh)_mm512_set1_epi32(load_as<int>(weights + r * stride + 2 * pair));
        sum[r][2 * line] = _mm512_dpbf16_ps(sum[r][2 * line], low, weight);
        sum[r][2 * line + 1] = _mm512_dpbf16_ps(sum[r][2 * line + 1], high, weight);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < 2 * LINES; ++n) _mm512_storeu_ps(sums + (r * 2 * LINES + n) * 16, sum[r][n]);
}

// Columns as add_values leaves them, in their order.
template <int LINES>
KVASIR_INLINE void in_order(const float* sums, float* out) {
  const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  for (int line = 0; line < LINES; ++line, sums += 32, out += 32) {
    const __m512 a = _mm512_loadu_ps(sums), b = _mm512_loadu_ps(sums + 16);
    _mm512_storeu_ps(out, _mm512_permutex2var_ps(a, low, b));
    _mm512_storeu_ps(out + 16, _mm512_permutex2var_ps(a, high, b));
  }
}

}  // namespace
}  // namespace KVASIR_ISA
#endif
