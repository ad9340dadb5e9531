// Drawing tokens without sorting and without a copy of the logits.
//
// The largest of x + noise among all ids is also the largest among those that a filter keeps, if it is one of them. So a
// row is drawn from first, and then the mass before the drawn id says whether top_p keeps it. If not, top_p keeps none
// behind it either, and the ids before it are drawn from, until one is kept: nearly always the first or the second. min_p
// is a limit that is known beforehand. The top_k are few: a lower bound of the last one is the k-th largest of the largest
// of groups of ids, and what is not below it is selected.
//
// A row is cut into parts, whose sums are put together in their order by whichever thread: results depend on nothing else.
#include "sample.h"

#include "pool.h"
#include "sample_edits.h"
#include "sample_top.h"

namespace KVASIR_ISA {
namespace {

using kvasir::Draw;
using kvasir::Edits;
using kvasir::SampleArgs;

constexpr int64_t PART = 16384;
constexpr int64_t GROUPS = PART / SAMPLE_BLOCK * kLanes;  // each a lane of a block

// What is known of a part of a row. given: its largest logit as the model gave it, top: as it is edited. NaN counts as
// infinity, which makes the row invalid too.
// mass: of the ids that min_p keeps. before: of those before the id that was drawn from the whole row.
struct Part {
  float given, top;
  Drawn drawn;
  double mass, before;
  float groups[GROUPS];
};

int64_t parts_of(const SampleArgs& a) { return (a.columns + PART - 1) / PART; }

KVASIR_INLINE bool is_finite(float x) { return x > -INFINITE && x < INFINITE; }

template <class T>
struct Sampling {
  const SampleArgs& a;
  int64_t parts;  // of the logits; the list of edited ones is one more
  Part* found;
  Edited* edited;  // of each row, and behind them their memory
  int64_t listed;  // ids of a list, at most
  int tid;

  const Edits* edits(int64_t row) const { return a.edits ? a.edits[row] : nullptr; }
  Part& part(int64_t row, int64_t p) const { return found[row * (parts + 1) + p]; }
  const T* logits(int64_t row) const { return static_cast<const T*>(a.logits) + row * a.columns; }
  Values<float, LISTED> list(int64_t row) const {
    if (!edits(row)) return {nullptr, 0};
    return {edited[row].logits, edited[row].count, edited[row].ids};
  }
  int64_t end(int64_t p) const { return (p + 1) * PART < a.columns ? (p + 1) * PART : a.columns; }

  // Calls back with the logits that are not listed.
  template <class F>
  auto of_values(int64_t row, const F& f) const {
    if (!edits(row)) return f(Values<T, DENSE>{logits(row), a.columns});
    return f(Values<T, MASKED>{logits(row), a.columns, nullptr, edited[row].bits});
  }

  // Calls back with the values of a part, and with the first and the last of them.
  template <class F>
  void of_part(int64_t row, int64_t p, const F& f) const {
    if (p == parts) return f(list(row), int64_t{0}, list(row).count);
    of_values(row, [&](const auto& v) { f(v, p * PART, end(p)); });
  }

  float top(int64_t row) const {
    float top = -INFINITE;
    for (int64_t p = 0; p <= parts; ++p) top = part(row, p).top > top ? part(row, p).top : top;
    return top;
  }

  // Of the logits as the model gave them.
  bool is_valid(int64_t row) const {
    float most = -INFINITE;
    for (int64_t p = 0; p < parts; ++p) most = part(row, p).given > most ? part(row, p).given : most;
    return is_finite(most);
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
    for (int64_t p = 0; p <= parts; ++p) {
      if (part(row, p).drawn.score > best.score) best = part(row, p).drawn;
    }
    return best;
  }

  // Whether parts of the row are drawn from.
  bool draws(int64_t row, float top) const {
    return a.draws[row].temperature > 0 && a.draws[row].top_k <= 0 && is_finite(top);
  }

