// The first values of an order, without sorting: of numbers that order as (x descending, id ascending) do.
#pragma once

#include "isa.h"

namespace KVASIR_ISA {

KVASIR_INLINE uint64_t order_of(float x, int64_t id) {
  uint32_t bits;
  x += 0.0f;  // one zero
  __builtin_memcpy(&bits, &x, sizeof bits);
  const uint32_t ascending = bits >> 31 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(~ascending) << 32 | static_cast<uint32_t>(id);
}

KVASIR_INLINE float value_of(uint64_t order) {
  const uint32_t ascending = ~static_cast<uint32_t>(order >> 32);
  const uint32_t bits = ascending >> 31 ? ascending & 0x7fffffffu : ~ascending;
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

// The one with `rank` others before it. All are different; they are moved. Hoare's quickselect, median of three.
inline uint64_t selected(uint64_t* orders, int64_t count, int64_t rank) {
  int64_t low = 0, high = count - 1;
  while (low < high) {
    const uint64_t a = orders[low], b = orders[low + (high - low) / 2], c = orders[high];
    const uint64_t less = a < b ? a : b, more = a < b ? b : a, pivot = c < less ? less : c > more ? more : c;
    int64_t i = low, j = high;
    while (i <= j) {
      while (orders[i] < pivot) ++i;
      while (orders[j] > pivot) --j;
      if (i > j) break;
      const uint64_t moved = orders[i];
      orders[i++] = orders[j];
      orders[j--] = moved;
    }
    if (rank > j && rank < i) break;
    (rank <= j ? high : low) = rank <= j ? j : i;
  }
  return orders[rank];
}

}  // namespace KVASIR_ISA
