// Drawing tokens without sorting and without a copy of the logits.
//
// The largest of x + noise among all ids is also the largest among those that a filter keeps, if it is one of them. So a
// row is drawn from first, and then the mass before the drawn id says whether top_p keeps it. If not, top_p keeps none
// behind it either, and the ids before it are drawn from, until one is kept: nearly always the first or the second. min_p
// is a limit that is known beforehand. The top_k are few: a lower bound of the last one is the k-th largest of the largest
// of groups of ids, and what is not below it is listed.
//
// A row is cut into parts, whose sums are put together in their order by whichever thread: results depend on nothing else.
#include "sample.h"

#include "pool.h"
#include "sample_top.h"
#include "sample_values.h"

namespace KVASIR_ISA {
namespace {

using kvasir::Draw;
using kvasir::SampleArgs;

constexpr int64_t PART = 16384;
constexpr int64_t GROUPS = PART / SAMPLE_BLOCK * kLanes;  // each a lane of a block

// What is known of a part of a row. top: NaN counts as infinity, which makes the row invalid too.
// mass: of the ids that min_p keeps. before: of those before the id that was drawn from the whole row.
struct Part {
  float top;
  Drawn drawn;
  double mass, before;
  float groups[GROUPS];
};

int64_t parts_of(const SampleArgs& a) { return (a.columns + PART - 1) / PART; }

KVASIR_INLINE bool is_finite(float x) { return x > -INFINITE && x < INFINITE; }

template <class T>
struct Sampling {
  const SampleArgs& a;
  int64_t parts;
  Part* found;
  int tid;

  Part& part(int64_t row, int64_t p) const { return found[row * parts + p]; }
  Values<T> values(int64_t row) const { return {static_cast<const T*>(a.logits) + row * a.columns, nullptr, a.columns}; }
  int64_t end(int64_t p) const { return (p + 1) * PART < a.columns ? (p + 1) * PART : a.columns; }

  float top(int64_t row) const {
    float top = -INFINITE;
    for (int64_t p = 0; p < parts; ++p) top = part(row, p).top > top ? part(row, p).top : top;
    return top;
  }

  Scale scale(int64_t row, float top) const {
    const Draw& d = a.draws[row];
    const float divisor = d.temperature > 1e-5f ? d.temperature : 1e-5f;
    return {divisor, 1 / divisor, top, noise_key(d.seed, d.position)};
  }

  // Of the ids that min_p keeps.
  Range kept_by_min_p(int64_t row, const Scale& scale) const {
    const float min_p = a.draws[row].min_p;
    if (min_p <= 0) return {-INFINITE};
    const float least = scale.top / scale.divisor + log(splat(min_p > 1.2e-38f ? min_p : 1.2e-38f))[0];
    return {first_at_least(least, scale.divisor)};
  }

  Drawn drawn(int64_t row) const {
    Drawn best;
    for (int64_t p = 0; p < parts; ++p) {
      if (part(row, p).drawn.score > best.score) best = part(row, p).drawn;
    }
    return best;
  }

  // Whether parts of the row are drawn from.
  bool draws(int64_t row, float top) const {
    return a.draws[row].temperature > 0 && a.draws[row].top_k <= 0 && is_finite(top);
  }

  void find_top(int64_t row, int64_t p) const {
    const Values<T> v = values(row);
    Part& found = part(row, p);
    Floats top = splat(-INFINITE);
    Ints unordered{};
    for (int64_t block = 0; block < PART / SAMPLE_BLOCK; ++block) {
      Floats most = splat(-INFINITE);
      const int64_t first = p * PART + block * SAMPLE_BLOCK;
      const int64_t last = first + SAMPLE_BLOCK < a.columns ? first + SAMPLE_BLOCK : a.columns;
      for (int64_t i = first; i < last; i += kLanes) {
        const Floats logits = v.at(i);
        most = larger(logits, most);
        unordered |= logits != logits;
      }
      top = larger(most, top);
      if (a.draws[row].top_k > 0) store(found.groups + block * kLanes, most);
    }
    found.top = largest(unordered ? splat(INFINITE) : top);
  }

