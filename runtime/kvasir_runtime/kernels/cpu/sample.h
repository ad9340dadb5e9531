// One id per row of logits, drawn as kernels/sample.py defines it, for a region of the pool.
#pragma once

#include "attention.h"

namespace kvasir {

// How a row is drawn. `DRAW` in kernels/sample.py has the same fields.
struct Draw {
  float temperature, top_p, min_p;
  int32_t top_k;
  int64_t seed, position;
};

// ids[r] = the id drawn from row r, -1 where the row is invalid. logits: (rows, columns), which stay as they are.
// Slot OTHER is shared: sample_bytes.
struct SampleArgs {
  const void* logits;
  const Draw* draws;
  int64_t* ids;
  int64_t rows, columns;
  Type type;
};

}  // namespace kvasir

namespace KVASIR_ISA {

int64_t sample_bytes(const kvasir::SampleArgs& args);

// ids are whole after the caller's next barrier. They do not depend on the number of threads, nor on other rows.
void sample(int tid, int nth, const kvasir::SampleArgs& args);

}  // namespace KVASIR_ISA
