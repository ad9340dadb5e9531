// From floating-point rows to 4 bits: for each group of columns the scale and the minimum that lose least, by the search of
// weights/quantize.py, whose formulas these are. A lane is a group, so that no sum crosses lanes.
#include "attention.h"
#include "pool.h"
#include "simd.h"

namespace kvasir {

// x: (groups, GROUP), dense. values: (groups, GROUP / 2), an even column in the low half. scales, minima: (groups) float16
struct QuantizeArgs {
  const void* x;
  uint8_t* values;
  uint16_t *scales, *minima;
  int64_t groups;
  float least_scale;
  int64_t num_shares, refinements;
  float shares[8];
  Type type;
};

}  // namespace kvasir

namespace KVASIR_ISA {
namespace {

constexpr int GROUP = 32;
constexpr int64_t CHUNK = 64 * kLanes;  // groups

KVASIR_INLINE Floats nearest(Floats x, Floats inverse, Floats base) {
  const Floats shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  const Floats place = smaller(larger((x - base) * inverse, Floats{}), splat(15.0f));
  return (place + shift) - shift;
}

struct Line {
  Floats scale, base;
};

// 16 bits as the file has them, and what they stand for.
KVASIR_INLINE Floats halved(Floats v, uint16_t* to) {
  store_float16(to, v);
  return load_float16(to);
}

// As many groups as lanes: x[column], what each value's error counts, and their weighted mean.
struct Groups {
  Floats x[GROUP], weight[GROUP], low, high, mean;
};

// count: groups that there are; the last one fills the lanes behind it.
template <class T>
KVASIR_INLINE void gathered(const T* from, int64_t count, Groups& g) {
  alignas(64) float wide[kLanes][GROUP];
  for (int64_t lane = 0; lane < kLanes; ++lane)
    for (int j = 0; j < GROUP; j += kLanes) store(wide[lane] + j, load(from + (lane < count ? lane : count - 1) * GROUP + j));
  Floats squares{};
  g.low = splat(__builtin_inff());
  g.high = -g.low;
  for (int j = 0; j < GROUP; ++j) {
    Floats x{};
    for (int lane = 0; lane < kLanes; ++lane) x[lane] = wide[lane][j];
    g.x[j] = x;
    g.low = smaller(g.low, x);
    g.high = larger(g.high, x);
    squares = multiply_add(x, x, squares);
  }
  const Floats rms = square_root(squares * splat(1.0f / GROUP));
  Floats total{};
  for (int j = 0; j < GROUP; ++j) total += g.weight[j] = larger(g.x[j], -g.x[j]) + rms;
  const Floats unit = splat(1.0f) / larger(total, splat(1e-30f));
  g.mean = Floats{};
  for (int j = 0; j < GROUP; ++j) {
    g.weight[j] *= unit;
    g.mean = multiply_add(g.weight[j], g.x[j], g.mean);
  }
}

// The line that fits the numbers nearest to this one best; itself where they are nearly the same everywhere.
KVASIR_INLINE Line refined(const Groups& g, const Line& line) {
  const Floats inverse = splat(1.0f) / line.scale;
  Floats mean{}, squares{}, products{};
  for (int j = 0; j < GROUP; ++j) {
    const Floats q = nearest(g.x[j], inverse, line.base), weighed = q * g.weight[j];
    mean += weighed;
    squares = multiply_add(weighed, q, squares);
    products = multiply_add(weighed, g.x[j], products);
  }
  const Floats spread = squares - mean * mean;
  const Floats slope = (products - mean * g.mean) / larger(spread, splat(1e-9f));
  const Ints usable = (spread > splat(0.01f)) & (slope > Floats{});
  return {usable ? slope : line.scale, usable ? g.mean - slope * mean : line.base};
}

KVASIR_INLINE Floats error(const Groups& g, const Line& line) {
  const Floats inverse = splat(1.0f) / line.scale;
  Floats total{};
  for (int j = 0; j < GROUP; ++j) {
    const Floats off = multiply_add(nearest(g.x[j], inverse, line.base), line.scale, line.base) - g.x[j];
    total = multiply_add(off * off, g.weight[j], total);
  }
  return total;
}

KVASIR_INLINE Line fitted(const kvasir::QuantizeArgs& a, const Groups& g) {
  Line best{};
  Floats least{};
  for (int64_t i = 0; i < a.num_shares; ++i) {
    const Floats range = g.high - g.low, share = splat(a.shares[i]);
    Line line{larger(range * (share / 15.0f), splat(a.least_scale)), multiply_add(range, (1.0f - share) / 2.0f, g.low)};
    for (int64_t n = 0; n < a.refinements; ++n) line = refined(g, line);
    const Floats found = error(g, line);
    const Ints better = i ? found < least : ~Ints{};
    best = {better ? line.scale : best.scale, better ? line.base : best.base};
    least = better ? found : least;
  }
  return best;
}

// Up to as many groups as lanes, from `first` on.
template <class T>
KVASIR_INLINE void quantized(const kvasir::QuantizeArgs& a, int64_t first, int64_t count) {
  Groups g;
  uint16_t bits[2][kLanes];
  gathered(static_cast<const T*>(a.x) + first * GROUP, count, g);
  const Line line = fitted(a, g);
  // Once more with scale and minimum as they were rounded.
  const Floats scale = larger(halved(line.scale, bits[0]), splat(a.least_scale));
  const Floats base = -halved(-line.base, bits[1]), inverse = splat(1.0f) / scale;
  __builtin_memcpy(a.scales + first, bits[0], count * sizeof(uint16_t));
  __builtin_memcpy(a.minima + first, bits[1], count * sizeof(uint16_t));
  for (int j = 0; j < GROUP; j += 2) {
    const Floats even = nearest(g.x[j], inverse, base), odd = nearest(g.x[j + 1], inverse, base);
    const Ints both = __builtin_convertvector(multiply_add(odd, splat(16.0f), even), Ints);
    for (int64_t lane = 0; lane < count; ++lane)
      a.values[(first + lane) * (GROUP / 2) + j / 2] = static_cast<uint8_t>(both[lane]);
  }
}

template <class T>
void quantize(int tid, int nth, const kvasir::QuantizeArgs& a) {
  for (int64_t chunk; (chunk = kvasir::claim(tid, nth, (a.groups + CHUNK - 1) / CHUNK)) >= 0;) {
    const int64_t last = (chunk + 1) * CHUNK < a.groups ? (chunk + 1) * CHUNK : a.groups;
    for (int64_t first = chunk * CHUNK; first < last; first += kLanes)
      quantized<T>(a, first, last - first < kLanes ? last - first : kLanes);
  }
}

}  // namespace
}  // namespace KVASIR_ISA

KVASIR_EXPORT(kvasir_quantize4)(const kvasir::QuantizeArgs* args) {
  kvasir::run(
      [](int tid, int nth, void* p) {
        const auto& a = *static_cast<const kvasir::QuantizeArgs*>(p);
        if (a.type == kvasir::FLOAT32) KVASIR_ISA::quantize<float>(tid, nth, a);
        else KVASIR_ISA::quantize<KVASIR_ISA::bfloat16>(tid, nth, a);
      },
      args);
}