  void draw(int64_t row, int64_t p) const {
    const float most = top(row);
    if (!draws(row, most)) return;
    const Scale s = scale(row, most);
    const Range range = kept_by_min_p(row, s);
    part(row, p).drawn = drawn_of(values(row), p * PART, end(p), s, range);
    if (a.draws[row].top_p < 1) part(row, p).mass = mass_of(values(row), p * PART, end(p), s, range);
  }

  void weigh(int64_t row, int64_t p) const {
    const float most = top(row);
    if (!draws(row, most) || a.draws[row].top_p >= 1) return;
    const Scale s = scale(row, most);
    part(row, p).before = mass_of(values(row), p * PART, end(p), s, before(drawn(row), s.divisor));
  }

  int64_t settled(int64_t row) const {
    const Draw& d = a.draws[row];
    const float most = top(row);
    if (!is_finite(most)) return -1;
    if (d.temperature <= 0) return first_top(row, most);
    const Scale s = scale(row, most);
    const int64_t id = d.top_k > 0 ? drawn_of_top_k(row, s) : drawn_of_all(row, s);
    return id < 0 ? first_top(row, most) : id;  // where every x overflows to -infinity
  }

  int64_t drawn_of_all(int64_t row, const Scale& s) const {
    const Drawn best = drawn(row);
    if (a.draws[row].top_p >= 1) return best.id;
    double mass = 0, ahead = 0;
    for (int64_t p = 0; p < parts; ++p) {
      mass += part(row, p).mass;
      ahead += part(row, p).before;
    }
    return kept_by_top_p(values(row), s, best, ahead, a.draws[row].top_p * mass);
  }

  int64_t first_top(int64_t row, float top) const {
    const Values<T> v = values(row);
    int64_t i = 0;
    while (part(row, i / PART).top != top) i += PART;
    while (widen(v.values[i]) != top) ++i;
    return i;
  }

  // best: drawn from the values. ahead: the mass before it, which is less than limit for the ids that are kept.
  template <class V>
  int64_t kept_by_top_p(const Values<V>& v, const Scale& s, Drawn best, double ahead, double limit) const {
    while (ahead > 0 && ahead >= limit) {
      best = drawn_of(v, 0, v.count, s, before(best, s.divisor));
      ahead = mass_of(v, 0, v.count, s, before(best, s.divisor));
    }
    return best.id;
  }

  int64_t drawn_of_top_k(int64_t row, const Scale& s) const {
    const Draw& d = a.draws[row];
    auto* orders = static_cast<uint64_t*>(kvasir::own_scratch(tid, kvasir::SLOT_OTHER, room()));
    auto* xs = reinterpret_cast<float*>(orders + most_orders());
    auto* ids = reinterpret_cast<int32_t*>(xs + a.columns);
    int64_t count = listed(row, s, least_of_top_k(row, orders), xs, ids);
    if (count > d.top_k) {
      for (int64_t i = 0; i < count; ++i) orders[i] = order_of(xs[i], ids[i]);
      const uint64_t last = selected(orders, count, d.top_k - 1);
      int64_t kept = 0;
      for (int64_t i = 0; i < count; ++i) {
        if (order_of(xs[i], ids[i]) > last) continue;
        xs[kept] = xs[i];
        ids[kept++] = ids[i];
      }
      count = kept;
    }
    const Values<float> v{xs, ids, count};
    const Scale divided{1, 1, s.top / s.divisor, s.key};
    const Range all{-INFINITE};
    const Drawn best = drawn_of(v, 0, count, divided, all);
    if (d.top_p >= 1) return best.id;
    const double ahead = mass_of(v, 0, count, divided, before(best, 1));
    return kept_by_top_p(v, divided, best, ahead, d.top_p * mass_of(v, 0, count, divided, all));
  }

