// Vectors of float32 in the width of the instruction set that a file is compiled for, by the compiler's own vector types
// where it turns them into the right instructions. Used by the kernels beside it; knows no tensors.
#pragma once

#if defined(__aarch64__)
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

#include "isa.h"

namespace KVASIR_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kRows = 6, kColumns = 4;  // a tile of sums, columns in vectors: 6 x 4 sums, 4 columns and a row in 32 registers
#elif defined(__aarch64__)
constexpr int kLanes = 4;
constexpr int kRows = 4, kColumns = 4;  // 4 x 4 sums, 4 columns and a row in 32 registers
#else
constexpr int kLanes = 8;
constexpr int kRows = 6, kColumns = 2;  // 6 x 2 sums, 2 columns and a row in 16 registers
#endif

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));

struct bfloat16 {
  uint16_t bits;
};

KVASIR_INLINE Floats splat(float x) { return x - Floats{}; }

// a * b + c with one rounding, in every variant: sums must not depend on what a compiler contracts.
KVASIR_INLINE Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b),
                                                  reinterpret_cast<__m512>(c)));
#elif defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#else
  return reinterpret_cast<Floats>(_mm256_fmadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b),
                                                  reinterpret_cast<__m256>(c)));
#endif
}

template <class V>
KVASIR_INLINE V load_as(const void* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

KVASIR_INLINE Floats load(const float* from) { return load_as<Floats>(from); }

KVASIR_INLINE Floats load(const bfloat16* from) {
  return reinterpret_cast<Floats>(__builtin_convertvector(load_as<Halves>(from), Words) << 16);
}

KVASIR_INLINE Floats load(const int8_t* from) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_as<__m128i>(from))));
#elif defined(__aarch64__)
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(load_as<int32_t>(from)))))));
#else
  int64_t bytes;
  __builtin_memcpy(&bytes, from, sizeof bytes);
  return reinterpret_cast<Floats>(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(bytes))));
#endif
}

KVASIR_INLINE void store(float* to, Floats v) { __builtin_memcpy(to, &v, sizeof v); }

// Round to nearest, ties to even; not for NaN, which would become infinite.
KVASIR_INLINE void store(bfloat16* to, Floats v) {
#if defined(__AVX512BF16__)
  auto halves = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(v));
#else
  Words bits = reinterpret_cast<Words>(v);
  Halves halves = __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, Halves);
#endif
  __builtin_memcpy(to, &halves, sizeof halves);
}

KVASIR_INLINE float widen(float x) { return x; }
KVASIR_INLINE float widen(int8_t x) { return x; }

KVASIR_INLINE float widen(bfloat16 x) {
  uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float wide;
  __builtin_memcpy(&wide, &bits, sizeof wide);
  return wide;
}

KVASIR_INLINE void narrow(float* to, float x) { *to = x; }

KVASIR_INLINE void narrow(bfloat16* to, float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  to->bits = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

KVASIR_INLINE Floats larger(Floats a, Floats b) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_max_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#elif defined(__aarch64__)
  return a > b ? a : b;  // b where one is no number, as on other processors
#else
  return reinterpret_cast<Floats>(_mm256_max_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
#endif
}

KVASIR_INLINE Floats smaller(Floats a, Floats b) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_min_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#elif defined(__aarch64__)
  return a < b ? a : b;
#else
  return reinterpret_cast<Floats>(_mm256_min_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
#endif
}

KVASIR_INLINE Floats square_root(Floats v) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_sqrt_ps(reinterpret_cast<__m512>(v)));
#elif defined(__aarch64__)
  return vsqrtq_f32(v);
#else
  return reinterpret_cast<Floats>(_mm256_sqrt_ps(reinterpret_cast<__m256>(v)));
#endif
}

// To the nearest whole number, ties to even.
KVASIR_INLINE Ints rounded(Floats v) {
#if defined(__AVX512F__)
  return reinterpret_cast<Ints>(_mm512_cvtps_epi32(reinterpret_cast<__m512>(v)));
#elif defined(__aarch64__)
  return vcvtnq_s32_f32(v);
#else
  return reinterpret_cast<Ints>(_mm256_cvtps_epi32(reinterpret_cast<__m256>(v)));
#endif
}

// float16, as its bits.
KVASIR_INLINE Floats load_float16(const uint16_t* from) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_cvtph_ps(load_as<__m256i>(from)));
#elif defined(__aarch64__)
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
#else
  return reinterpret_cast<Floats>(_mm256_cvtph_ps(load_as<__m128i>(from)));
