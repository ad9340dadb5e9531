#include "elementwise.h"

#include "hadamard.h"
#include "pool.h"
#include "simd.h"

namespace KVASIR_ISA {
namespace {

constexpr int64_t ROWS = 4;        // of a norm, in one chunk
constexpr int64_t COLUMNS = 1024;  // of a gate
constexpr int64_t LOGITS = 16384;  // of an argmax
constexpr int64_t ALONE = 1 << 18;  // of an argmax that one thread has done before another is awake
constexpr int64_t HEAD = 1024;     // longest head

KVASIR_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

KVASIR_INLINE float square_root(float x) { return __builtin_sqrtf(x); }

// x (+ residual) to total, rounded to T as the residual stream is, and the mean of its squares plus eps, as a scale.
template <class T>
KVASIR_INLINE float add_and_measure(const T* x, const T* residual, T* total, int64_t dim, float eps) {
  Floats squares{};
  float rest = 0;
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    Floats v = load(x + i);
    if (residual) {
      v += load(residual + i);
      store(total + i, v);
      v = load(total + i);
    } else if (total && total != x) {
      store(total + i, v);
    }
    squares = multiply_add(v, v, squares);
  }
  for (; i < dim; ++i) {
    float v = widen(x[i]);
    if (residual) v += widen(residual[i]);
    if (residual || total) {
      narrow(total + i, v);
      v = widen(total[i]);
    }
    rest += v * v;
  }
  return 1 / square_root((sum(squares) + rest) / dim + eps);
}

template <class T, class W>
void norm_rows(int tid, int nth, const kvasir::NormArgs& a) {
  const auto *x = static_cast<const T*>(a.x), *residual = static_cast<const T*>(a.residual);
  const auto* weight = static_cast<const W*>(a.weight);
  auto *total = static_cast<T*>(a.total), *out = static_cast<T*>(a.out);
  for (int64_t chunk; (chunk = kvasir::claim(tid, nth, (a.rows + ROWS - 1) / ROWS)) >= 0;) {
    for (int64_t r = chunk * ROWS; r < least(a.rows, (chunk + 1) * ROWS); ++r) {
      const int64_t row = r * a.dim;
      const float scale = add_and_measure(x + row, residual ? residual + row : nullptr, total ? total + row : nullptr,
                                          a.dim, a.eps);
      const T* from = residual ? total + row : x + row;
      int64_t i = 0;
      for (; i + kLanes <= a.dim; i += kLanes) store(out + row + i, load(from + i) * splat(scale) * load(weight + i));
      for (; i < a.dim; ++i) narrow(out + row + i, widen(from[i]) * scale * widen(weight[i]));
    }
  }
}

// A head as float32: normed if norm is given, rotated if cos is.
template <class T, class W>
KVASIR_INLINE void turned(const T* x, const W* norm, float eps, const T* cos, const T* sin, int64_t dim, float* out) {
  const int64_t half = dim / 2;
  float wide[HEAD];
  const float scale = norm ? add_and_measure<T>(x, nullptr, nullptr, dim, eps) : 1;
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    Floats v = load(x + i);
    if (norm) v *= splat(scale) * load(norm + i);
    store(wide + i, v);
  }
  for (; i < dim; ++i) wide[i] = norm ? widen(x[i]) * (scale * widen(norm[i])) : widen(x[i]);
  // sin is negative in its first half: the other half of the head times it, for both halves.
  for (i = 0; i + kLanes <= half; i += kLanes) {
    const Floats a = load(wide + i), b = load(wide + half + i);
    store(out + i, multiply_add(b, load(sin + i), a * load(cos + i)));
    store(out + half + i, multiply_add(a, load(sin + half + i), b * load(cos + half + i)));
  }
  for (; i < half; ++i) {
    out[i] = wide[i] * widen(cos[i]) + wide[half + i] * widen(sin[i]);
    out[half + i] = wide[half + i] * widen(cos[half + i]) + wide[i] * widen(sin[half + i]);
  }
}

template <class T>
KVASIR_INLINE void put(const float* from, int64_t dim, T* to) {
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) store(to + i, load(from + i));
  for (; i < dim; ++i) narrow(to + i, from[i]);
}

