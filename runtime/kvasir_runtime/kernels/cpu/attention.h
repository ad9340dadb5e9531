// Attention over the paged cache, for a region of the pool; the formula is in kernels/attention.py.
#pragma once

#include "isa.h"

namespace kvasir {

enum Type : int32_t { FLOAT32, BFLOAT16, INT8, INT4 };

// The sequences of one step; as Spans in kernels/attention_metadata.py.
struct Sequences {
  int64_t count;
  const int32_t* query_lens;
  const int32_t* kv_lens;
  const int64_t* tables;  // (count, table_stride) ids of blocks
  int64_t table_stride;
};

// cache: keys, and value_offset bytes behind them values: blocks of (block_size, kv_heads) rows, block_bytes apart.
// window, chunk, cap (softcap): as in kernels/attention.py, 0 for none.
// amx: whether sequences of 16 rows and more may be computed by it, whose sums are in another order.
// invariant: whether one query is computed as several are, in place of attention_few.h.
// INT8 rows are head_dim numbers and behind them their scale, a float32; INT4 rows as kernels/kv_int4.py has them.
struct AttentionArgs {
  const void* query;  // (tokens, heads, head_dim), token_stride elements from token to token
  int64_t token_stride;
  void* out;  // (tokens, heads * head_dim), of query's type
  const uint8_t* cache;
  int64_t value_offset, block_bytes;
  const Sequences* sequences;
  int64_t heads, kv_heads, head_dim, block_size, window, chunk;
  float scale, cap;
  Type query_type, cache_type;
  int32_t amx, invariant;
};

}  // namespace kvasir

namespace KVASIR_ISA {

// Bytes that all threads share in SLOT_ATTENTION, to be asked for before the region.
int64_t attention_bytes(const kvasir::AttentionArgs& args);

// Ends without a barrier: out is whole only after the caller's next one.
void attention(int tid, int nth, const kvasir::AttentionArgs& args);

}  // namespace KVASIR_ISA
