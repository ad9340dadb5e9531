// Products of small tiles with float32 sums, and the packing that they want. Used by attention.
//
// An element is 32 bits: a float, or two neighbouring bfloat16 along the axis that is summed over, which one instruction
// multiplies and adds.
#pragma once

#include "amx.h"
#include "simd.h"

namespace KVASIR_ISA {

// One float32 per element; any cache, any processor.
struct Single {
  static constexpr int kWidth = 1, kPanelRows = kRows, kDepthUnit = 1;
  static KVASIR_INLINE Floats add_product(Floats sum, uint32_t a, Words b) {
    float x;
    __builtin_memcpy(&x, &a, sizeof x);
    return multiply_add(splat(x), reinterpret_cast<Floats>(b), sum);
  }
};

#if defined(__AVX512BF16__)
struct Pair {
  static constexpr int kWidth = 2, kPanelRows = kRows, kDepthUnit = 1;
  static KVASIR_INLINE Floats add_product(Floats sum, uint32_t a, Words b) {
    return reinterpret_cast<Floats>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum),
                                                     reinterpret_cast<__m512bh>(_mm512_set1_epi32(a)),
                                                     reinterpret_cast<__m512bh>(b)));
  }
};

// Pairs by AMX, 32 rows at a time. What is summed over, in elements, is a multiple of kDepthUnit.
struct Tiles {
  static constexpr int kWidth = 2, kPanelRows = 2 * AMX_ROWS, kDepthUnit = AMX_K / 2;
};
#endif

// Of all kinds.
constexpr int kMostPanelRows = 32;

// c[r][n] = c[r][n] * keep[r] + sum over k of a[r][k] * b[k][n], for R rows and N vectors of columns.
// keep: null means 0. Strides in elements.
template <class Kind, int R, int N>
KVASIR_INLINE void product(const uint32_t* a, int64_t lda, const uint32_t* b, int64_t ldb, int64_t depth, float* c,
                           int64_t ldc, const float* keep) {
  Floats sums[R][N];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sums[r][n] = keep ? load(c + r * ldc + n * kLanes) * splat(keep[r]) : Floats{};
  }
  for (int64_t k = 0; k < depth; ++k) {
    Words column[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) column[n] = load_as<Words>(b + k * ldb + n * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sums[r][n] = Kind::add_product(sums[r][n], a[r * lda + k], column[n]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) store(c + r * ldc + n * kLanes, sums[r][n]);
  }
}

template <class Kind, int R>
KVASIR_INLINE void product_columns(const uint32_t* a, int64_t lda, const uint32_t* b, int64_t ldb, int64_t depth, float* c,
                                   int64_t ldc, const float* keep, int64_t vectors) {
  int64_t n = 0;
  for (; n + kColumns <= vectors; n += kColumns) {
    product<Kind, R, kColumns>(a, lda, b + n * kLanes, ldb, depth, c + n * kLanes, ldc, keep);
  }
  for (; n < vectors; ++n) product<Kind, R, 1>(a, lda, b + n * kLanes, ldb, depth, c + n * kLanes, ldc, keep);
}

// As product, for 1 .. kPanelRows rows and any number of vectors. Each sum is made in the same order whatever the tile.
template <class Kind>
inline __attribute__((noinline)) void product_any(int rows, const uint32_t* a, int64_t lda, const uint32_t* b, int64_t ldb,
                                                  int64_t depth, float* c, int64_t ldc, const float* keep,
                                                  int64_t vectors) {
  switch (rows) {
    case 1: return product_columns<Kind, 1>(a, lda, b, ldb, depth, c, ldc, keep, vectors);
    case 2: return product_columns<Kind, 2>(a, lda, b, ldb, depth, c, ldc, keep, vectors);
    case 3: return product_columns<Kind, 3>(a, lda, b, ldb, depth, c, ldc, keep, vectors);
    case 4: return product_columns<Kind, 4>(a, lda, b, ldb, depth, c, ldc, keep, vectors);
    case 5: return product_columns<Kind, 5>(a, lda, b, ldb, depth, c, ldc, keep, vectors);
    default: return product_columns<Kind, 6>(a, lda, b, ldb, depth, c, ldc, keep, vectors);
  }
}

