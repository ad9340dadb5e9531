// What the products must know of a kind of quantized weights, as a type: each kind has loops of its own.
#pragma once

#include "linear_tasks.h"

namespace KVASIR_ISA {

using kvasir::Weights;

// By code: twice the number, and 12.
alignas(16) constexpr uint8_t E2M1_NUMBERS[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// Whether numbers that are looked up keep their signs: VNNI alone multiplies unsigned bytes by signed ones.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr bool SIGNED_TABLES = false;
#else
constexpr bool SIGNED_TABLES = true;
#endif

// PER_LINE: values of k that a line has of an output; two halves of each byte where they are eight. ZERO: what stands for 0
// in the instruction, and MINIMA: whether instead each group has a minimum beside its scale.
// scales: of as many outputs as there are lanes. numbers: what the instruction takes of a line, or of a half of its bytes.
// FITS: lines whose products, two beside one another, fit 16 bits; 0 where those of one half alone do.
template <Weights KIND>
struct Form;

template <>
struct Form<Weights::BITS8> {
  using Scale = uint16_t;
  static constexpr int64_t PER_LINE = 4;
  static constexpr int ZERO = 128;
  static constexpr bool MINIMA = false;
  static KVASIR_INLINE Floats scales(const Linear&, const Scale* from) { return load_float16(from); }
  static KVASIR_INLINE Ints numbers(const Linear&, Ints line, int) { return line; }
};

template <>
struct Form<Weights::BITS4> {
  using Scale = uint16_t;
  static constexpr int64_t PER_LINE = 8, FITS = 4;  // 2 * 15 * 128 * 8
  static constexpr int ZERO = 0;
  static constexpr bool MINIMA = true;
  static KVASIR_INLINE Floats scales(const Linear&, const Scale* from) { return load_float16(from); }
  static KVASIR_INLINE Ints numbers(const Linear&, Ints line, int half) { return (half ? line >> 4 : line) & 0x0f0f0f0f; }
};

// Numbers are in halves, so that they are whole: 0 to 12 and a sign, and 12 more.
template <>
struct Form<Weights::E2M1> {
  using Scale = uint8_t;
  static constexpr int64_t PER_LINE = 8, FITS = 2;  // 2 * 24 * 128 * 4
  static constexpr int ZERO = 12;
  static constexpr bool MINIMA = false;
  // The exponent of e4m3 has a bias that is 120 less.
  static KVASIR_INLINE Floats scales(const Linear& w, const Scale* from) {
    const auto scale = reinterpret_cast<Floats>(load_bytes(from) << w.scale_shift);
    return scale * splat(w.scale_shift == kvasir::SHIFT_E4M3 ? 0x1p120f : 1.0f);
  }
  static KVASIR_INLINE Ints numbers(const Linear&, Ints line, int half) {
    return looked_up(E2M1_NUMBERS, (half ? line >> 4 : line) & 0x0f0f0f0f);
  }
};

template <>
struct Form<Weights::CODEBOOK> {
  using Scale = uint16_t;
  static constexpr int64_t PER_LINE = 8, FITS = 0;
  static constexpr int ZERO = SIGNED_TABLES ? 0 : 128;
  static constexpr bool MINIMA = false;
  static KVASIR_INLINE Floats scales(const Linear&, const Scale* from) { return load_float16(from); }
  static KVASIR_INLINE Ints numbers(const Linear& w, Ints line, int half) {
    return looked_up(w.table + (SIGNED_TABLES ? 16 : 0), (half ? line >> 4 : line) & 0x0f0f0f0f);
  }
};

template <class F>
constexpr int HALVES = F::PER_LINE / 4;

// Calls task(form) with the form of a quantized weight.
template <class Task>
KVASIR_INLINE void with_form(const Linear& w, const Task& task) {
  if (w.kind == Weights::BITS8) task(Form<Weights::BITS8>{});
  else if (w.kind == Weights::BITS4) task(Form<Weights::BITS4>{});
  else if (w.kind == Weights::E2M1) task(Form<Weights::E2M1>{});
  else task(Form<Weights::CODEBOOK>{});
}

// Where the scales of a group begin, from those of the first; width: tiles of the panel.
KVASIR_INLINE int64_t scales_of(const Linear& w, int64_t group, int64_t width) { return group / w.sharing * width * TILE; }

// What a row brings to a group beside its numbers qx: where the sum of integers begins, -ZERO * sum_k(qx), or the float
// sx * sum_k(qx), which multiplies the minimum. total: sum_k(qx); scale: sx.
KVASIR_INLINE void put_offset(const Linear& w, int32_t total, float scale, int32_t* to) {
  with_form(w, [&](auto form) __attribute__((always_inline)) {
    using F = decltype(form);
    const float scaled = scale * static_cast<float>(total);
    if (F::MINIMA) __builtin_memcpy(to, &scaled, 4);
    else *to = static_cast<int32_t>(static_cast<uint32_t>(-F::ZERO) * static_cast<uint32_t>(total));
  });
}

}  // namespace KVASIR_ISA