// A row of an INT8 cache: numbers of -127 .. 127 and behind them their scale; as `quantize` in kernels/kv_int8.py.
KVASIR_INLINE void put_int8(const float* from, int64_t dim, uint8_t* to) {
  float most = 0;
  for (int64_t i = 0; i < dim; ++i) {
    const float size = __builtin_fabsf(from[i]);
    most = size > most ? size : most;
  }
  const float scale = most / 127, inverse = most > 0 ? 127 / most : 0;
  for (int64_t i = 0; i < dim; ++i) {
    // Adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even.
    const float shifted = from[i] * inverse + 12582912.0f;
    to[i] = static_cast<uint8_t>(static_cast<int8_t>(static_cast<int32_t>(shifted - 12582912.0f)));
  }
  __builtin_memcpy(to + dim, &scale, sizeof scale);
}

// A row of an INT4 cache: as `quantize` in kernels/kv_int4.py. from is consumed.
KVASIR_INLINE void put_int4(float* from, int64_t dim, uint8_t* to) {
  hadamard(from, dim, down_of(dim));
  float most = 0;
  for (int64_t i = 0; i < dim; ++i) {
    const float size = __builtin_fabsf(from[i]);
    most = size > most ? size : most;
  }
  const float scale = most / 15, inverse = most > 0 ? 7.5f / most : 0;
  const auto code = [&](float x) {
    return static_cast<uint32_t>(static_cast<int32_t>((x * inverse + 7.5f) + 12582912.0f - 12582912.0f)) & 15;
  };
  for (int64_t i = 0; i < dim; i += 2) to[i / 2] = static_cast<uint8_t>(code(from[i]) | code(from[i + 1]) << 4);
  __builtin_memcpy(to + dim / 2, &scale, sizeof scale);
}

template <class T>
KVASIR_INLINE void widened(const T* from, int64_t dim, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) store(to + i, load(from + i));
  for (; i < dim; ++i) to[i] = widen(from[i]);
}

template <class T, class W>
void split_token(const kvasir::SplitArgs& a, int64_t token) {
  const int64_t dim = a.head_dim, row = a.positions ? a.positions[token] : token;
  T* qkv = static_cast<T*>(a.qkv) + token * (a.heads + 2 * a.kv_heads) * dim;
  const auto* norms = static_cast<const W*>(a.norm);
  const T *cos = static_cast<const T*>(a.cos) + row * dim, *sin = static_cast<const T*>(a.sin) + row * dim;
  float head[HEAD];
  const int64_t slot = a.slots[token], size = a.block_size;
  const int64_t row_bytes = a.cache_type == kvasir::INT8   ? dim + 4
                            : a.cache_type == kvasir::INT4 ? dim / 2 + 4
                                                           : dim * static_cast<int64_t>(sizeof(T));
  uint8_t* kept = slot < 0 ? nullptr : a.cache + slot / size * a.block_bytes + slot % size * a.kv_heads * row_bytes;
  for (int64_t h = 0; h < a.heads + a.kv_heads; ++h) {
    turned(qkv + h * dim, norms ? norms + h * dim : nullptr, a.eps, cos, sin, dim, head);
    if (h < a.heads) {
      put(head, dim, qkv + h * dim);
      continue;
    }
    if (!kept) continue;  // padding
    const T* value = qkv + (h + a.kv_heads) * dim;
    if (a.cache_type == kvasir::INT8) {
      put_int8(head, dim, kept);
      widened(value, dim, head);
      put_int8(head, dim, kept + a.value_offset);
    } else if (a.cache_type == kvasir::INT4) {
      put_int4(head, dim, kept);
      widened(value, dim, head);
      put_int4(head, dim, kept + a.value_offset);
    } else {
      put(head, dim, reinterpret_cast<T*>(kept));
      __builtin_memcpy(kept + a.value_offset, value, dim * sizeof(T));
    }
    kept += row_bytes;
  }
}

// Half of gelu's hyperbolic tangent plus one is the sigmoid of this: both activations are g * sigmoid(z).
template <kvasir::Activation ACTIVATION>
KVASIR_INLINE Floats gate_of(Floats g) {
  return times_sigmoid(g, ACTIVATION == kvasir::SILU ? g : splat(1.59576912f) * (g + splat(0.044715f) * g * g * g));
}

template <kvasir::Activation ACTIVATION, class T>
void act_and_mul_rows(int tid, int nth, const kvasir::ActAndMulArgs& a) {
  const auto* x = static_cast<const T*>(a.x);
  auto* out = static_cast<T*>(a.out);
  const int64_t parts = (a.dim + COLUMNS - 1) / COLUMNS;
  for (int64_t chunk; (chunk = kvasir::claim(tid, nth, a.rows * parts)) >= 0;) {
    const int64_t row = chunk / parts, end = least(a.dim, (chunk % parts + 1) * COLUMNS);
    const T *gates = x + row * 2 * a.dim, *ups = gates + a.dim;
    int64_t i = chunk % parts * COLUMNS;
    for (; i + kLanes <= end; i += kLanes) {
      store(out + row * a.dim + i, gate_of<ACTIVATION>(load(gates + i)) * load(ups + i));
    }
    for (; i < end; ++i) {
      float gated[kLanes];
      store(gated, gate_of<ACTIVATION>(splat(widen(gates[i]))));
      narrow(out + row * a.dim + i, gated[0] * widen(ups[i]));
    }
  }
}