#if defined(__AVX512BF16__)
template <bool TWO_BLOCKS, bool TWO_TILES>
KVASIR_INLINE void product_tiles(const uint32_t* a, int64_t lda, const uint32_t* b, int64_t ldb, int64_t depth, float* c,
                                 int64_t ldc, bool add) {
  float* low = c + AMX_ROWS * ldc;
  if (add) {
    KVASIR_TILE_LOAD(0, c, 4 * ldc);
    if (TWO_TILES) KVASIR_TILE_LOAD(1, c + 16, 4 * ldc);
    if (TWO_BLOCKS) KVASIR_TILE_LOAD(2, low, 4 * ldc);
    if (TWO_BLOCKS && TWO_TILES) KVASIR_TILE_LOAD(3, low + 16, 4 * ldc);
  } else {
    KVASIR_TILE_ZERO(0);
    if (TWO_TILES) KVASIR_TILE_ZERO(1);
    if (TWO_BLOCKS) KVASIR_TILE_ZERO(2);
    if (TWO_BLOCKS && TWO_TILES) KVASIR_TILE_ZERO(3);
  }
  tile_dots<TWO_BLOCKS, TWO_TILES>(a, a + AMX_ROWS * lda, 4 * lda, b, 4 * ldb, depth / Tiles::kDepthUnit, [] {});
  KVASIR_TILE_STORE(0, c, 4 * ldc);
  if (TWO_TILES) KVASIR_TILE_STORE(1, c + 16, 4 * ldc);
  if (TWO_BLOCKS) KVASIR_TILE_STORE(2, low, 4 * ldc);
  if (TWO_BLOCKS && TWO_TILES) KVASIR_TILE_STORE(3, low + 16, 4 * ldc);
}

template <bool TWO_BLOCKS>
KVASIR_INLINE void product_of_tiles(const uint32_t* a, int64_t lda, const uint32_t* b, int64_t ldb, int64_t depth, float* c,
                                    int64_t ldc, bool add, int64_t vectors) {
  int64_t n = 0;
  for (; n + 2 <= vectors; n += 2) {
    product_tiles<TWO_BLOCKS, true>(a, lda, b + n * kLanes, ldb, depth, c + n * kLanes, ldc, add);
  }
  if (n < vectors) product_tiles<TWO_BLOCKS, false>(a, lda, b + n * kLanes, ldb, depth, c + n * kLanes, ldc, add);
}

template <>
inline __attribute__((noinline)) void product_any<Tiles>(int rows, const uint32_t* a, int64_t lda, const uint32_t* b,
                                                         int64_t ldb, int64_t depth, float* c, int64_t ldc,
                                                         const float* keep, int64_t vectors) {
  for (int r = 0; r < rows && keep; ++r) {
    for (int64_t n = 0; n < vectors * kLanes; n += kLanes) {
      store(c + r * ldc + n, load(c + r * ldc + n) * splat(keep[r]));
    }
  }
  const int64_t high = rows < AMX_ROWS ? rows : AMX_ROWS, low = rows - high;
  const TileConfig config = config_of(high, low);
  KVASIR_TILE_CONFIGURE(config);
  if (low) product_of_tiles<true>(a, lda, b, ldb, depth, c, ldc, keep, vectors);
  else product_of_tiles<false>(a, lda, b, ldb, depth, c, ldc, keep, vectors);
  KVASIR_TILE_RELEASE();
}
#endif

// to[e][i] = rows[i][e] for 16 rows and `count` elements, a multiple of 16.
KVASIR_INLINE void transpose_16(const uint32_t* const* rows, int64_t count, uint32_t* to, int64_t stride) {
#if defined(__AVX512F__)
  for (int64_t e = 0; e < count; e += 16) {
    __m512i r[16], t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(rows[i] + e);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
      r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
      r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
      r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
      r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
      t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
      t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
      t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      _mm512_storeu_si512(to + (e + i) * stride, _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88));
      _mm512_storeu_si512(to + (e + i + 8) * stride, _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd));
      _mm512_storeu_si512(to + (e + i + 4) * stride, _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88));
      _mm512_storeu_si512(to + (e + i + 12) * stride, _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd));
    }
  }
#else
  for (int64_t e = 0; e < count; ++e) {
    for (int i = 0; i < 16; ++i) to[e * stride + i] = rows[i][e];
  }
#endif
}

}  // namespace KVASIR_ISA