  void edit(int64_t row, const Edits* e) const {
    if (!e) return;
    Edited& made = edited[row];
    made.bits = reinterpret_cast<uint32_t*>(edited + a.rows) + row * (bits_of(a.columns) + 2 * listed);
    made.ids = reinterpret_cast<int32_t*>(made.bits + bits_of(a.columns));
    made.logits = reinterpret_cast<float*>(made.ids + listed);
    auto* counts = static_cast<int32_t*>(kvasir::own_scratch(tid, kvasir::SLOT_STEP, a.columns * sizeof(int32_t)));
    Editing<T>{*e, logits(row), a.columns, made, counts}.run();
  }

  void find_top(int64_t row, int64_t p) const {
    of_part(row, p, [&](const auto& v, int64_t from, int64_t to) { find_top(part(row, p), v, from, to); });
  }

  template <class V>
  static void find_top(Part& found, const V& v, int64_t from, int64_t to) {
    Floats top = splat(-INFINITE), given = top;
    Ints unordered{};
    for (int64_t group = 0; group < GROUPS / kLanes || from < to; ++group) {
      Floats most = splat(-INFINITE);
      const int64_t last = from + SAMPLE_BLOCK < to ? from + SAMPLE_BLOCK : to;
      for (; from < last; from += kLanes) {
        const Floats logits = v.all_at(from);
        given = larger(logits, given);
        most = larger(v.kept(logits, from), most);
        unordered |= logits != logits;
      }
      top = larger(most, top);
      // Of a list that is longer than a part the rest has no group: fewer groups only list more.
      if (group < GROUPS / kLanes) store(found.groups + group * kLanes, most);
    }
    found.given = largest(unordered ? splat(INFINITE) : given);
    found.top = largest(top);
  }

  void draw(int64_t row, int64_t p) const {
    const float most = top(row);
    if (!draws(row, most)) return;
    const Scale s = scale(row, most);
    const Range range = kept_by_min_p(row, s);
    of_part(row, p, [&](const auto& v, int64_t from, int64_t to) {
      part(row, p).drawn = drawn_of(v, from, to, s, range);
      if (a.draws[row].top_p < 1) part(row, p).mass = mass_of(v, from, to, s, range);
    });
  }

  void weigh(int64_t row, int64_t p) const {
    const float most = top(row);
    if (!draws(row, most) || a.draws[row].top_p >= 1) return;
    const Scale s = scale(row, most);
    const Range range = before(drawn(row), s.divisor);
    double& found = part(row, p).before;
    of_part(row, p, [&](const auto& v, int64_t from, int64_t to) { found = mass_of(v, from, to, s, range); });
  }

  int64_t settled(int64_t row) const {
    const Draw& d = a.draws[row];
    const float most = top(row);
    if (!is_valid(row) || !is_finite(most)) return -1;
    if (d.temperature <= 0) return first_top(row, most);
    const Scale s = scale(row, most);
    const int64_t id = d.top_k > 0 ? drawn_of_top_k(row, s) : drawn_of_all(row, s);
    return id < 0 ? first_top(row, most) : id;  // where every x overflows to -infinity
  }

  int64_t first_top(int64_t row, float top) const {
    const Values<float, LISTED> few = list(row);
    int64_t first = a.columns;
    for (int64_t i = 0; i < few.count; ++i) {
      if (few.values[i] == top && few.ids[i] < first) first = few.ids[i];
    }
    int64_t i = 0;
    while (i < first && part(row, i / PART).top != top) i += PART;
    const uint32_t* bits = edits(row) ? edited[row].bits : nullptr;
    for (const T* all = logits(row); i < first; ++i) {
      if (widen(all[i]) == top && (!bits || bits[i / 32] >> i % 32 & 1)) return i;
    }
    return first;
  }

  int64_t drawn_of_all(int64_t row, const Scale& s) const {
    const Drawn best = drawn(row);
    if (a.draws[row].top_p >= 1) return best.id;
    double mass = 0, ahead = 0;
    for (int64_t p = 0; p <= parts; ++p) {
      mass += part(row, p).mass;
      ahead += part(row, p).before;
    }
    return of_values(row, [&](const auto& v) {
      return kept_by_top_p(v, list(row), s, best, ahead, a.draws[row].top_p * mass);
    });
  }

