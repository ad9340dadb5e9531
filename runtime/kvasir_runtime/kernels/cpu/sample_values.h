// Logits of a row, or some of them, with their ids: what sampling counts, sums and draws from.
#pragma once

#include "gumbel.h"

namespace KVASIR_ISA {

constexpr int64_t SAMPLE_BLOCK = 1024;  // ids whose masses are summed in float32
constexpr uint32_t LANES = (1u << kLanes) - 1;
constexpr float INFINITE = __builtin_inff();

// The best of what was drawn from: its x + noise, its id, -1 where there was nothing, and its logit.
struct Drawn {
  float score = -INFINITE;
  int32_t id = -1;
  float logit = -INFINITE;
};

// DENSE: a value's place is its id. MASKED: the same, and where bits are 0 a value counts as -infinity. LISTED: with ids.
enum ValuesKind { DENSE, MASKED, LISTED };

// ids and bits: of those kinds alone. The kind is known to the compiler, as loops over values are short.
template <class T, ValuesKind KIND>
struct Values {
  const T* values;
  int64_t count;
  const int32_t* ids = nullptr;
  const uint32_t* bits = nullptr;

  // kLanes of them from a multiple of kLanes on; behind the last one -infinity, which is never drawn.
  KVASIR_INLINE Floats at(int64_t i) const { return kept(all_at(i), i); }

  KVASIR_INLINE Floats kept(Floats logits, int64_t i) const {
    if constexpr (KIND == MASKED) return chosen(logits, bits[i / 32] >> i % 32, splat(-INFINITE));
    return logits;
  }

  KVASIR_INLINE Floats all_at(int64_t i) const {
    if (i + kLanes <= count) return load(values + i);
    float rest[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) rest[lane] = i + lane < count ? widen(values[i + lane]) : -INFINITE;
    return load(rest);
  }

  KVASIR_INLINE Ints ids_at(int64_t i) const {
    Ints found{};
    if constexpr (KIND == LISTED) {
      if (i + kLanes <= count) return load_as<Ints>(ids + i);
      for (int64_t lane = 0; i + lane < count; ++lane) found[lane] = ids[i + lane];
      return found;
    }
    for (int lane = 0; lane < kLanes; ++lane) found[lane] = lane;
    return found + static_cast<int32_t>(i);
  }
};

// How the logits of a row become x of kernels/sample.py. top: the largest logit.
struct Scale {
  float divisor, inverse, top;
  uint32_t key;
};

// Ids that are drawn from: those with a logit of at least `all`, and ids below `end` with one of at least `some`.
struct Range {
  float all, some = INFINITE;
  int32_t end = 0;

  KVASIR_INLINE Ints holds(Floats logits, Ints ids) const {
    return (logits >= splat(all)) | ((logits >= splat(some)) & (ids < end + Ints{}));
  }

  // False where it holds none of them, whatever their ids.
  KVASIR_INLINE bool may_hold(Floats logits) const {
    return ~greater_bits(splat(all < some ? all : some), logits) & LANES;
  }
};

KVASIR_INLINE float next_up(float x) {
  int32_t bits;
  x += 0.0f;  // one zero
  __builtin_memcpy(&bits, &x, sizeof bits);
  bits += bits < 0 ? -1 : 1;
  __builtin_memcpy(&x, &bits, sizeof bits);
  return x;
}

// The smallest logit that is x or more when it is divided. As a rounded quotient has two or three dividends, the search
// is short; it is bounded for those that overflow.
inline float first_at_least(float x, float divisor) {
  float logit = x * divisor;
  for (int i = 0; i < 64 && logit / divisor < x; ++i) logit = next_up(logit);
  for (int i = 0; i < 64 && -next_up(-logit) / divisor >= x; ++i) logit = -next_up(-logit);
  return logit;
}

// Ids before this one in the order of kernels/sample.py: larger ones, and of equals the lower.
inline Range before(const Drawn& drawn, float divisor) {
  const float x = drawn.logit / divisor;
  return {first_at_least(next_up(x), divisor), first_at_least(x, divisor), drawn.id};
}

// exp(x) in units of the largest.
KVASIR_INLINE Floats masses(Floats logits, const Scale& scale) {
  const Floats powers = (logits - splat(scale.top)) * splat(scale.inverse * 1.44269504f);
  return exp2(larger(powers, splat(-126.0f)));
}

template <class V>
double mass_of(const V& v, int64_t from, int64_t to, const Scale& scale, const Range& range) {
  double total = 0;
  for (int64_t block = from; block < to; block += SAMPLE_BLOCK) {
    Floats part{};
    const int64_t end = to < block + SAMPLE_BLOCK ? to : block + SAMPLE_BLOCK;
    for (int64_t i = block; i < end; i += kLanes) {
      const Floats logits = v.at(i);
      if (!range.may_hold(logits)) continue;
      part += range.holds(logits, v.ids_at(i)) ? masses(logits, scale) : Floats{};
    }
    total += sum(part);
  }
  return total;
}

// The id with the largest x + noise of those in the range. All of them get a bound of it, few the exact sum.
template <class V>
Drawn drawn_of(const V& v, int64_t from, int64_t to, const Scale& scale, const Range& range) {
  Drawn best;
  // Multiplying instead of dividing may miss x by a few units in the last place of the largest.
  const float slack = NOISE_ERROR + 1e-6f * (32 + __builtin_fabsf(scale.top * scale.inverse));
  Floats enough = splat(-INFINITE);
  for (int64_t i = from; i < to; i += kLanes) {
    const Floats logits = v.at(i);
    if (!range.may_hold(logits)) continue;
    const Ints ids = v.ids_at(i), bits = noise_bits(scale.key, ids);
    const Floats bound = multiply_add(logits, splat(scale.inverse), noise_bound(bits));
    if (!greater_bits(bound, enough)) continue;
    const Floats scores = range.holds(logits, ids) ? logits / splat(scale.divisor) + noise_of(bits) : splat(-INFINITE);
    for (uint32_t better = greater_bits(scores, splat(best.score)); better; better &= better - 1) {
      const int lane = __builtin_ctz(better);
      if (scores[lane] > best.score) best = {scores[lane], ids[lane], logits[lane]};
    }
    enough = splat(best.score - slack);
  }
  return best;
}

}  // namespace KVASIR_ISA
