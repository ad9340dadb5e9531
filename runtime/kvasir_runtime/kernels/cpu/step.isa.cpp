// The layers one after another. Kernels claim their work, and a barrier stands where one reads what another wrote.
#include "step_buffers.h"

namespace KVASIR_ISA {
namespace {

using kvasir::Product;
using kvasir::StepKind;

struct Step {
  StepModel model;
  StepBatch batch;
  int64_t last;  // when the phase before ended
};

kvasir::AttentionArgs attention_args(const Step& s, const Buffers& b, int64_t layer) {
  const StepModel& m = s.model;
  kvasir::AttentionArgs a{};
  a.query = b.qkv;
  a.token_stride = (m.heads + 2 * m.kv_heads) * m.head_dim;
  a.out = b.attended;
  a.cache = m.cache + m.layers[layer].cache_offset;
  a.value_offset = m.value_offset;
  a.block_bytes = m.block_bytes;
  a.sequences = s.batch.sequences + m.layers[layer].group;
  a.heads = m.heads;
  a.kv_heads = m.kv_heads;
  a.head_dim = m.head_dim;
  a.block_size = m.block_size;
  a.window = m.layers[layer].window;
  a.chunk = m.layers[layer].chunk;
  a.scale = m.scale;
  a.cap = m.cap;
  a.query_type = m.type;
  a.cache_type = m.cache_type;
  a.amx = m.amx;
  a.invariant = m.invariant;
  return a;
}

kvasir::SplitArgs split_args(const Step& s, const Buffers& b, int64_t layer) {
  const StepModel& m = s.model;
  kvasir::SplitArgs a{};
  a.qkv = b.qkv;
  a.norm = m.layers[layer].qk_norm;
  a.cos = m.layers[layer].cos;
  a.sin = m.layers[layer].sin;
  a.positions = s.batch.positions;
  a.slots = s.batch.slots + m.layers[layer].group * s.batch.tokens;
  a.cache = m.cache + m.layers[layer].cache_offset;
  a.value_offset = m.value_offset;
  a.block_bytes = m.block_bytes;
  a.tokens = s.batch.tokens;
  a.heads = m.heads;
  a.kv_heads = m.kv_heads;
  a.head_dim = m.head_dim;
  a.block_size = m.block_size;
  a.eps = m.eps;
  a.type = m.type;
  a.cache_type = m.cache_type;
  a.norm_type = m.norm_type;
  return a;
}

kvasir::SampleArgs sample_args(const Step& s) {
  const StepBatch& b = s.batch;
  return {b.logits, b.draws, b.edits, b.sampled, b.num_rows, s.model.head->outputs, s.model.logits_type()};
}

KVASIR_INLINE bool all_in_order(const StepBatch& batch) {
  if (batch.num_rows != batch.tokens) return false;
  for (int64_t i = 0; i < batch.num_rows; ++i) {
    if (batch.rows[i] != i) return false;
  }
  return true;
}

KVASIR_INLINE int64_t now() {
#if defined(__aarch64__)
  int64_t ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
  return static_cast<int64_t>(__builtin_ia32_rdtsc());
#endif
}

// One thread's way through the layers.
struct Pass {
  int tid, nth;
  Step& step;
  Buffers b;
  int64_t rows;
  const char* pending = nullptr;  // what is not yet added to the residual stream

  void done(StepKind kind) {
    const bool ended = kvasir::barrier(tid, nth);
    if (!ended || !step.batch.ticks) return;
    const int64_t then = step.last;
    step.last = now();
    step.batch.ticks[kind] += step.last - then;
  }

  void embed() {
    const StepModel& m = step.model;
    if (m.embedding) {
      gather(tid, nth, {m.embedding, step.batch.token_ids, b.stream, rows, m.hidden * element_bytes(m)});
    } else {
      linear_rows(tid, nth, *m.table, step.batch.token_ids, rows, reinterpret_cast<uint16_t*>(b.stream));
    }
    done(kvasir::EMBEDDING);
    scaled(b.stream, m.hidden, m.embedding_scale, kvasir::EMBEDDING);
  }

  void scaled(void* x, int64_t width, float factor, StepKind kind) {
    if (factor == 1) return;
    scale(tid, nth, {x, nullptr, rows * width, factor, 0, step.model.type});
    done(kind);
  }

  void normed(const void* weight, void* out) {
    const StepModel& m = step.model;
    const char *x = pending ? pending : b.stream, *residual = pending ? b.stream : nullptr;
    char* total = pending ? b.stream : nullptr;
    norm(tid, nth, {x, residual, weight, total, out, rows, m.hidden, m.eps, m.type, m.norm_type});
    done(kvasir::NORM);
    pending = nullptr;
  }

