// Logprobs in one pass over the logits, and another over those of rows whose likeliest ids are wanted; nothing is sorted
// but these.
//
// A row is cut into parts, whose masses are put together in their order by whichever thread: results depend on nothing
// else, and not on whether logits came as bfloat16 or as the same numbers in float32.
#include "logprobs.h"

#include "pool.h"
#include "sample_top.h"
#include "sample_values.h"

namespace KVASIR_ISA {
namespace {

using kvasir::LogprobsArgs;

constexpr int64_t PART = 16384;
constexpr int64_t GROUPS = PART / SAMPLE_BLOCK * kLanes;  // each a lane of a block

// top: the largest logit. mass: the sum of exp(logit - top). rank: logits above that of the given id.
// groups: the largest of each group of candidates.
struct Part {
  double mass;
  float top;
  bool is_ordered;
  int64_t rank;
  float groups[GROUPS];
};

// Puts the `count` smallest in order: heapsort, as a whole vocabulary may be wanted.
inline void sort(uint64_t* orders, int64_t count) {
  const auto sink = [&](int64_t at, int64_t end) {
    for (int64_t child; (child = 2 * at + 1) < end; at = child) {
      if (child + 1 < end && orders[child + 1] > orders[child]) ++child;
      if (orders[at] >= orders[child]) return;
      const uint64_t moved = orders[at];
      orders[at] = orders[child];
      orders[child] = moved;
    }
  };
  for (int64_t at = count / 2 - 1; at >= 0; --at) sink(at, count);
  for (int64_t end = count - 1; end > 0; --end) {
    const uint64_t moved = orders[0];
    orders[0] = orders[end];
    orders[end] = moved;
    sink(0, end);
  }
}

template <class T>
struct Logprobs {
  const LogprobsArgs& a;
  int64_t parts;
  Part* found;
  int tid;

  int64_t row(int64_t index) const { return a.rows ? a.rows[index] : index; }
  int64_t width() const { return 2 + 2 * a.num_top + a.num_others; }
  Part& part(int64_t index, int64_t p) const { return found[index * parts + p]; }
  Values<T, DENSE> logits(int64_t index) const {
    return {static_cast<const T*>(a.logits) + row(index) * a.columns, a.columns};
  }
  Values<float, DENSE> candidates(int64_t index) const { return {a.candidates + index * a.columns, a.columns}; }

  float chosen(int64_t index) const {
    const int64_t id = a.ids[row(index)];
    return widen(logits(index).values[id < 0 ? 0 : id]);
  }

  void read(int64_t index, int64_t p) const {
    const int64_t from = p * PART, to = from + PART < a.columns ? from + PART : a.columns;
    const auto v = logits(index);
    Part& made = part(index, p);
    read_masses(made, v, from, to, chosen(index));
    if (a.num_top) a.candidates ? read_groups(made, candidates(index), from, to) : read_groups(made, v, from, to);
  }

  template <class V>
  static void read_masses(Part& made, const V& v, int64_t from, int64_t to, float chosen) {
    Floats top = splat(-INFINITE);
    Ints unordered{};
    made.rank = 0;
    for (int64_t i = from; i < to; i += kLanes) {
      const Floats x = v.at(i);
      top = larger(x, top);
      unordered |= x != x;
      made.rank += __builtin_popcount(greater_bits(x, splat(chosen)));
    }
    bool any = false;
    for (int lane = 0; lane < kLanes; ++lane) any |= unordered[lane] != 0;
    made.top = largest(top);
    made.is_ordered = !any && made.top < INFINITE;
    made.mass = 0;
    if (made.is_ordered && made.top > -INFINITE) made.mass = mass_of(v, from, to, {1, 1, made.top, 0}, {-INFINITE});
  }

  template <class V>
  static void read_groups(Part& made, const V& v, int64_t from, int64_t to) {
    for (int64_t group = 0; group < GROUPS; group += kLanes, from += SAMPLE_BLOCK) {
      Floats most = splat(-INFINITE);
      const int64_t end = from + SAMPLE_BLOCK < to ? from + SAMPLE_BLOCK : to;
      for (int64_t i = from; i < end; i += kLanes) most = larger(v.at(i), most);
      store(made.groups + group, most);
    }
  }

  // The logarithm of the sum of exp of all logits; NaN where it is none.
  double log_mass(int64_t index) const {
    float top = -INFINITE;
    bool is_ordered = true;
    for (int64_t p = 0; p < parts; ++p) {
      const Part& one = part(index, p);
      is_ordered &= one.is_ordered;
      top = one.top > top ? one.top : top;
    }
    if (!is_ordered || top == -INFINITE) return __builtin_nan("");
    double mass = 0;
    for (int64_t p = 0; p < parts; ++p) {
      const Part& one = part(index, p);
      if (one.mass > 0) mass += one.mass * __builtin_exp(static_cast<double>(one.top) - top);
    }
    return top + __builtin_log(mass);
  }

