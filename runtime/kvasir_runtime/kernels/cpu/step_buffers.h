// Where the activations of a step lie. Used by step.isa.cpp alone, hence without names outside of it.
#pragma once

#include "step.h"

namespace KVASIR_ISA {
namespace {

using kvasir::StepBatch;
using kvasir::StepModel;

KVASIR_INLINE int64_t element_bytes(const StepModel& m) { return m.type == kvasir::FLOAT32 ? 4 : 2; }

// Where the activations of a step lie in SLOT_STEP, each (tokens, width). stream is the residual stream. wide: of layers
// whose activation is behind the product. logits: before the cap, (rows, outputs of the head).
struct Buffers {
  char *stream, *normed, *qkv, *attended, *gated, *wide, *logits, *end;
  char *sorted, *inner, *shared, *gates;  // of experts: sorted rows, what gate and up make of them, (tokens, hidden), (tokens)
  kvasir::Routes routes;
};

inline Buffers buffers(const StepModel& m, const StepBatch& batch, char* memory) {
  const int64_t tokens = batch.tokens, routed = m.top_k * tokens;
  const auto take_bytes = [&](int64_t bytes) {
    char* got = memory;
    memory += (bytes + 63) / 64 * 64;
    return got;
  };
  const auto take = [&](int64_t width) { return take_bytes(tokens * width * element_bytes(m)); };
  Buffers b;
  b.stream = take(m.hidden);
  b.normed = take(m.hidden);
  b.qkv = take((m.heads + 2 * m.kv_heads) * m.head_dim);
  b.attended = take(m.heads * m.head_dim);
  b.gated = take(m.intermediate);
  b.wide = take(m.activation == kvasir::SILU ? 0 : 2 * m.intermediate);
  const bool caps = batch.logits && m.logit_cap != 0;
  b.logits = take_bytes(caps ? batch.num_rows * m.head->outputs * element_bytes(m) : 0);
  b.sorted = take(m.top_k * m.hidden);
  b.inner = take(m.top_k * m.expert_size);
  b.shared = take(m.num_experts ? m.hidden : 0);
  b.gates = take(m.num_experts ? 1 : 0);
  b.routes.logits = take(m.num_experts);
  b.routes.chosen = reinterpret_cast<int32_t*>(take_bytes(routed * 4));
  b.routes.shares = reinterpret_cast<float*>(take_bytes(routed * 4));
  b.routes.first = reinterpret_cast<int64_t*>(take_bytes((m.num_experts + 1) * 8));
  b.routes.row_of = reinterpret_cast<int64_t*>(take_bytes(routed * 8));
  b.routes.sorted_of = reinterpret_cast<int64_t*>(take_bytes(routed * 8));
  b.end = memory;
  return b;
}

}  // namespace
}  // namespace KVASIR_ISA
