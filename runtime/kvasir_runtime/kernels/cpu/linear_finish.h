// What happens to a sum, in vectors of any width: for the processors whose products have no way of their own.
#pragma once

#include "linear_tasks.h"

namespace KVASIR_ISA {

constexpr int TILE_VECTORS = TILE / kLanes;
constexpr int64_t PANEL_WIDTH = PANEL_TILES * TILE;

// To the nearest, ties to even; NaN stays one.
KVASIR_INLINE void store_rounded(bfloat16* to, Floats v) {
#if defined(__AVX512BF16__)
  store(to, v);
#else
  const Words bits = reinterpret_cast<Words>(v);
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Halves halves = __builtin_convertvector((bits & 0x7fffffff) > 0x7f800000 ? Words{} + 0x7fc0 : rounded, Halves);
  __builtin_memcpy(to, &halves, sizeof halves);
#endif
}

KVASIR_INLINE void store_rounded(float* to, Floats v) { store(to, v); }

// v (+ residual) to columns [column, column + kLanes) of a row, as far as it has them.
template <class T>
KVASIR_INLINE void put_vector(Floats v, T* out, const T* residual, int64_t column, int64_t columns) {
  if (column + kLanes <= columns) {
    if (residual) v += load(residual + column);
    store_rounded(out + column, v);
    return;
  }
  T values[kLanes] = {};
  const int64_t bytes = (columns - column) * static_cast<int64_t>(sizeof(T));
  if (bytes <= 0) return;
  if (residual) {
    __builtin_memcpy(values, residual + column, bytes);
    v += load(values);
  }
  store_rounded(values, v);
  __builtin_memcpy(out + column, values, bytes);
}

// Finishes `rows` rows of neighbouring tiles, from `tile` on, and writes them to rows m.. of out.
// sums: (rows, PANEL_WIDTH), of which the first `tiles` tiles count; quantized ones relative to the units of their outputs.
template <class T>
inline void finish_rows(const float* sums, const Linear& w, const Product& p, int64_t m, int64_t rows, int64_t tile,
                        int64_t tiles) {
  const int64_t first = (w.gated ? tile / 2 : tile) * TILE;
  const auto value = [&](int64_t row, int64_t at) {
    Floats v = load(sums + row * PANEL_WIDTH + at);
    if (w.units) v *= load(w.units + tile * TILE + at);
    return w.bias ? v + load(w.bias + tile * TILE + at) : v;
  };
  for (int64_t i = 0; i < rows; ++i) {
    T* out = static_cast<T*>(p.out) + (m + i) * w.outputs + first;
    const T* residual = p.residual ? static_cast<const T*>(p.residual) + (m + i) * w.outputs + first : nullptr;
    for (int64_t t = 0; t < tiles; t += w.gated ? 2 : 1) {
      for (int64_t lane = 0; lane < TILE; lane += kLanes) {
        Floats v = value(i, t * TILE + lane);
        if (w.gated) v = times_sigmoid(v, v) * value(i, (t + 1) * TILE + lane);
        put_vector(v, out, residual, (w.gated ? t / 2 : t) * TILE + lane, w.outputs - first);
      }
    }
  }
}

}  // namespace KVASIR_ISA
