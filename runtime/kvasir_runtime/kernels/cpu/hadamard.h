// Rows of a cache in 4 bits are turned; see kernels/kv_int4.py, whose order of sums this has. For attention and elementwise.
#pragma once

#include "simd.h"

namespace KVASIR_ISA {

// Numbers that are turned together.
KVASIR_INLINE int64_t run_of(int64_t dim) { return dim & -dim; }

// What turned rows of a cache are times: a power of two.
KVASIR_INLINE float down_of(int64_t dim) {
  float factor = 1;
  for (int64_t run = run_of(dim); run > 1; run /= 4) factor /= 2;
  return factor;
}

// What turned queries, and sums that are turned back, are times.
KVASIR_INLINE float back_of(int64_t dim) { return 1 / (static_cast<float>(run_of(dim)) * down_of(dim)); }

// x: (dim), in place, times Hadamard's matrix, run by run, and times a power of two.
KVASIR_INLINE void hadamard(float* x, int64_t dim, float factor) {
  for (int64_t distance = 1; distance < run_of(dim); distance *= 2) {
    for (int64_t i = 0; i < dim; i += 2 * distance) {
      float *left = x + i, *right = left + distance;
      for (int64_t j = 0; j < distance; ++j) {
        const float a = left[j], b = right[j];
        left[j] = a + b;
        right[j] = a - b;
      }
    }
  }
  for (int64_t i = 0; i < dim; ++i) x[i] *= factor;
}

}  // namespace KVASIR_ISA
