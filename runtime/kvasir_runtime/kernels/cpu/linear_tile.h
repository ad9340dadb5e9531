// What happens to a sum of the products that are written for AVX-512.
#pragma once

#include "linear_tasks.h"
#include "vector.h"

#ifdef __AVX512F__
namespace KVASIR_ISA {

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

}  // namespace KVASIR_ISA
#endif
