// Who gets which rows, and what becomes of what they give; the products between are those of linear.h.
#include "moe.h"

#include "pool.h"
#include "simd.h"

namespace KVASIR_ISA {
namespace {

using kvasir::Experts;
using kvasir::Routes;

// The top_k largest of `count` scores, of equals the lower, NaN above all; ascending. best: room for top_k numbers.
KVASIR_INLINE void choose(const float* scores, int64_t count, int64_t top_k, float* best, int32_t* chosen) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float score = scores[i] == scores[i] ? scores[i] : __builtin_inff();
    if (found == top_k && !(score > best[top_k - 1])) continue;
    int64_t at = found < top_k ? found++ : top_k - 1;
    for (; at > 0 && score > best[at - 1]; --at) {
      best[at] = best[at - 1];
      chosen[at] = chosen[at - 1];
    }
    best[at] = score;
    chosen[at] = static_cast<int32_t>(i);
  }
  for (int64_t i = 1; i < top_k; ++i) {
    const int32_t expert = chosen[i];
    int64_t at = i;
    for (; at > 0 && chosen[at - 1] > expert; --at) chosen[at] = chosen[at - 1];
    chosen[at] = expert;
  }
}

// values[i] = 2^((values[i] - most) * log2(e)), and their sum. There is room for whole vectors.
KVASIR_INLINE float exponentials(float* values, int64_t count, float most) {
  for (int64_t i = count; i % kLanes; ++i) values[i] = -__builtin_inff();
  for (int64_t i = 0; i < count; i += kLanes) store(values + i, exp2((load(values + i) - splat(most)) * splat(1.44269504f)));
  float total = 0;
  for (int64_t i = 0; i < count; ++i) total += values[i];
  return total;
}

void route_row(const Experts& e, const Routes& routes, int64_t row, float* scores) {
  const int64_t room = (e.count + kLanes - 1) / kLanes * kLanes;
  const auto* logits = static_cast<const bfloat16*>(routes.logits) + row * e.count;
  int32_t* chosen = routes.chosen + row * e.top_k;
  float *shares = routes.shares + row * e.top_k, *best = scores + room, most = -__builtin_inff();
  bool is_valid = true;
  for (int64_t i = 0; i < e.count; ++i) {
    scores[i] = widen(logits[i]);
    is_valid &= scores[i] < __builtin_inff();
    most = scores[i] > most ? scores[i] : most;
  }
  choose(scores, e.count, e.top_k, best, chosen);
  if (e.renormalised) {
    for (int64_t j = 0; j < e.top_k; ++j) best[j] = scores[chosen[j]];
    const float total = exponentials(best, e.top_k, most);
    for (int64_t j = 0; j < e.top_k; ++j) shares[j] = best[j] / total;
  } else {
    const float total = exponentials(scores, e.count, most);
    for (int64_t j = 0; j < e.top_k; ++j) shares[j] = scores[chosen[j]] / total;
  }
  for (int64_t j = 0; j < e.top_k && !is_valid; ++j) shares[j] = __builtin_nanf("");
}

void combine_row(const kvasir::CombineArgs& a, int64_t row) {
  const Experts& e = *a.experts;
  const int64_t* sorted = a.routes.sorted_of + row * e.top_k;
  const float* shares = a.routes.shares + row * e.top_k;
  const auto* given = static_cast<const bfloat16*>(a.given);
  const auto at = [&](const void* rows) { return static_cast<const bfloat16*>(rows) + row * a.dim; };
  const auto* gates = static_cast<const bfloat16*>(a.gates);
  const float gate = gates ? times_sigmoid(splat(1), splat(widen(gates[row])))[0] : 1;
  bfloat16* out = static_cast<bfloat16*>(a.out) + row * a.dim;
  const auto sum_of = [&](const auto& wide, int64_t i) __attribute__((always_inline)) {
    auto sum = wide(given + sorted[0] * a.dim + i) * shares[0];
    for (int64_t j = 1; j < e.top_k; ++j) sum += wide(given + sorted[j] * a.dim + i) * shares[j];
    sum *= e.scale;
    if (a.shared) sum += wide(at(a.shared) + i) * gate;
    if (a.residual) sum += wide(at(a.residual) + i);
    return sum;
  };
  int64_t i = 0;
  for (; i + kLanes <= a.dim; i += kLanes) store(out + i, sum_of([](const bfloat16* x) { return load(x); }, i));
  for (; i < a.dim; ++i) narrow(out + i, sum_of([](const bfloat16* x) { return widen(*x); }, i));
}

}  // namespace

void route(int tid, int nth, const Experts& e, const Routes& routes, int64_t rows) {
  const int64_t numbers = e.count + e.top_k + 2 * kLanes;
  auto* scores = static_cast<float*>(kvasir::own_scratch(tid, kvasir::SLOT_OTHER, numbers * 4));
  for (int64_t row; (row = kvasir::claim(tid, nth, rows)) >= 0;) route_row(e, routes, row, scores);
}

void sort_rows(int tid, int nth, const Experts& e, const Routes& routes, int64_t rows) {
  while (kvasir::claim(tid, nth, 1) >= 0) {
    int64_t *first = routes.first, count = rows * e.top_k;
    for (int64_t i = 0; i <= e.count; ++i) first[i] = 0;
    for (int64_t i = 0; i < count; ++i) ++first[routes.chosen[i] + 1];
    for (int64_t i = 0; i < e.count; ++i) first[i + 1] += first[i];
    // Each expert's beginning moves on with the rows that it gets, and ends where the next one's was.
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = first[routes.chosen[i]]++;
      routes.row_of[at] = i / e.top_k;
      routes.sorted_of[i] = at;
    }
    for (int64_t i = e.count; i > 0; --i) first[i] = first[i - 1];
    first[0] = 0;
  }
}

void combine(int tid, int nth, const kvasir::CombineArgs& a) {
  for (int64_t row; (row = kvasir::claim(tid, nth, a.rows)) >= 0;) combine_row(a, row);
}

}  // namespace KVASIR_ISA