  // best: drawn from v and few. ahead: the mass before it, which is less than limit for the ids that are kept.
  template <class V>
  int64_t kept_by_top_p(const V& v, const Values<float, LISTED>& few, const Scale& s, Drawn best, double ahead,
                        double limit) const {
    while (ahead > 0 && ahead >= limit) {
      const Range range = before(best, s.divisor);
      const Drawn one = drawn_of(v, 0, v.count, s, range), other = drawn_of(few, 0, few.count, s, range);
      best = other.score > one.score ? other : one;
      const Range rest = before(best, s.divisor);
      ahead = mass_of(v, 0, v.count, s, rest) + mass_of(few, 0, few.count, s, rest);
    }
    return best.id;
  }

  int64_t drawn_of_top_k(int64_t row, const Scale& s) const {
    const Draw& d = a.draws[row];
    auto* orders = static_cast<uint64_t*>(kvasir::own_scratch(tid, kvasir::SLOT_OTHER, room()));
    Selected few{reinterpret_cast<float*>(orders + most_orders()), nullptr, 0};
    few.ids = reinterpret_cast<int32_t*>(few.xs + a.columns);
    const float least = least_of_top_k(row, orders);
    of_values(row, [&](const auto& v) { select(v, row, s, least, few); });
    select(list(row), row, s, least, few);
    if (few.count > d.top_k) keep_first(few, d.top_k, orders);
    const Values<float, LISTED> v{few.xs, few.count, few.ids}, none{nullptr, 0};
    const Scale divided{1, 1, s.top / s.divisor, s.key};
    const Range all{-INFINITE};
    const Drawn best = drawn_of(v, 0, v.count, divided, all);
    if (d.top_p >= 1) return best.id;
    const double ahead = mass_of(v, 0, v.count, divided, before(best, 1));
    return kept_by_top_p(v, none, divided, best, ahead, d.top_p * mass_of(v, 0, v.count, divided, all));
  }

  // Some x with their ids.
  struct Selected {
    float* xs;
    int32_t* ids;
    int64_t count;
  };

  static void keep_first(Selected& few, int64_t k, uint64_t* orders) {
    for (int64_t i = 0; i < few.count; ++i) orders[i] = order_of(few.xs[i], few.ids[i]);
    const uint64_t last = selected(orders, few.count, k - 1);
    int64_t kept = 0;
    for (int64_t i = 0; i < few.count; ++i) {
      if (order_of(few.xs[i], few.ids[i]) > last) continue;
      few.xs[kept] = few.xs[i];
      few.ids[kept++] = few.ids[i];
    }
    few.count = kept;
  }

  int64_t most_orders() const { return (parts + 1) * (GROUPS > PART ? GROUPS : PART); }
  int64_t room() const { return most_orders() * 8 + a.columns * 8; }

  // A logit that is not above any of the top_k; the largest of as many groups are not below it.
  float least_of_top_k(int64_t row, uint64_t* orders) const {
    const int64_t k = a.draws[row].top_k, count = (parts + 1) * GROUPS;
    if (k > count) return -INFINITE;
    for (int64_t i = 0; i < count; ++i) orders[i] = order_of(part(row, i / GROUPS).groups[i % GROUPS], i);
    return value_of(selected(orders, count, k - 1));
  }

  // Adds the ids with a logit that gives no less than `least` does, and that min_p keeps.
  template <class V>
  void select(const V& v, int64_t row, const Scale& s, float least, Selected& few) const {
    const float kept = kept_by_min_p(row, s).all;
    const float first = least > -INFINITE ? first_at_least(least / s.divisor, s.divisor) : -3.4e38f;
    const float below = -next_up(-(first > kept ? first : kept));
    for (int64_t i = 0; i < v.count; i += kLanes) {
      uint32_t lanes = greater_bits(v.at(i), splat(below));
      if (!lanes) continue;
      const Floats x = v.at(i) / splat(s.divisor);
      const Ints ids = v.ids_at(i);
      for (; lanes; lanes &= lanes - 1) {
        const int lane = __builtin_ctz(lanes);
        few.xs[few.count] = x[lane];
        few.ids[few.count++] = ids[lane];
      }
    }
  }

