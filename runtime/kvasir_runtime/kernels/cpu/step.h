// A decoder's forward pass over one ragged batch, from token ids to what the head sees, and the head, in one region.
#pragma once

#include "elementwise.h"
#include "linear.h"
#include "logprobs.h"
#include "moe.h"
#include "sample.h"

namespace kvasir {

// qk_norm may be null, and so may outer norms, of what attention and feed-forward layers give. cos, sin: (positions,
// head_dim). gate_up: gated, or the activation is behind it; null where there are experts. group: of the cache; cache_offset: bytes from the beginning of
// a block.
struct StepLayer {
  const void *attention_norm, *qk_norm, *attention_outer_norm, *mlp_norm, *mlp_outer_norm;
  const Linear *qkv, *output, *gate_up, *down;
  const Experts* experts;
  const void *cos, *sin;
  int64_t window, chunk, group, cache_offset;
};

// embedding: (vocabulary, hidden), or null where rows of the packed `table` are taken. head: null where there is none.
// cache, value_offset, block_bytes: as in kernels/kv_cache.py. num_groups: of the cache.
// intermediate: the widest of all layers' and shared experts'. num_experts, top_k, expert_size: the largest of all layers',
// 0 without. embedding_scale, residual_scale (of what is added to the residual),
// logit_scale: 1 for none. logit_cap: 0 for none; with one logits are in float32. scale, cap, amx,
// invariant: as in AttentionArgs. norm_type: of all norms' weights.
struct StepModel {
  const StepLayer* layers;
  const void* embedding;
  const Linear *table, *head;
  const void* norm;
  uint8_t* cache;
  int64_t value_offset, block_bytes, num_groups;
  int64_t num_layers, hidden, heads, kv_heads, head_dim, intermediate, block_size, num_experts, top_k, expert_size;
  float eps, scale, cap, embedding_scale, residual_scale, logit_scale, logit_cap;
  Type type, cache_type, norm_type;
  Activation activation;
  int32_t amx, invariant;

  Type logits_type() const { return logit_cap != 0 ? FLOAT32 : type; }
};

// What a step spends its time on, in the order of `KINDS` in cpu/step.py.
enum StepKind { EMBEDDING, NORM, QKV, SPLIT, ATTENTION, OUTPUT, GATE_UP, DOWN, ROUTER, EXPERTS, HEAD, SAMPLING, STEP_KINDS };

// A bit for each id that may be drawn, in `words` words, which are whole once *num_done is above `number`: another thread
// may still compute them. Without num_done there is none, and every id may be drawn.
struct LateMask {
  const uint32_t* mask;
  int64_t words;
  const int64_t* num_done;
  int64_t number;
};

// slots: (num_groups, tokens). sequences: (num_groups), which differ in their tables.
// rows: (num_rows) indices of the tokens whose hidden states are wanted. out: (num_rows, hidden)
// logits: (num_rows, outputs of the head), or null where they are not wanted. sampled: (num_rows) ids, or null
// draws: (num_rows) how they are drawn, or null where all are of the largest logits. edits: as in SampleArgs
// masks: (num_rows) those of edits, null where none is late. If one is when logits are computed, nothing is sampled and
// *has_sampled is 0. logprobs: what is reported of the ids that are sampled, or null
// ticks: (STEP_KINDS) time stamps that each kind took on the calling thread, waiting for the others included; or null
struct StepBatch {
  int64_t tokens, num_rows;
  const int64_t *token_ids, *positions, *slots, *rows;
  const Sequences* sequences;
  void *out, *logits;
  int64_t* sampled;
  const Draw* draws;
  const Edits* const* edits;
  const LateMask* masks;
  int64_t* has_sampled;
  const LogprobsArgs* logprobs;
  int64_t* ticks;
};

// Of a chunk in `StepRows::chunks`. NUM_SAMPLES: how many of its last positions are sampled from, the one before each of
// them known or guessed; MIN_TOKENS_LEFT: of the answer at the first of these.
enum ChunkColumn { ROW, START, COUNT, NUM_SAMPLES, MIN_TOKENS_LEFT, CHUNK_COLUMNS };

// A step made of rows that the host keeps.
// chunks: (count, CHUNK_COLUMNS). All positions up to the end of a chunk have ids in its row. tokens: (rows, token_stride) ids; tables: (num_groups, rows, table_stride) ids of blocks,
// group_stride from group to group.
// params, edits: (rows) how they are drawn and what changes their logits. Null where all are of the largest logits, and
// where no row changes them.
// Workspace: token_ids, positions, slots (in each group) of all positions that are computed; wanted, sampled, draws, made
// (edits as of the position), edited of those that sample; lens (2, count), blocks (num_groups, count, blocks of the longest), sequences (num_groups); out,
// logits, masks, has_sampled, logprobs, ticks as in StepBatch.
struct StepRows {
  int64_t count;
  const int64_t* chunks;
  int32_t* tokens;
  int64_t token_stride;
  const int64_t* tables;
  int64_t table_stride, group_stride;
  const Draw* params;
  const Edits* edits;
  int64_t *token_ids, *positions, *slots, *wanted, *sampled;
  Draw* draws;
  Edits* made;
  const Edits** edited;
  int32_t* lens;
  int64_t* blocks;
  Sequences* sequences;
  void *out, *logits;
  const LateMask* masks;
  int64_t* has_sampled;
  const LogprobsArgs* logprobs;
  int64_t* ticks;
};

}  // namespace kvasir
