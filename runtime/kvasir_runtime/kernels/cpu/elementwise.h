// What lies between the products of a decoder layer, for a region of the pool; formulas are in kernels/*.py.
// None ends with a barrier: what they write is whole after the caller's next one. All pointers are to the model's type.
#pragma once

#include "attention.h"

namespace kvasir {

// total = x + residual (x alone where residual is null), out = rms_norm(total) * weight. total may be x or residual, and
// null where it is not wanted. out may be x. (rows, dim), dense. weight_type: FLOAT32, or type.
struct NormArgs {
  const void *x, *residual, *weight;
  void *total, *out;
  int64_t rows, dim;
  float eps;
  Type type, weight_type;
};

// Norms of heads, rotation of queries (in place) and keys, keys and values into the cache.
// qkv: (tokens, heads + 2 * kv_heads, head_dim); norm: (heads + kv_heads, head_dim) or null; slots: (tokens)
// norm_type: FLOAT32, or type.
// cos, sin: (positions, head_dim), row positions[t] for token t, or row t where positions is null
// cache, value_offset, block_bytes: as in attention.h
struct SplitArgs {
  void* qkv;
  const void *norm, *cos, *sin;
  const int64_t *positions, *slots;
  uint8_t* cache;
  int64_t value_offset, block_bytes;
  int64_t tokens, heads, kv_heads, head_dim, block_size;
  float eps;
  Type type, cache_type, norm_type;
};

// As `Activation` in kernels/act_and_mul.py; GELU in the form that a hyperbolic tangent approximates.
enum Activation : int32_t { SILU, GELU };

// out[r, i] = activation(x[r, i]) * x[r, dim + i]; x: (rows, 2 * dim)
struct ActAndMulArgs {
  const void* x;
  void* out;
  int64_t rows, dim;
  Type type;
  Activation activation;
};

// x[i] *= factor, and x[i] = cap * tanh(x[i] / cap) to out in float32 where a cap is given; of `count` numbers.
struct ScaleArgs {
  void* x;
  float* out;
  int64_t count;
  float factor, cap;
  Type type;
};

// out[r] = table[ids[r]], rows of row_bytes
struct GatherArgs {
  const void* table;
  const int64_t* ids;
  void* out;
  int64_t rows, row_bytes;
};

// ids[r] = the lowest column of the largest of each row, -1 where the row holds a NaN or its largest is infinite.
// x: (rows, columns). Slot OTHER is shared: argmax_bytes.
struct ArgmaxArgs {
  const void* x;
  int64_t* ids;
  int64_t rows, columns;
  Type type;
};

}  // namespace kvasir

namespace KVASIR_ISA {

void norm(int tid, int nth, const kvasir::NormArgs& args);
void split_qkv(int tid, int nth, const kvasir::SplitArgs& args);
void act_and_mul(int tid, int nth, const kvasir::ActAndMulArgs& args);
void scale(int tid, int nth, const kvasir::ScaleArgs& args);
void gather(int tid, int nth, const kvasir::GatherArgs& args);
int64_t argmax_bytes(const kvasir::ArgmaxArgs& args);
void argmax(int tid, int nth, const kvasir::ArgmaxArgs& args);
// The same, each row by one thread.
void argmax_by_row(int tid, int nth, const kvasir::ArgmaxArgs& args);

// A small one on the calling thread, outside of any region; false where it is not small, and then nothing was done.
bool argmax_alone(const kvasir::ArgmaxArgs& args);

}  // namespace KVASIR_ISA
