// The linear layers: which kernel computes which weight, and what Python calls.
#include "linear.h"

#include "linear_bf16.h"
#include "linear_pack.h"
#include "linear_quantized.h"
#include "linear_quantized_bytes.h"
#include "linear_widened.h"

namespace KVASIR_ISA {

int64_t linear_bytes(const Linear& weight, int64_t rows) {
#ifdef __AVX512BF16__
  if (weight.kind == kvasir::Weights::BFLOAT16) return 0;
#else
  if (weight.kind == kvasir::Weights::BFLOAT16) return shared_bytes(weight, rows, widened_bytes(weight, rows));
#endif
  return shared_bytes(weight, rows, rounded_bytes(weight, rows));
}

void linear_grouped(int tid, int nth, const Grouped& weights, const Product& product) {
  const bool whole = weights.weights[0]->kind == kvasir::Weights::BFLOAT16;
#ifdef __AVX512BF16__
  if (whole) return linear_bf16(tid, nth, weights, product);
#else
  if (whole) return linear_widened(tid, nth, weights, product);
#endif
  linear_quantized(tid, nth, weights, product);
}

void linear(int tid, int nth, const Linear& weight, const Product& product) {
  const Linear* one = &weight;
  const int64_t first[] = {0, product.rows};
  linear_grouped(tid, nth, {&one, first, 1}, product);
}

void linear_rows(int tid, int nth, const Linear& weight, const int64_t* ids, int64_t count, uint16_t* out) {
  rows_bf16(tid, nth, weight, ids, count, out);
}

namespace {

struct LinearCall {
  const Linear* weight;
  const Product* product;
};

struct GroupedCall {
  const Grouped* weights;
  const Product* product;
};

struct RowsCall {
  const Linear* weight;
  const int64_t* ids;
  int64_t count;
  uint16_t* out;
};

}  // namespace
}  // namespace KVASIR_ISA

KVASIR_EXPORT(kvasir_linear)(const kvasir::Linear* weight, const kvasir::Product* product) {
  KVASIR_ISA::LinearCall call{weight, product};
  const kvasir::Need need{kvasir::SLOT_LINEAR, KVASIR_ISA::linear_bytes(*weight, product->rows)};
  kvasir::run(
      [](int tid, int nth, void* p) {
        const auto& c = *static_cast<KVASIR_ISA::LinearCall*>(p);
        KVASIR_ISA::linear(tid, nth, *c.weight, *c.product);
      },
      &call, &need, 1);
}

KVASIR_EXPORT(kvasir_linear_grouped)(const kvasir::Grouped* weights, const kvasir::Product* product) {
  KVASIR_ISA::GroupedCall call{weights, product};
  const kvasir::Need need{kvasir::SLOT_LINEAR, KVASIR_ISA::linear_bytes(*weights->weights[0], product->rows)};
  kvasir::run(
      [](int tid, int nth, void* p) {
        const auto& c = *static_cast<KVASIR_ISA::GroupedCall*>(p);
        KVASIR_ISA::linear_grouped(tid, nth, *c.weights, *c.product);
      },
      &call, &need, 1);
}

KVASIR_EXPORT(kvasir_linear_rows)(const kvasir::Linear* weight, const int64_t* ids, int64_t count, uint16_t* out) {
  KVASIR_ISA::RowsCall call{weight, ids, count, out};
  kvasir::run(
      [](int tid, int nth, void* p) {
        const auto& c = *static_cast<KVASIR_ISA::RowsCall*>(p);
        KVASIR_ISA::linear_rows(tid, nth, *c.weight, c.ids, c.count, c.out);
      },
      &call);
}

// bits: 8 or 4
KVASIR_EXPORT(kvasir_pack_quantized)
(const uint8_t* source, int64_t rows, int64_t k, int64_t tiles, int32_t gated, int32_t bits, uint32_t* target) {
  KVASIR_ISA::Pack call{source, rows, k, tiles, gated != 0, bits, target};
  kvasir::run([](int tid, int nth, void* p) { KVASIR_ISA::pack(tid, nth, *static_cast<KVASIR_ISA::Pack*>(p)); }, &call);
}

KVASIR_EXPORT(kvasir_pack_bf16)
(const uint8_t* source, int64_t rows, int64_t k, int64_t tiles, int32_t gated, uint32_t* target) {
  KVASIR_ISA::Pack call{source, rows, k, tiles, gated != 0, 16, target};
  kvasir::run([](int tid, int nth, void* p) { KVASIR_ISA::pack(tid, nth, *static_cast<KVASIR_ISA::Pack*>(p)); }, &call);
}
