// The noise of kernels/gumbel.py for a vector of ids, with the same bits in every variant.
#pragma once

#include "simd.h"

namespace KVASIR_ISA {

KVASIR_INLINE uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// The key of a row's noise.
KVASIR_INLINE uint32_t noise_key(int64_t seed, int64_t position) {
  return static_cast<uint32_t>(mix64(static_cast<uint64_t>(seed) ^ mix64(static_cast<uint64_t>(position))) >> 32);
}

// 23 random bits for each id.
KVASIR_INLINE Ints noise_bits(uint32_t key, Ints ids) {
  Words x = reinterpret_cast<Words>(ids) * 0x9E3779B9u + key;
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  x = x ^ (x >> 16);
  return reinterpret_cast<Ints>(x >> 9);
}

// -log(-log(u)), u being the bits and a half in units of 2^-23.
KVASIR_INLINE Floats noise_of(Ints bits) {
  const Floats u = (__builtin_convertvector(bits, Floats) + splat(0.5f)) * splat(0x1p-23f);
  return -log(-log(u));
}

// Not below the noise, but for NOISE_ERROR, and at most 0.3 above it where the noise is above 1; a tenth of the work.
//
// -log(u) >= 1 - u, so the noise is at most -log(1 - u). A float's bits as an integer are 2^23 times a function that lies
// below its binary logarithm by up to 0.09.
constexpr float NOISE_ERROR = 1e-4f;
KVASIR_INLINE Floats noise_bound(Ints bits) {
  const Floats left = __builtin_convertvector((1 << 23) - bits, Floats) - splat(0.5f);
  const Floats logarithm = __builtin_convertvector(reinterpret_cast<Ints>(left), Floats);
  return multiply_add(logarithm, splat(-0.693147181f * 0x1p-23f), splat(150 * 0.693147181f));
}

}  // namespace KVASIR_ISA
