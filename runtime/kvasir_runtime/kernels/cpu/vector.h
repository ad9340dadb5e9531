// Sixteen floats at a time, for kernels that are written for AVX-512 alone; simd.h has what all variants can do.
#pragma once

#include "simd.h"

#ifdef __AVX512F__
namespace KVASIR_ISA {

// x / (1 + e^-x).
KVASIR_INLINE __m512 silu16(__m512 x) {
  const __m512 power = _mm512_mul_ps(x, _mm512_set1_ps(-1.44269504f));
  const __m512 e = reinterpret_cast<__m512>(exp2(reinterpret_cast<Floats>(power)));
  return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}

KVASIR_INLINE __m512 widen16(__m256i bfloat16) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bfloat16), 16));
}

#ifdef __AVX512BF16__
KVASIR_INLINE __m256i narrow16(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }
#else
// To the nearest, ties to even; NaN stays one.
KVASIR_INLINE __m256i narrow16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc00000)), 16));
}
#endif

KVASIR_INLINE __mmask16 first16(int64_t n) { return n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1); }

}  // namespace KVASIR_ISA
#endif