#endif
}

// Bytes without a sign.
KVASIR_INLINE Words load_bytes(const uint8_t* from) {
#if defined(__AVX512F__)
  return reinterpret_cast<Words>(_mm512_cvtepu8_epi32(load_as<__m128i>(from)));
#elif defined(__aarch64__)
  return vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(load_as<uint32_t>(from))))));
#else
  return reinterpret_cast<Words>(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#endif
}

// Of each byte, 0 to 15, what a table has there.
KVASIR_INLINE Ints looked_up(const uint8_t* table, Ints bytes) {
#if defined(__AVX512F__)
  const __m512i tables = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)table));
  return reinterpret_cast<Ints>(_mm512_shuffle_epi8(tables, reinterpret_cast<__m512i>(bytes)));
#elif defined(__aarch64__)
  return reinterpret_cast<Ints>(vqtbl1q_u8(vld1q_u8(table), reinterpret_cast<uint8x16_t>(bytes)));
#else
  const __m256i tables = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i*)table));
  return reinterpret_cast<Ints>(_mm256_shuffle_epi8(tables, reinterpret_cast<__m256i>(bytes)));
#endif
}

KVASIR_INLINE void store_float16(uint16_t* to, Floats v) {
#if defined(__AVX512F__)
  const auto halves = _mm512_cvtps_ph(reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__aarch64__)
  const auto halves = vcvt_f16_f32(v);
#else
  const auto halves = _mm256_cvtps_ph(reinterpret_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT);
#endif
  __builtin_memcpy(to, &halves, sizeof halves);
}

KVASIR_INLINE float sum(Floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(reinterpret_cast<__m512>(v));
#else
  float total = 0;
  for (int i = 0; i < kLanes; ++i) total += v[i];
  return total;
#endif
}

// In each four lanes the sums of these lanes, one for each of four vectors.
KVASIR_INLINE Floats quarter_sums(Floats a, Floats b, Floats c, Floats d) {
#if defined(__AVX512F__)
  const auto sums = [](__m512 x, __m512 y) { return _mm512_add_ps(_mm512_unpacklo_ps(x, y), _mm512_unpackhi_ps(x, y)); };
  const __m512d p = _mm512_castps_pd(sums(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
  const __m512d q = _mm512_castps_pd(sums(reinterpret_cast<__m512>(c), reinterpret_cast<__m512>(d)));
  return reinterpret_cast<Floats>(_mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(p, q)),
                                                _mm512_castpd_ps(_mm512_unpackhi_pd(p, q))));
#elif defined(__aarch64__)
  return vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d));
#else
  return reinterpret_cast<Floats>(
      _mm256_hadd_ps(_mm256_hadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)),
                     _mm256_hadd_ps(reinterpret_cast<__m256>(c), reinterpret_cast<__m256>(d))));
#endif
}

// The sum of each of as many vectors as one has lanes. four: these as quarter_sums leaves them.
KVASIR_INLINE Floats lane_sums(const Floats (&four)[kLanes / 4]) {
#if defined(__AVX512F__)
  const auto halves = [](__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  const auto at = [&](int i) { return reinterpret_cast<__m512>(four[i]); };
  return reinterpret_cast<Floats>(halves(halves(at(0), at(1)), halves(at(2), at(3))));
#elif defined(__aarch64__)
  return four[0];
#else
  const __m256 a = reinterpret_cast<__m256>(four[0]), b = reinterpret_cast<__m256>(four[1]);
  return reinterpret_cast<Floats>(_mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31)));
#endif
}

KVASIR_INLINE float largest(Floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(reinterpret_cast<__m512>(v));
#else
  float best = v[0];
  for (int i = 1; i < kLanes; ++i) best = v[i] > best ? v[i] : best;
  return best;
#endif
}

// 2^x for x <= 127; 0 for x far below -126. Relative error 2.4e-7: the polynomial of 2^f on [-0.5, 0.5] is a minimax fit of
// degree 5 (its own error 9e-8), the rest is rounding.
KVASIR_INLINE Floats exp2(Floats x) {
#if defined(__AVX512F__)
  const __m512 whole = _mm512_roundscale_ps(reinterpret_cast<__m512>(x), 0);
  const Floats f = x - reinterpret_cast<Floats>(whole);
#else
  const Floats shift = splat(12582912.0f);  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const Floats clamped = larger(x, splat(-126.0f)), shifted = clamped + shift;
  const Floats f = clamped - (shifted - shift);
#endif
  Floats p = splat(0.00132647273f);
  p = multiply_add(p, f, splat(0.00967151279f));
  p = multiply_add(p, f, splat(0.0555073374f));
  p = multiply_add(p, f, splat(0.240222421f));
  p = multiply_add(p, f, splat(0.693146978f));
  p = multiply_add(p, f, splat(1.0f));
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_scalef_ps(reinterpret_cast<__m512>(p), whole));
#else
  const Ints exponent = reinterpret_cast<Ints>(shifted) << 23;
  return x < splat(-126.0f) ? Floats{} : reinterpret_cast<Floats>(reinterpret_cast<Ints>(p) + exponent);