template <class T>
void scale_numbers(int tid, int nth, const kvasir::ScaleArgs& a) {
  auto* x = static_cast<T*>(a.x);
  for (int64_t chunk; (chunk = kvasir::claim(tid, nth, (a.count + COLUMNS - 1) / COLUMNS)) >= 0;) {
    const int64_t end = least(a.count, (chunk + 1) * COLUMNS);
    int64_t i = chunk * COLUMNS;
    for (; i + kLanes <= end; i += kLanes) {
      if (a.factor != 1) store(x + i, load(x + i) * splat(a.factor));
      if (a.cap != 0) store(a.out + i, capped(load(x + i), a.cap));
    }
    for (; i < end; ++i) {
      if (a.factor != 1) narrow(x + i, widen(x[i]) * a.factor);
      if (a.cap != 0) a.out[i] = capped(splat(widen(x[i])), a.cap)[0];
    }
  }
}

struct Best {
  float value;
  int32_t index;
};

// A NaN counts as infinity, which makes the row invalid too.
template <class T>
Best best_of(const T* x, int64_t from, int64_t to) {
  Best best{-__builtin_inff(), static_cast<int32_t>(from)};
  int64_t i = from;
  // First the largest value, then where it is: two quick passes over what the first brought near.
  Floats top = splat(-__builtin_inff());
  Ints unordered{};
  for (; i + kLanes <= to; i += kLanes) {
    const Floats v = load(x + i);
    top = larger(v, top);
    unordered |= v != v;
  }
  best.value = largest(top);
  for (int lane = 0; lane < kLanes; ++lane) best.value = unordered[lane] ? __builtin_inff() : best.value;
  for (; i < to; ++i) {
    const float v = widen(x[i]);
    best.value = v > best.value ? v : v != v ? __builtin_inff() : best.value;
  }
  for (i = from; i < to; i += kLanes) {
    if (i + kLanes <= to) {
      const Ints same = load(x + i) == splat(best.value);
      bool any = false;
      for (int lane = 0; lane < kLanes; ++lane) any |= same[lane] != 0;
      if (!any) continue;
    }
    for (int64_t j = i; j < least(to, i + kLanes); ++j) {
      if (widen(x[j]) == best.value) return {best.value, static_cast<int32_t>(j)};
    }
  }
  return best;
}

KVASIR_INLINE int64_t valid_id(const Best& best) { return __builtin_isfinite(best.value) ? best.index : -1; }

template <class T>
void argmax_rows(int tid, int nth, const kvasir::ArgmaxArgs& a) {
  const int64_t parts = (a.columns + LOGITS - 1) / LOGITS;
  auto* found = static_cast<Best*>(kvasir::shared_scratch(kvasir::SLOT_OTHER));
  for (int64_t chunk; (chunk = kvasir::claim(tid, nth, a.rows * parts)) >= 0;) {
    const int64_t from = chunk % parts * LOGITS;
    found[chunk] = best_of(static_cast<const T*>(a.x) + chunk / parts * a.columns, from, least(a.columns, from + LOGITS));
  }
  kvasir::barrier(tid, nth);
  if (tid) return;  // the caller is always there
  for (int64_t row = 0; row < a.rows; ++row) {
    Best best = found[row * parts];
    for (int64_t part = 1; part < parts; ++part) {
      if (found[row * parts + part].value > best.value) best = found[row * parts + part];
    }
    a.ids[row] = valid_id(best);
  }
}

}  // namespace

void norm(int tid, int nth, const kvasir::NormArgs& a) {
  if (a.type == kvasir::FLOAT32) return norm_rows<float, float>(tid, nth, a);
  a.weight_type == kvasir::FLOAT32 ? norm_rows<bfloat16, float>(tid, nth, a) : norm_rows<bfloat16, bfloat16>(tid, nth, a);
}

void split_qkv(int tid, int nth, const kvasir::SplitArgs& a) {
  for (int64_t token; (token = kvasir::claim(tid, nth, a.tokens)) >= 0;) {
    if (a.type == kvasir::FLOAT32) split_token<float, float>(a, token);
    else if (a.norm_type == kvasir::FLOAT32) split_token<bfloat16, float>(a, token);
    else split_token<bfloat16, bfloat16>(a, token);
  }
}