  // The product's sums are added to the residual stream at once, but for those that are normalised or scaled before.
  void added(const kvasir::Linear* weight, const void* x, const void* outer_norm, StepKind kind) {
    if (adds_at_once(outer_norm)) return product(weight, x, b.stream, b.stream, kind);
    product(weight, x, b.normed, nullptr, kind);
    add_later(outer_norm);
  }

  bool adds_at_once(const void* outer_norm) const { return !outer_norm && step.model.residual_scale == 1; }

  // What is in `normed`.
  void add_later(const void* outer_norm) {
    const StepModel& m = step.model;
    if (outer_norm) {
      norm(tid, nth, {b.normed, nullptr, outer_norm, nullptr, b.normed, rows, m.hidden, m.eps, m.type, m.norm_type});
      done(kvasir::NORM);
    }
    scaled(b.normed, m.hidden, m.residual_scale, kvasir::NORM);
    pending = b.normed;
  }

  void feed_forward(const kvasir::StepLayer& layer) {
    const StepModel& m = step.model;
    if (layer.gate_up->gated) {
      product(layer.gate_up, b.normed, b.gated, nullptr, kvasir::GATE_UP);
    } else {
      product(layer.gate_up, b.normed, b.wide, nullptr, kvasir::GATE_UP);
      act_and_mul(tid, nth, {b.wide, b.gated, rows, layer.gate_up->outputs / 2, m.type, m.activation});
      done(kvasir::GATE_UP);
    }
    added(layer.down, b.gated, layer.mlp_outer_norm, kvasir::DOWN);
  }

  void experts(const kvasir::StepLayer& layer) {
    const StepModel& m = step.model;
    const kvasir::Experts& e = *layer.experts;
    product(e.router, b.normed, b.routes.logits, nullptr, kvasir::ROUTER);
    route(tid, nth, e, b.routes, rows);
    done(kvasir::ROUTER);
    sort_rows(tid, nth, e, b.routes, rows);
    done(kvasir::ROUTER);
    const int64_t sorted = rows * e.top_k;
    gather(tid, nth, {b.normed, b.routes.row_of, b.sorted, sorted, m.hidden * element_bytes(m)});
    done(kvasir::ROUTER);
    linear_grouped(tid, nth, {e.gate_up, b.routes.first, e.count}, {b.sorted, b.inner, nullptr, sorted, m.type});
    done(kvasir::EXPERTS);
    linear_grouped(tid, nth, {e.down, b.routes.first, e.count}, {b.inner, b.sorted, nullptr, sorted, m.type});
    done(kvasir::EXPERTS);
    if (e.shared_down) {
      product(e.shared_gate_up, b.normed, b.gated, nullptr, kvasir::GATE_UP);
      product(e.shared_down, b.gated, b.shared, nullptr, kvasir::DOWN);
    }
    if (e.shared_gate) product(e.shared_gate, b.normed, b.gates, nullptr, kvasir::GATE_UP);
    const bool at_once = adds_at_once(layer.mlp_outer_norm);
    const char *shared = e.shared_down ? b.shared : nullptr, *gates = e.shared_gate ? b.gates : nullptr;
    const char* residual = at_once ? b.stream : nullptr;
    char* out = at_once ? b.stream : b.normed;
    combine(tid, nth, {&e, b.routes, b.sorted, shared, gates, residual, out, rows, m.hidden});
    done(kvasir::EXPERTS);
    if (!at_once) add_later(layer.mlp_outer_norm);
  }

  void head() {
    const StepModel& m = step.model;
    void* raw = m.logit_cap != 0 ? b.logits : step.batch.logits;
    product(m.head, step.batch.out, raw, nullptr, kvasir::HEAD);
    if (m.logit_scale == 1 && m.logit_cap == 0) return;
    auto* wide = static_cast<float*>(step.batch.logits);
    scale(tid, nth, {raw, wide, rows * m.head->outputs, m.logit_scale, m.logit_cap, m.type});
    done(kvasir::HEAD);
  }

  void product(const kvasir::Linear* weight, const void* x, void* out, const void* residual, StepKind kind) {
    linear(tid, nth, *weight, Product{x, out, residual, rows, step.model.type});
    done(kind);
  }

  // Only the wanted rows go on: nothing later reads the others.
  void trim() {
    const StepModel& m = step.model;
    rows = step.batch.num_rows;
    gather(tid, nth, {b.stream, step.batch.rows, b.normed, rows, m.hidden * element_bytes(m)});
    done(kvasir::EMBEDDING);
    gather(tid, nth, {b.attended, step.batch.rows, b.qkv, rows, m.heads * m.head_dim * element_bytes(m)});
    done(kvasir::EMBEDDING);
    char* old = b.stream;
    b.stream = b.normed;
    b.normed = old;
    b.attended = b.qkv;
  }

