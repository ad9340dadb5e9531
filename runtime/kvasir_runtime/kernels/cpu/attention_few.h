// Attention of one query per sequence, of all heads that share a task of the cache: decode. Nothing is packed, since a
// packed key would be used by a few rows only. Used by attention.isa.cpp alone.
//
// A task is one split of one sequence and some heads. First all scores, from keys that are read once and in order, 16
// positions at a time; then weights of the whole split; then values. A key times a query leaves as many partial sums as a
// vector has lanes, and those of as many keys are added up by a tree of shuffles.
#pragma once

#include "attention_few_bf16.h"
#include "attention_few_widened.h"

namespace KVASIR_ISA {
namespace {

constexpr int64_t FETCHED = 1;  // chunks that are asked for before they are needed

// One sequence's keys and values in chunks: those of keys, then those of values.
struct Chunks {
  const AttentionArgs* a;
  const int64_t* table;
  int64_t token_bytes, first, count;  // of the first chunk its first position; chunks of keys

  KVASIR_INLINE const uint8_t* at(int64_t chunk) const {
    const bool value = chunk >= count;
    const int64_t position = first + (value ? chunk - count : chunk) * CHUNK;
    return a->cache + table[position / a->block_size] * a->block_bytes + position % a->block_size * token_bytes +
           (value ? a->value_offset : 0);
  }
};

// Prefetches the rows of one head in a chunk. Null where there is none.
KVASIR_INLINE void ask(const uint8_t* chunk, int64_t token_bytes, int64_t row_bytes) {
  if (!chunk) return;
  for (int j = 0; j < CHUNK; ++j, chunk += token_bytes)
    for (int64_t byte = 0; byte < row_bytes; byte += 64) __builtin_prefetch(chunk + byte);
}

template <class From, int LINES>
KVASIR_INLINE void scores_of(int64_t rows, const FewNumber* query, const uint8_t* const* at, float* scores) {
  constexpr int MOST = kLanes == 16 ? 4 : 3;
  for (; rows > MOST; rows -= MOST, query += MOST * LINES * 32, scores += MOST * SPLIT)
    score<MOST, From, LINES>(query, at, scores, SPLIT);
  switch (rows) {
    case 1: return score<1, From, LINES>(query, at, scores, SPLIT);
    case 2: return score<2, From, LINES>(query, at, scores, SPLIT);
    case 3: return score<3, From, LINES>(query, at, scores, SPLIT);
    default: return score<MOST, From, LINES>(query, at, scores, SPLIT);
  }
}

template <class From, int LINES>
KVASIR_INLINE void values_of(int64_t rows, const uint8_t* const* at, const FewNumber* weights, float* sums) {
  constexpr int MOST = few_values<LINES>();
  for (; rows > MOST; rows -= MOST, weights += MOST * SPLIT, sums += MOST * LINES * 32)
    add_values<MOST, From, LINES>(at, weights, SPLIT, sums);
  switch (rows) {
    case 1: return add_values<1, From, LINES>(at, weights, SPLIT, sums);
    case 2: return add_values<2, From, LINES>(at, weights, SPLIT, sums);
    case 3: return add_values<MOST == 2 ? 1 : 3, From, LINES>(at, weights, SPLIT, sums);
    default: return add_values<MOST, From, LINES>(at, weights, SPLIT, sums);
  }
}

// to = from * factors of a chunk's positions.
template <class To>
KVASIR_INLINE void store_chunk(To* to, const float* from, const float* factors) {
  for (int64_t i = 0; i < CHUNK; i += kLanes) store(to + i, load(from + i) * load(factors + i));
}

// Scores (count, of whole chunks) of one row become weights. Of the chunks' positions those from .. to count.
struct Softened {
  float maximum, sum;
};

// limit: of scores before they are scaled, 0 for none. weights: may be the scores.
template <class To>
KVASIR_INLINE Softened soften_few(float* scores, int64_t count, int64_t from, int64_t to, float scale, float limit,
                                  To* weights) {
  Ints places{};
  for (int lane = 0; lane < kLanes; ++lane) places[lane] = lane;
  const Ints low = Ints{} + static_cast<int32_t>(from), high = Ints{} + static_cast<int32_t>(to);
  Floats best = splat(UNSEEN);
  for (int64_t i = 0; i < count; i += kLanes) {
    const Ints place = places + static_cast<int32_t>(i);
    const Floats raw = load(scores + i), within = limit != 0 ? capped(raw, limit) : raw;
    const Floats s = ((place >= low) & (place < high)) ? within : splat(UNSEEN);
    store(scores + i, s);
    best = larger(s, best);
  }
  const float found = largest(best) * scale, maximum = found > LEAST ? found : LEAST;
  const Floats factor = splat(scale), offset = splat(-maximum);
  Floats total{};
  for (int64_t i = 0; i < count; i += kLanes) {
    const Floats p = exp2(multiply_add(load(scores + i), factor, offset));
    total += p;
    store(weights + i, p);
  }
  return {maximum, sum(total)};
}

// The rows of a chunk's positions, and for those outside of first .. stop one that is inside: their weights are 0, and
// what lies in their own place may be no number.
KVASIR_INLINE void rows_of(const Chunks& chunks, int64_t chunk, const Span& span, const uint8_t** rows) {
  const uint8_t* base = chunks.at(chunk);
  const int64_t place = chunks.first + (chunk < chunks.count ? chunk : chunk - chunks.count) * CHUNK;
  const int64_t low = most(0, span.first - place), high = least(CHUNK, span.stop - place) - 1;
  for (int64_t j = 0; j < CHUNK; ++j) rows[j] = base + least(high, most(low, j)) * chunks.token_bytes;
}

template <class From>
KVASIR_INLINE Chunks chunks_of(const AttentionArgs& a, const Item& item, const Span& span) {
  const int64_t first = span.first / CHUNK * CHUNK, count = (span.stop - first + CHUNK - 1) / CHUNK;
  return {&a, table_of(a, item), a.kv_heads * row_bytes_of<From>(a), first, count};
}

// heads: key heads of the task, from item.kv_head on. next: what this thread most likely reads next, or null.
template <class From, int LINES>
void attend_few(const AttentionArgs& a, float* memory, const Item& item, int64_t heads, const Item* next, float* partials) {
  const int64_t group = a.heads / a.kv_heads, rows = heads * group, head = item.kv_head * group;
  const int64_t row_bytes = row_bytes_of<From>(a);
  const Span span = span_of(a, item);
  const Chunks chunks = chunks_of<From>(a, item, span);
  const Chunks later = next ? chunks_of<From>(a, *next, span_of(a, *next)) : Chunks{};
  float* scores = memory;
  constexpr bool SCALED = sizeof(From) == 1, WIDE = sizeof(FewNumber) == 4;
  auto* weights = reinterpret_cast<FewNumber*>(WIDE ? scores : scores + rows * SPLIT);
  float* sums = scores + rows * (SPLIT + SPLIT / 2);
  const auto* given = static_cast<const bfloat16*>(a.query) + item.start * a.token_stride + head * a.head_dim;
  const auto* query = reinterpret_cast<const FewNumber*>(given);
  if (WIDE) {
    float* wide = sums + rows * a.head_dim;
    for (int64_t i = 0; i < rows * a.head_dim; i += kLanes) store(wide + i, load(given + i));
    query = reinterpret_cast<const FewNumber*>(wide);
  }
  alignas(64) uint8_t memory_of_rows[SCALED && !WIDE ? CHUNK * LINES * 64 : 1];
  alignas(64) float scales[CHUNK];
  const uint8_t *at[CHUNK], *of_head[CHUNK];
  const auto ahead = [&](int64_t chunk) -> const uint8_t* {
    const int64_t wanted = chunk + FETCHED, beyond = wanted - 2 * chunks.count;
    if (beyond < 0) return chunks.at(wanted) + item.kv_head * row_bytes;
    return next && beyond < later.count ? later.at(beyond) + next->kv_head * row_bytes : nullptr;
  };
  for (int64_t chunk = 0; chunk < chunks.count; ++chunk) {
    rows_of(chunks, chunk, span, at);
    const uint8_t* fetched = ahead(chunk);
    for (int64_t h = 0; h < heads; ++h) {
      ask(fetched ? fetched + h * row_bytes : nullptr, chunks.token_bytes, row_bytes);
      float* to = scores + h * group * SPLIT + chunk * CHUNK;
      widen_rows<From, LINES>(at, (item.kv_head + h) * row_bytes, memory_of_rows, scales, of_head);
      scores_of<From, LINES>(group, query + h * group * LINES * 32, of_head, to);
      for (int64_t r = 0; SCALED && r < group; ++r) store_chunk(to + r * SPLIT, to + r * SPLIT, scales);
    }
  }
  Softened softened[MOST_HEADS];
  for (int64_t r = 0; r < rows; ++r) {
    float* own = scores + r * SPLIT;
    const auto soften_to = [&](auto* to) {
      return soften_few(own, chunks.count * CHUNK, span.first - chunks.first, span.stop - chunks.first, a.scale * 1.44269504f,
                        a.cap / a.scale, to);
    };
    softened[r] = SCALED ? soften_to(own) : soften_to(weights + r * SPLIT);
  }
  __builtin_memset(sums, 0, rows * a.head_dim * 4);
  for (int64_t chunk = chunks.count; chunk < 2 * chunks.count; ++chunk) {
    rows_of(chunks, chunk, span, at);
    const uint8_t* fetched = ahead(chunk);
    for (int64_t h = 0; h < heads; ++h) {
      ask(fetched ? fetched + h * row_bytes : nullptr, chunks.token_bytes, row_bytes);
      const int64_t place = h * group * SPLIT + (chunk - chunks.count) * CHUNK;
      widen_rows<From, LINES>(at, (item.kv_head + h) * row_bytes, memory_of_rows, scales, of_head);
      for (int64_t r = place; SCALED && r < place + group * SPLIT; r += SPLIT)
        store_chunk(weights + r, scores + r, scales);
      values_of<From, LINES>(group, of_head, weights + place, sums + h * group * a.head_dim);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    alignas(64) float out[LINES * 32];
    in_order<LINES>(sums + r * a.head_dim, out);
    if (item.partial < 0) {
      finish<bfloat16>(a, out, softened[r].sum, item.start, head + r);
    } else {
      float* to = partials + (item.partial + r / group * item.cut.splits * group + r % group) * partial_floats(a);
      to[0] = softened[r].maximum;
      to[1] = softened[r].sum;
      __builtin_memcpy(to + 16, out, sizeof out);
    }
  }
}

}  // namespace
}  // namespace KVASIR_ISA
