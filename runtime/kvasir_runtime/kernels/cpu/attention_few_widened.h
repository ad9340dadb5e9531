// What attention_few.h computes on processors without dot products of bfloat16: queries, keys, values and weights are widened
// to float32.
#pragma once

#include "attention_tile.h"

#ifndef __AVX512BF16__
namespace KVASIR_ISA {
namespace {

// What a query and a weight of a value are here.
using FewNumber = float;

// Rows whose sums of four vectors stay in registers.
template <int LINES>
constexpr int few_values() {
  return kLanes == 16 ? 4 : 3;
}

// Rows stay as they are in the cache. memory: unused.
template <class From, int LINES>
KVASIR_INLINE void widen_rows(const uint8_t* const* rows, int64_t offset, uint8_t*, float* scales, const uint8_t** to) {
  for (int j = 0; j < CHUNK; ++j) {
    to[j] = rows[j] + offset;
    if (sizeof(From) == 1) __builtin_memcpy(scales + j, to[j] + LINES * 32, sizeof *scales);
  }
}

// Scores of R rows, one after another at `query`, and 16 keys, which lie at rows[.].
template <int R, class From, int LINES>
KVASIR_INLINE void score(const float* query, const uint8_t* const* rows, float* scores, int64_t stride) {
  for (int first = 0; first < CHUNK; first += kLanes) {
    Floats four[R][kLanes / 4];
#pragma GCC unroll 4
    for (int j = 0; j < kLanes / 4; ++j) {
      Floats sum[R][4] = {};
      for (int at = 0; at < LINES * 32; at += kLanes) {
#pragma GCC unroll 4
        for (int key = 0; key < 4; ++key) {
          const Floats k = load(reinterpret_cast<const From*>(rows[first + 4 * j + key]) + at);
#pragma GCC unroll 4
          for (int r = 0; r < R; ++r) sum[r][key] = multiply_add(k, load(query + r * LINES * 32 + at), sum[r][key]);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) four[r][j] = quarter_sums(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) store(scores + r * stride + first, lane_sums(four[r]));
  }
}

// sums[r] += weights of R rows times 16 values, four vectors of columns at a time.
template <int R, class From, int LINES>
KVASIR_INLINE void add_values(const uint8_t* const* rows, const float* weights, int64_t stride, float* sums) {
  for (int at = 0; at < LINES * 32; at += 4 * kLanes, sums += 4 * kLanes) {
    Floats sum[R][4];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) sum[r][v] = load(sums + r * LINES * 32 + v * kLanes);
    for (int j = 0; j < CHUNK; ++j) {
      const auto* value = reinterpret_cast<const From*>(rows[j]) + at;
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        const Floats wide = load(value + v * kLanes);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) sum[r][v] = multiply_add(wide, splat(weights[r * stride + j]), sum[r][v]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) store(sums + r * LINES * 32 + v * kLanes, sum[r][v]);
  }
}

// Columns stay as they are.
template <int LINES>
KVASIR_INLINE void in_order(const float* sums, float* out) {
  __builtin_memcpy(out, sums, LINES * 128);
}

}  // namespace
}  // namespace KVASIR_ISA
#endif