  // A whole row, on this thread.
  int64_t sampled(int64_t row, const Edits* e) const {
    edit(row, e);
    for (int64_t p = 0; p <= parts; ++p) find_top(row, p);
    for (int64_t p = 0; p <= parts; ++p) draw(row, p);
    for (int64_t p = 0; p <= parts; ++p) weigh(row, p);
    return settled(row);
  }

  // The id of a row of which everything is forbidden: the fallback, as if it were the only one that the request allows,
  // unless only the grammar forbids the others; and where the grammar forbids it too, what the grammar alone allows.
  int64_t recovered(int64_t row) const {
    const Edits& e = *edits(row);
    Edits other = e;
    other.mask = nullptr;
    const bool dead = !e.mask || (sampled(row, &other) < 0 && top(row) == -INFINITE);
    const bool allowed = e.fallback >= 0 && (!e.mask || (e.fallback / 32 < e.mask_words &&
                                                         e.mask[e.fallback / 32] >> e.fallback % 32 & 1));
    if (dead && allowed) return e.fallback;
    if (!e.mask) return -1;
    other = Edits{};
    other.repetition = 1;
    other.mask = e.mask;
    other.mask_words = e.mask_words;
    return sampled(row, &other);
  }

  bool is_dead(int64_t row) const { return edits(row) && is_valid(row) && top(row) == -INFINITE; }
};

int64_t most_listed(const SampleArgs& a) {
  int64_t most = 0;
  for (int64_t row = 0; a.edits && row < a.rows; ++row) {
    const int64_t own = a.edits[row] ? most_edited(*a.edits[row], a.columns) : 0;
    most = own > most ? own : most;
  }
  return most;
}

int64_t found_bytes(const SampleArgs& a) { return a.rows * (parts_of(a) + 1) * static_cast<int64_t>(sizeof(Part)); }

template <class T>
void sample_rows(int tid, int nth, const SampleArgs& a) {
  auto* memory = static_cast<char*>(kvasir::shared_scratch(kvasir::SLOT_OTHER));
  auto* edited = reinterpret_cast<Edited*>(memory + found_bytes(a));
  const Sampling<T> s{a, parts_of(a), reinterpret_cast<Part*>(memory), edited, most_listed(a), tid};
  const int64_t pieces = s.parts + 1, chunks = a.rows * pieces;
  if (a.rows >= 2 * nth) {  // a row that one thread passes three times stays in its cache
    for (int64_t row; (row = kvasir::claim(tid, nth, a.rows)) >= 0;) {
      const int64_t id = s.sampled(row, s.edits(row));
      a.ids[row] = s.is_dead(row) ? s.recovered(row) : id;
    }
    return;
  }
  if (a.edits) {
    for (int64_t row; (row = kvasir::claim(tid, nth, a.rows)) >= 0;) s.edit(row, s.edits(row));
    kvasir::barrier(tid, nth);
  }
  for (int64_t c; (c = kvasir::claim(tid, nth, chunks)) >= 0;) s.find_top(c / pieces, c % pieces);
  kvasir::barrier(tid, nth);
  for (int64_t c; (c = kvasir::claim(tid, nth, chunks)) >= 0;) s.draw(c / pieces, c % pieces);
  kvasir::barrier(tid, nth);
  for (int64_t c; (c = kvasir::claim(tid, nth, chunks)) >= 0;) s.weigh(c / pieces, c % pieces);
  kvasir::barrier(tid, nth);
  for (int64_t row; (row = kvasir::claim(tid, nth, a.rows)) >= 0;) {
    const int64_t id = s.settled(row);
    a.ids[row] = s.is_dead(row) ? s.recovered(row) : id;
  }
}

}  // namespace

int64_t sample_bytes(const SampleArgs& a) {
  const int64_t each = sizeof(Edited) + (bits_of(a.columns) + 2 * most_listed(a)) * 4;
  return found_bytes(a) + (a.edits ? a.rows * each : 0);
}

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
