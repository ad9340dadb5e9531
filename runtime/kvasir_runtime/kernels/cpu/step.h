// A decoder's forward pass over one ragged batch, from token ids to what the head sees, and the head, in one region.
#pragma once

#include "elementwise.h"
#include "linear.h"
#include "sample.h"

namespace kvasir {

// qk_norm may be null. gate_up is gated. group: of the cache; cache_offset: bytes from the beginning of a block.
struct StepLayer {
  const void *attention_norm, *qk_norm, *mlp_norm;
  const Linear *qkv, *output, *gate_up, *down;
  int64_t window, chunk, group, cache_offset;
};

// embedding: (vocabulary, hidden), or null where rows of the packed `table` are taken. head: null where there is none.
// cache, value_offset, block_bytes: as in kernels/kv_cache.py. num_groups: of the cache.
// amx: as in AttentionArgs.
struct StepModel {
  const StepLayer* layers;
  const void* embedding;
  const Linear *table, *head;
  const void *norm, *cos, *sin;
  uint8_t* cache;
  int64_t value_offset, block_bytes, num_groups;
  int64_t num_layers, hidden, heads, kv_heads, head_dim, intermediate, block_size;
  float eps, scale;
  Type type, cache_type;
  int32_t amx;
};

// What a step spends its time on, in the order of `KINDS` in cpu/step.py.
enum StepKind { EMBEDDING, NORM, QKV, SPLIT, ATTENTION, OUTPUT, GATE_UP, DOWN, HEAD, SAMPLING, STEP_KINDS };

// slots: (num_groups, tokens). sequences: (num_groups), which differ in their tables.
// rows: (num_rows) indices of the tokens whose hidden states are wanted. out: (num_rows, hidden)
// logits: (num_rows, outputs of the head), or null where they are not wanted. sampled: (num_rows) ids, or null
// draws: (num_rows) how they are drawn, or null where all are of the largest logits. edits: as in SampleArgs
// ticks: (STEP_KINDS) time stamps that each kind took on the calling thread, waiting for the others included; or null
struct StepBatch {
  int64_t tokens, num_rows;
  const int64_t *token_ids, *positions, *slots, *rows;
  const Sequences* sequences;
  void *out, *logits;
  int64_t* sampled;
  const Draw* draws;
  const Edits* const* edits;
  int64_t* ticks;
};

// Of a chunk: it samples; and the answer is below its min_tokens.
enum ChunkFlags { SAMPLES = 1, BELOW_MIN_TOKENS = 2 };

// A step made of rows that the host keeps.
// chunks: (count, 4) of each sequence its row, the first position that is computed, how many, and flags. All positions up
// to there are known to the row. tokens: (rows, token_stride) ids; tables: (num_groups, rows, table_stride) ids of blocks,
// group_stride from group to group.
// params, edits: (rows) how they are drawn and what changes their logits; what is of a step is written here. Null where
// all are of the largest logits, and where no row changes them.
// Workspace: token_ids, positions, slots (in each group) of all positions that are computed; wanted, sampled, draws, edited
// of those that sample; lens (2, count), blocks (num_groups, count, blocks of the longest), sequences (num_groups); out,
// logits, ticks as in StepBatch.
struct StepRows {
  int64_t count;
  const int64_t* chunks;
  int32_t* tokens;
  int64_t token_stride;
  const int64_t* tables;
  int64_t table_stride, group_stride;
  const Draw* params;
  Edits* edits;
  int64_t *token_ids, *positions, *slots, *wanted, *sampled;
  Draw* draws;
  const Edits** edited;
  int32_t* lens;
  int64_t* blocks;
  Sequences* sequences;
  void *out, *logits;
  int64_t* ticks;
};

}  // namespace kvasir
