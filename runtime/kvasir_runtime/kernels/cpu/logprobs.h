// What a model thought of given tokens, as kernels/logprobs.py defines it, for a region of the pool.
#pragma once

#include "attention.h"

namespace kvasir {

// rows: (count) rows of logits and of ids; null for the first ones in their order. ids below 0 are taken as 0.
// candidates: (count, columns) of which the top are taken, null for the logits themselves. others: (count, num_others).
// out: (count, 2 + 2 * num_top + num_others). num_top: at most columns. Slot OTHER is shared: logprobs_bytes.
struct LogprobsArgs {
  const void* logits;
  const int64_t *ids, *rows, *others;
  const float* candidates;
  float* out;
  int64_t count, columns, num_top, num_others;
  Type type;
};

}  // namespace kvasir

namespace KVASIR_ISA {

int64_t logprobs_bytes(const kvasir::LogprobsArgs& args);

// out is whole after the caller's next barrier. It does not depend on the number of threads, nor on other rows.
void logprobs(int tid, int nth, const kvasir::LogprobsArgs& args);

}  // namespace KVASIR_ISA