  // One thread looks for all, as masks are computed meanwhile.
  bool masks_are_whole() {
    const StepBatch& batch = step.batch;
    if (!batch.masks) return true;
    while (kvasir::claim(tid, nth, 1) >= 0) {
      bool are_whole = true;
      for (int64_t i = 0; i < batch.num_rows; ++i) {
        const kvasir::LateMask& late = batch.masks[i];
        are_whole &= !late.num_done || __atomic_load_n(late.num_done, __ATOMIC_ACQUIRE) > late.number;
      }
      *batch.has_sampled = are_whole;
    }
    done(kvasir::SAMPLING);
    return *batch.has_sampled;
  }

  void run() {
    const StepModel& m = step.model;
    embed();
    for (int64_t i = 0; i < m.num_layers; ++i) {
      const kvasir::StepLayer& layer = m.layers[i];
      normed(layer.attention_norm, b.normed);
      product(layer.qkv, b.normed, b.qkv, nullptr, kvasir::QKV);
      split_qkv(tid, nth, split_args(step, b, i));
      done(kvasir::SPLIT);
      attention(tid, nth, attention_args(step, b, i));
      done(kvasir::ATTENTION);
      if (i == m.num_layers - 1 && !all_in_order(step.batch)) trim();
      if (!rows) return;
      added(layer.output, b.attended, layer.attention_outer_norm, kvasir::OUTPUT);
      normed(layer.mlp_norm, b.normed);
      if (layer.experts) experts(layer);
      else feed_forward(layer);
    }
    normed(m.norm, step.batch.out);
    if (!step.batch.logits) return;
    head();
    if (!step.batch.sampled || !masks_are_whole()) return;
    if (step.batch.draws) {
      sample(tid, nth, sample_args(step));
    } else {
      argmax_by_row(tid, nth, {step.batch.logits, step.batch.sampled, rows, m.head->outputs, m.logits_type()});
    }
    done(kvasir::SAMPLING);
    if (!step.batch.logprobs) return;
    logprobs(tid, nth, *step.batch.logprobs);
    done(kvasir::SAMPLING);
  }
};

KVASIR_INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// Of all its products.
int64_t scratch_of(const kvasir::StepLayer& layer, int64_t tokens) {
  int64_t scratch = 0;
  const auto add = [&](const kvasir::Linear* weight, int64_t rows) {
    if (weight) scratch = most(scratch, linear_bytes(*weight, rows));
  };
  const kvasir::Linear* dense[] = {layer.qkv, layer.output, layer.gate_up, layer.down};
  for (const kvasir::Linear* weight : dense) add(weight, tokens);
  if (!layer.experts) return scratch;
  const kvasir::Experts& e = *layer.experts;
  const kvasir::Linear *by_token[] = {e.router, e.shared_gate_up, e.shared_down, e.shared_gate};
  for (const kvasir::Linear* weight : by_token) add(weight, tokens);
  add(*e.gate_up, tokens * e.top_k);
  add(*e.down, tokens * e.top_k);
  return scratch;
}

}  // namespace
}  // namespace KVASIR_ISA

// Ends with `kvasir_pool_finish`, until which what model and batch point to must live.
KVASIR_EXPORT(kvasir_step)(const kvasir::StepModel* model, const kvasir::StepBatch* batch) {
  using namespace KVASIR_ISA;
  const Step step{*model, *batch, now()};
  const Buffers b = buffers(*model, *batch, nullptr);
  int64_t partials = 0, scratch = batch->logits ? linear_bytes(*model->head, batch->num_rows) : 0;
  for (int64_t i = 0; i < model->num_layers; ++i) {
    const kvasir::StepLayer& layer = model->layers[i];
    scratch = most(scratch, scratch_of(layer, batch->tokens));
    const kvasir::StepLayer& before = model->layers[i ? i - 1 : 0];
    if (i && layer.window == before.window && layer.chunk == before.chunk) continue;
    partials = most(partials, attention_bytes(attention_args(step, b, i)));
  }
  const int64_t reported = batch->logprobs ? logprobs_bytes(*batch->logprobs) : 0;
  const kvasir::Need needs[] = {{kvasir::SLOT_STEP, b.end - static_cast<char*>(nullptr)},
                                {kvasir::SLOT_ATTENTION, partials},
                                {kvasir::SLOT_LINEAR, scratch},
                                {kvasir::SLOT_OTHER, most(reported, batch->draws ? sample_bytes(sample_args(step)) : 0)}};
  static_assert(sizeof step <= kvasir::ARGS_BYTES);
  kvasir::begin(
      [](int tid, int nth, void* p) {
        Step& s = *static_cast<Step*>(p);
        auto* memory = static_cast<char*>(kvasir::shared_scratch(kvasir::SLOT_STEP));
        Pass{tid, nth, s, buffers(s.model, s.batch, memory), s.batch.tokens}.run();
      },
      &step, sizeof step, needs, 4);
}