  int64_t most_orders() const { return parts * (GROUPS > PART ? GROUPS : PART); }
  int64_t room() const { return most_orders() * 8 + a.columns * 8; }

  // A logit that is not above any of the top_k; the largest of as many groups are not below it.
  float least_of_top_k(int64_t row, uint64_t* orders) const {
    const int64_t k = a.draws[row].top_k, count = parts * GROUPS;
    if (k > count) return -INFINITE;
    for (int64_t i = 0; i < count; ++i) orders[i] = order_of(part(row, i / GROUPS).groups[i % GROUPS], i);
    return value_of(selected(orders, count, k - 1));
  }

  // x of the ids with a logit that gives no less than this one does and that min_p keeps, with their ids; how many.
  int64_t listed(int64_t row, const Scale& s, float logit, float* xs, int32_t* ids) const {
    const Values<T> v = values(row);
    const float least = kept_by_min_p(row, s).all;
    const float first = logit > -INFINITE ? first_at_least(logit / s.divisor, s.divisor) : -3.4e38f;
    const float below = -next_up(-(first > least ? first : least));
    int64_t count = 0;
    for (int64_t i = 0; i < a.columns; i += kLanes) {
      uint32_t lanes = greater_bits(v.at(i), splat(below));
      if (!lanes) continue;
      const Floats x = v.at(i) / splat(s.divisor);
      for (; lanes; lanes &= lanes - 1) {
        const int lane = __builtin_ctz(lanes);
        xs[count] = x[lane];
        ids[count++] = static_cast<int32_t>(i) + lane;
      }
    }
    return count;
  }
};

template <class T>
void sample_rows(int tid, int nth, const SampleArgs& a) {
  const Sampling<T> s{a, parts_of(a), static_cast<Part*>(kvasir::shared_scratch(kvasir::SLOT_OTHER)), tid};
  if (a.rows >= 2 * nth) {  // a row that one thread passes three times stays in its cache
    for (int64_t row; (row = kvasir::claim(tid, nth, a.rows)) >= 0;) {
      for (int64_t p = 0; p < s.parts; ++p) s.find_top(row, p);
      for (int64_t p = 0; p < s.parts; ++p) s.draw(row, p);
      for (int64_t p = 0; p < s.parts; ++p) s.weigh(row, p);
      a.ids[row] = s.settled(row);
    }
    return;
  }
  const int64_t chunks = a.rows * s.parts;
  for (int64_t c; (c = kvasir::claim(tid, nth, chunks)) >= 0;) s.find_top(c / s.parts, c % s.parts);
  kvasir::barrier(tid, nth);
  for (int64_t c; (c = kvasir::claim(tid, nth, chunks)) >= 0;) s.draw(c / s.parts, c % s.parts);
  kvasir::barrier(tid, nth);
  for (int64_t c; (c = kvasir::claim(tid, nth, chunks)) >= 0;) s.weigh(c / s.parts, c % s.parts);
  kvasir::barrier(tid, nth);
  for (int64_t row; (row = kvasir::claim(tid, nth, a.rows)) >= 0;) a.ids[row] = s.settled(row);
}

}  // namespace

int64_t sample_bytes(const SampleArgs& a) { return a.rows * parts_of(a) * static_cast<int64_t>(sizeof(Part)); }

void sample(int tid, int nth, const SampleArgs& a) {
  a.type == kvasir::FLOAT32 ? sample_rows<float>(tid, nth, a) : sample_rows<bfloat16>(tid, nth, a);
}

}  // namespace KVASIR_ISA

KVASIR_EXPORT(kvasir_sample)(const kvasir::SampleArgs* args) {
  const kvasir::Need need{kvasir::SLOT_OTHER, KVASIR_ISA::sample_bytes(*args)};
  kvasir::run(
      [](int tid, int nth, void* p) { KVASIR_ISA::sample(tid, nth, *static_cast<const kvasir::SampleArgs*>(p)); },
      const_cast<kvasir::SampleArgs*>(args), &need, 1);
}