  void report(int64_t index) const {
    float* out = a.out + index * width();
    const double mass = log_mass(index);
    int64_t above = 0;
    for (int64_t p = 0; p < parts; ++p) above += part(index, p).rank;
    out[0] = static_cast<float>(chosen(index) - mass);
    out[1] = static_cast<float>(above + 1);
    if (a.num_top) a.candidates ? report_top(candidates(index), index, mass) : report_top(logits(index), index, mass);
    for (int64_t i = 0; i < a.num_others; ++i) {
      const float logit = widen(logits(index).values[a.others[index * a.num_others + i]]);
      out[2 + 2 * a.num_top + i] = static_cast<float>(logit - mass);
    }
  }

  // Largest first, of equals the lower ids. Where the mass is no number there is no order.
  template <class V>
  void report_top(const V& v, int64_t index, double mass) const {
    float *ids = a.out + index * width() + 2, *tops = ids + a.num_top;
    const int64_t most = parts * GROUPS > a.columns ? parts * GROUPS : a.columns;
    auto* orders = static_cast<uint64_t*>(kvasir::own_scratch(tid, kvasir::SLOT_OTHER, most * 8));
    if (mass != mass) {
      for (int64_t i = 0; i < a.num_top; ++i) orders[i] = order_of(0, i);
    } else {
      const int64_t count = listed(v, least_of_top(index, orders), orders);
      selected(orders, count, a.num_top - 1);
      sort(orders, a.num_top);
    }
    for (int64_t i = 0; i < a.num_top; ++i) {
      ids[i] = static_cast<float>(static_cast<uint32_t>(orders[i]));
      tops[i] = static_cast<float>(value_of(orders[i]) - mass);
    }
  }

  // A logit that is not above any of the top; the largest of as many groups are not below it.
  float least_of_top(int64_t index, uint64_t* orders) const {
    const int64_t count = parts * GROUPS;
    if (a.num_top > count) return -INFINITE;
    for (int64_t i = 0; i < count; ++i) orders[i] = order_of(part(index, i / GROUPS).groups[i % GROUPS], i);
    return value_of(selected(orders, count, a.num_top - 1));
  }

  // Lists those that are not less.
  template <class V>
  static int64_t listed(const V& v, float least, uint64_t* orders) {
    int64_t count = 0;
    for (int64_t i = 0; i < v.count; i += kLanes) {
      const Floats x = v.at(i);
      for (uint32_t lanes = ~greater_bits(splat(least), x) & LANES; lanes; lanes &= lanes - 1) {
        const int lane = __builtin_ctz(lanes);
        if (i + lane < v.count) orders[count++] = order_of(x[lane], i + lane);
      }
    }
    return count;
  }
};

int64_t parts_of(const LogprobsArgs& a) { return (a.columns + PART - 1) / PART; }

template <class T>
void logprobs_of(int tid, int nth, const LogprobsArgs& a) {
  const Logprobs<T> l{a, parts_of(a), static_cast<Part*>(kvasir::shared_scratch(kvasir::SLOT_OTHER)), tid};
  for (int64_t c; (c = kvasir::claim(tid, nth, a.count * l.parts)) >= 0;) l.read(c / l.parts, c % l.parts);
  kvasir::barrier(tid, nth);
  for (int64_t index; (index = kvasir::claim(tid, nth, a.count)) >= 0;) l.report(index);
}

}  // namespace

int64_t logprobs_bytes(const LogprobsArgs& a) { return a.count * parts_of(a) * static_cast<int64_t>(sizeof(Part)); }

void logprobs(int tid, int nth, const LogprobsArgs& a) {
  a.type == kvasir::FLOAT32 ? logprobs_of<float>(tid, nth, a) : logprobs_of<bfloat16>(tid, nth, a);
}

}  // namespace KVASIR_ISA

KVASIR_EXPORT(kvasir_logprobs)(const kvasir::LogprobsArgs* args) {
  const kvasir::Need need{kvasir::SLOT_OTHER, KVASIR_ISA::logprobs_bytes(*args)};
  kvasir::run(
      [](int tid, int nth, void* p) { KVASIR_ISA::logprobs(tid, nth, *static_cast<const kvasir::LogprobsArgs*>(p)); },
      const_cast<kvasir::LogprobsArgs*>(args), &need, 1);
}