KVASIR_EXPORT(kvasir_step_rows)(const kvasir::StepModel* model, const kvasir::StepRows* rows) {
  const kvasir::StepRows& r = *rows;
  int64_t tokens = 0, longest = 0, sampled = 0;
  for (int64_t s = 0; s < r.count; ++s) {
    const int64_t* chunk = r.chunks + kvasir::CHUNK_COLUMNS * s;
    const int64_t end = chunk[kvasir::START] + chunk[kvasir::COUNT];
    longest = KVASIR_ISA::most(longest, (end + model->block_size - 1) / model->block_size);
  }
  for (int64_t s = 0; s < r.count; ++s) {
    const int64_t* chunk = r.chunks + kvasir::CHUNK_COLUMNS * s;
    const int64_t row = chunk[kvasir::ROW], start = chunk[kvasir::START], count = chunk[kvasir::COUNT];
    for (int64_t at = start; at < start + count; ++at, ++tokens) {
      r.token_ids[tokens] = r.tokens[row * r.token_stride + at];
      r.positions[tokens] = at;
    }
    r.lens[s] = static_cast<int32_t>(count);
    r.lens[r.count + s] = static_cast<int32_t>(start + count);
    const int64_t samples = chunk[kvasir::NUM_SAMPLES];
    for (int64_t i = 0; i < samples; ++i, ++sampled) {
      const int64_t end = start + count - samples + 1 + i;
      if (r.params) {
        r.draws[sampled] = r.params[row];
        r.draws[sampled].position = end;
      }
      if (r.edits) {
        kvasir::Edits& e = r.made[sampled];
        e = r.edits[row];
        e.tokens = r.tokens + row * r.token_stride;
        e.num_tokens = end;
        e.below_min_tokens = chunk[kvasir::MIN_TOKENS_LEFT] > i;
        if (r.masks && r.masks[sampled].num_done) {
          e.mask = r.masks[sampled].mask;
          e.mask_words = r.masks[sampled].words;
        }
        r.edited[sampled] = e.active || e.below_min_tokens || e.mask ? &e : nullptr;
      }
      r.wanted[sampled] = tokens - samples + i;
    }
  }
  for (int64_t group = 0; group < model->num_groups; ++group) {
    int64_t *slots = r.slots + group * tokens, *blocks = r.blocks + group * r.count * longest;
    r.sequences[group] = {r.count, r.lens, r.lens + r.count, blocks, longest};
    for (int64_t s = 0; s < r.count; ++s) {
      const int64_t* chunk = r.chunks + kvasir::CHUNK_COLUMNS * s;
      const int64_t start = chunk[kvasir::START], count = chunk[kvasir::COUNT], size = model->block_size;
      const int64_t* table = r.tables + group * r.group_stride + chunk[kvasir::ROW] * r.table_stride;
      for (int64_t at = start; at < start + count; ++at) *slots++ = table[at / size] * size + at % size;
      __builtin_memcpy(blocks + s * longest, table, longest * sizeof(int64_t));
    }
  }
  const kvasir::StepBatch batch{tokens,
                                sampled,
                                r.token_ids,
                                r.positions,
                                r.slots,
                                r.wanted,
                                r.sequences,
                                r.out,
                                r.logits,
                                r.sampled,
                                r.params ? r.draws : nullptr,
                                r.edits ? r.edited : nullptr,
                                r.masks,
                                r.has_sampled,
                                r.logprobs,
                                r.ticks};
  KVASIR_JOIN(kvasir_step, KVASIR_ISA)(model, &batch);
}

// Takes part in it until it is computed, and puts what was drawn at its positions in the rows: also what was drawn behind
// a guess that is wrong, which no later step reads before it is overwritten.
KVASIR_EXPORT(kvasir_step_rows_finish)(const kvasir::StepRows* rows) {
  kvasir::finish();
  if (rows->masks && !*rows->has_sampled) return;
  const int64_t* sampled = rows->sampled;
  for (int64_t s = 0; s < rows->count; ++s) {
    const int64_t* chunk = rows->chunks + kvasir::CHUNK_COLUMNS * s;
    const int64_t samples = chunk[kvasir::NUM_SAMPLES];
    const int64_t end = chunk[kvasir::START] + chunk[kvasir::COUNT] - samples + 1;
    int32_t* tokens = rows->tokens + chunk[kvasir::ROW] * rows->token_stride + end;
    for (int64_t i = 0; i < samples; ++i, ++sampled) {
      tokens[i] = *sampled < 0 ? 0 : static_cast<int32_t>(*sampled);  // an invalid row's must be one to look up
    }
  }
}
