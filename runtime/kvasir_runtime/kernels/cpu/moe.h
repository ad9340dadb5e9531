// Routed experts of one layer, for a region of the pool; the formula is in kernels/moe.py, with shares that are softmaxes.
#pragma once

#include "linear.h"

namespace kvasir {

// router: to logits, `count` outputs. gate_up (gated), down: (count), all of one size. shared_gate_up, shared_down: of the
// expert that all tokens go through, or null; shared_gate: of one output, whose sigmoid is its share, or null for 1.
// scale: of what the chosen give together.
struct Experts {
  const Linear* router;
  const Linear *const *gate_up, *const *down;
  const Linear *shared_gate_up, *shared_down, *shared_gate;
  int64_t count, top_k;
  float scale;
  int32_t renormalised;
};

// Where the rows of a step go. A row has top_k sorted rows: those of an expert lie one after another, by row.
struct Routes {
  void* logits;       // (rows, count) bfloat16
  int32_t* chosen;    // (rows, top_k) experts, ascending
  float* shares;      // (rows, top_k)
  int64_t* first;     // (count + 1) sorted rows of each expert
  int64_t* row_of;    // (rows * top_k) of each sorted row
  int64_t* sorted_of; // (rows, top_k) sorted rows
};

// out[r] = round(scale * sum_j(shares[r, j] * given[sorted_of[r, j]]) + sigmoid(gates[r]) * shared[r] + residual[r])
// shared, gates and residual may be null. All but shares bfloat16; given: (rows * top_k, dim), the others (rows, dim).
struct CombineArgs {
  const Experts* experts;
  Routes routes;
  const void *given, *shared, *gates, *residual;
  void* out;
  int64_t rows, dim;
};

}  // namespace kvasir

namespace KVASIR_ISA {

// From logits to chosen and shares. A row whose logits are no finite numbers has shares that are none.
void route(int tid, int nth, const kvasir::Experts& experts, const kvasir::Routes& routes, int64_t rows);

// From chosen to first, row_of and sorted_of, by one thread.
void sort_rows(int tid, int nth, const kvasir::Experts& experts, const kvasir::Routes& routes, int64_t rows);

void combine(int tid, int nth, const kvasir::CombineArgs& args);

}  // namespace KVASIR_ISA