#endif
}

// g * sigmoid(z). 2^127 is the largest that exp2 may give; beyond +-126.5 the sigmoid is 0 or 1 in float32.
KVASIR_INLINE Floats times_sigmoid(Floats g, Floats z) {
  const Floats power = exp2(-smaller(larger(z * splat(1.44269504f), splat(-126.5f)), splat(126.5f)));
  return g / (splat(1) + power);
}

// Hyperbolic tangent; relative error 2e-7. Near 0, where the sigmoid's halves would cancel, an odd polynomial: a minimax fit
// of degree 11 on [-0.625, 0.625].
KVASIR_INLINE Floats tanh(Floats x) {
  const Floats size = larger(x, -x), squared = x * x;
  Floats p = splat(-0.00610496104f);
  p = multiply_add(p, squared, splat(0.0210036524f));
  p = multiply_add(p, squared, splat(-0.0538525023f));
  p = multiply_add(p, squared, splat(0.133327828f));
  p = multiply_add(p, squared, splat(-0.333333284f));
  const Floats near = multiply_add(x * squared, p, x);
  const Floats far = multiply_add(splat(2), times_sigmoid(splat(1), x + x), splat(-1));
  const Ints is_far = size >= splat(0.625f);
  return is_far ? far : x == x ? near : x;
}

// Within the limit by a hyperbolic tangent.
KVASIR_INLINE Floats capped(Floats x, float limit) { return splat(limit) * tanh(x / splat(limit)); }

// Natural logarithm of positive normal numbers; relative error 3e-7, also near 1.
//
// log(m) = f - s * (f - r) with f = m - 1, s = f / (2 + f) and r = 2 / 3 s^2 + 2 / 5 s^4 + ..., from log(m) = 2 artanh(s).
KVASIR_INLINE Floats log(Floats x) {
  const Ints bits = reinterpret_cast<Ints>(x);
  const Ints exponent = (bits - 0x3f3504f3) >> 23;  // of a mantissa between the root of a half and that of two
  const Floats f = reinterpret_cast<Floats>(bits - (exponent << 23)) - splat(1.0f);
  const Floats s = f / (f + splat(2.0f)), z = s * s, e = __builtin_convertvector(exponent, Floats);
  Floats r = splat(2.0f / 9);
  r = multiply_add(r, z, splat(2.0f / 7));
  r = multiply_add(r, z, splat(2.0f / 5));
  r = multiply_add(r, z, splat(2.0f / 3)) * z;
  // log(2) in two parts, the first of so few bits that its product with an exponent is exact.
  const Floats low = multiply_add(-s, f - r, e * splat(1.42860677e-6f));
  return multiply_add(e, splat(0x1.62e4p-1f), f + low);
}

#if defined(__aarch64__)
constexpr Ints LANE_BITS = {1, 2, 4, 8};
#elif !defined(__AVX512F__)
constexpr Ints LANE_BITS = {1, 2, 4, 8, 16, 32, 64, 128};
#endif

// Of each lane a where its bit is set, else b.
KVASIR_INLINE Floats chosen(Floats a, uint32_t bits, Floats b) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_mask_blend_ps(static_cast<__mmask16>(bits), reinterpret_cast<__m512>(b),
                                                       reinterpret_cast<__m512>(a)));
#else
  return (static_cast<int32_t>(bits) & LANE_BITS) != 0 ? a : b;
#endif
}

// A bit for each lane in which a > b.
KVASIR_INLINE uint32_t greater_bits(Floats a, Floats b) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), _CMP_GT_OQ);
#elif defined(__aarch64__)
  return vaddvq_u32(reinterpret_cast<Words>((a > b) & LANE_BITS));
#else
  return _mm256_movemask_ps(_mm256_cmp_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), _CMP_GT_OQ));
#endif
}

}  // namespace KVASIR_ISA