template <kvasir::Activation ACTIVATION>
KVASIR_INLINE void act_and_mul_of(int tid, int nth, const kvasir::ActAndMulArgs& a) {
  a.type == kvasir::FLOAT32 ? act_and_mul_rows<ACTIVATION, float>(tid, nth, a)
                            : act_and_mul_rows<ACTIVATION, bfloat16>(tid, nth, a);
}

void act_and_mul(int tid, int nth, const kvasir::ActAndMulArgs& a) {
  a.activation == kvasir::SILU ? act_and_mul_of<kvasir::SILU>(tid, nth, a) : act_and_mul_of<kvasir::GELU>(tid, nth, a);
}

void scale(int tid, int nth, const kvasir::ScaleArgs& a) {
  a.type == kvasir::FLOAT32 ? scale_numbers<float>(tid, nth, a) : scale_numbers<bfloat16>(tid, nth, a);
}

void gather(int tid, int nth, const kvasir::GatherArgs& a) {
  for (int64_t chunk; (chunk = kvasir::claim(tid, nth, (a.rows + ROWS - 1) / ROWS)) >= 0;) {
    for (int64_t r = chunk * ROWS; r < least(a.rows, (chunk + 1) * ROWS); ++r) {
      __builtin_memcpy(static_cast<char*>(a.out) + r * a.row_bytes,
                       static_cast<const char*>(a.table) + a.ids[r] * a.row_bytes, a.row_bytes);
    }
  }
}

int64_t argmax_bytes(const kvasir::ArgmaxArgs& a) {
  return a.rows * ((a.columns + LOGITS - 1) / LOGITS) * static_cast<int64_t>(sizeof(Best));
}

KVASIR_INLINE void best_of_row(const kvasir::ArgmaxArgs& a, int64_t row) {
  const int64_t from = row * a.columns;
  a.ids[row] = valid_id(a.type == kvasir::FLOAT32 ? best_of(static_cast<const float*>(a.x) + from, 0, a.columns)
                                                  : best_of(static_cast<const bfloat16*>(a.x) + from, 0, a.columns));
}

bool argmax_alone(const kvasir::ArgmaxArgs& a) {
  if (a.rows * a.columns > ALONE) return false;
  for (int64_t row = 0; row < a.rows; ++row) best_of_row(a, row);
  return true;
}

void argmax_by_row(int tid, int nth, const kvasir::ArgmaxArgs& a) {
  for (int64_t row; (row = kvasir::claim(tid, nth, a.rows)) >= 0;) best_of_row(a, row);
}

void argmax(int tid, int nth, const kvasir::ArgmaxArgs& a) {
  a.type == kvasir::FLOAT32 ? argmax_rows<float>(tid, nth, a) : argmax_rows<bfloat16>(tid, nth, a);
}

}  // namespace KVASIR_ISA

namespace {

template <class Args, void (*KERNEL)(int, int, const Args&)>
void run_alone(const Args* args, kvasir::Need need = {kvasir::SLOT_OTHER, 0}) {
  const auto region = [](int tid, int nth, void* p) { KERNEL(tid, nth, *static_cast<const Args*>(p)); };
  kvasir::run(region, args, &need, 1);
}

}  // namespace

KVASIR_EXPORT(kvasir_norm)(const kvasir::NormArgs* args) { run_alone<kvasir::NormArgs, KVASIR_ISA::norm>(args); }

KVASIR_EXPORT(kvasir_split_qkv)(const kvasir::SplitArgs* args) {
  run_alone<kvasir::SplitArgs, KVASIR_ISA::split_qkv>(args);
}

KVASIR_EXPORT(kvasir_act_and_mul)(const kvasir::ActAndMulArgs* args) {
  run_alone<kvasir::ActAndMulArgs, KVASIR_ISA::act_and_mul>(args);
}

KVASIR_EXPORT(kvasir_gather)(const kvasir::GatherArgs* args) { run_alone<kvasir::GatherArgs, KVASIR_ISA::gather>(args); }

KVASIR_EXPORT(kvasir_argmax)(const kvasir::ArgmaxArgs* args) {
  if (KVASIR_ISA::argmax_alone(*args)) return;  // not worth waking a thread
  run_alone<kvasir::ArgmaxArgs, KVASIR_ISA::argmax>(args, {kvasir::SLOT_OTHER, KVASIR_ISA::argmax_bytes(*args)});
}
