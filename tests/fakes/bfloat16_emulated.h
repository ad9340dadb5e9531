// The instructions of AVX-512 BF16 in those of AVX-512, so that tests run the variant that takes them on processors without.
// Included before a source of the kernels, which is compiled for AVX-512 BF16.
#pragma once

#include <immintrin.h>

namespace emulated {

inline __attribute__((always_inline)) __m512 upper(__m512bh pairs) {
  return (__m512)_mm512_and_si512((__m512i)pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
}

inline __attribute__((always_inline)) __m512 lower(__m512bh pairs) {
  return (__m512)_mm512_slli_epi32((__m512i)pairs, 16);
}

inline __attribute__((always_inline)) __m512 add_pairs(__m512 sums, __m512bh a, __m512bh b) {
  return _mm512_fmadd_ps(lower(a), lower(b), _mm512_fmadd_ps(upper(a), upper(b), sums));
}

// To nearest, ties to even.
inline __attribute__((always_inline)) __m256bh narrowed(__m512 v) {
  const __m512i bits = (__m512i)v, odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  return (__m256bh)_mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
}

// `high` fills the upper half.
inline __attribute__((always_inline)) __m512bh narrowed_pair(__m512 high, __m512 low) {
  return (__m512bh)_mm512_inserti64x4(_mm512_castsi256_si512((__m256i)narrowed(low)), (__m256i)narrowed(high), 1);
}

}  // namespace emulated

#define _mm512_dpbf16_ps emulated::add_pairs
#define _mm512_cvtneps_pbh emulated::narrowed
#define _mm512_cvtne2ps_pbh emulated::narrowed_pair
