// How attention's work is cut, and the tile of keys and values that a thread packs from where the block tables say they
// lie. Used by attention.isa.cpp alone, hence without names outside of it.
#pragma once

#include "attention.h"
#include "hadamard.h"
#include "pool.h"
#include "tile.h"

namespace KVASIR_ISA {
namespace {

using kvasir::AttentionArgs;

constexpr int64_t ROWS = 192;
constexpr int64_t KEYS = 128;
constexpr int64_t SPLIT = 256;
constexpr int64_t LONGEST_HEAD = 1024;
// Scores of what is not seen, and the least that a maximum can be: so far apart that their difference gives exactly 0, and
// finite, so that no difference is NaN.
constexpr float UNSEEN = -1e30f, LEAST = -1e20f;

KVASIR_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
KVASIR_INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
KVASIR_INLINE int64_t up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

// One row of the result. out: whole vectors of its sums; sum: of its weights.
template <class Query>
KVASIR_INLINE void finish(const AttentionArgs& a, const float* out, float sum, int64_t token, int64_t head) {
  Query* to = static_cast<Query*>(const_cast<void*>(a.out)) + (token * a.heads + head) * a.head_dim;
  const Floats factor = splat(1 / sum);
  float turned[LONGEST_HEAD];
  if (a.cache_type == kvasir::INT4) {
    __builtin_memcpy(turned, out, a.head_dim * 4);
    hadamard(turned, a.head_dim, back_of(a.head_dim));
    out = turned;
  }
  int64_t d = 0;
  for (; d + kLanes <= a.head_dim; d += kLanes) store(to + d, load(out + d) * factor);
  for (; d < a.head_dim; ++d) narrow(to + d, out[d] * (1 / sum));
}

// First position that the query at a position sees.
KVASIR_INLINE int64_t first_seen(const AttentionArgs& a, int64_t position) {
  const int64_t begin = a.window ? most(0, position - a.window + 1) : 0;
  return a.chunk ? most(begin, position / a.chunk * a.chunk) : begin;
}

// What attention_few.h takes: one query of a few heads that share keys, and blocks of whole chunks.
constexpr int64_t CHUNK = 16;
constexpr int64_t FEW_ROWS = 8, MOST_HEADS = 256;

KVASIR_INLINE bool is_few(const AttentionArgs& a, int64_t queries) {
  return queries == 1 && !a.invariant && a.query_type == kvasir::BFLOAT16 && a.cache_type != kvasir::INT4 &&
         a.heads / a.kv_heads <= FEW_ROWS && a.heads <= MOST_HEADS && (a.head_dim == 64 || a.head_dim == 128) &&
         a.block_size % CHUNK == 0;
}

// How one sequence is cut. splits > 1: partial results are merged afterwards.
struct Cut {
  int64_t tiles, first_split, splits;
  bool few;  // one query, for attention_few.h
};

Cut cut(const AttentionArgs& a, int64_t sequence) {
  const int64_t queries = a.sequences->query_lens[sequence], end = a.sequences->kv_lens[sequence];
  const int64_t rows = queries * (a.heads / a.kv_heads);
  if (rows > ROWS) return {(rows + ROWS - 1) / ROWS, 0, 1, false};
  const int64_t first = first_seen(a, end - queries) / SPLIT;
  return {1, first, (end - 1) / SPLIT - first + 1, is_few(a, queries)};
}

// Widths of a call. depth: elements of 32 bits along a head, padded to 16; columns: along a head's values, padded.
struct Widths {
  int64_t depth, columns;
};

KVASIR_INLINE Widths widths(const AttentionArgs& a, int width) {
  return {up((a.head_dim + width - 1) / width, 16), up(a.head_dim, kLanes)};
}

KVASIR_INLINE int64_t partial_floats(const AttentionArgs& a) { return up(a.head_dim, kLanes) + 16; }

// Scores, weights, sums and queries of all rows of a task of attention_few.h.
KVASIR_INLINE int64_t few_floats(const AttentionArgs& a) { return a.heads * (SPLIT + SPLIT / 2 + 2 * a.head_dim); }

// Where a thread keeps a tile. l is kept lane by lane, and summed once at the end.
struct Tile {
  uint32_t* query;     // (ROWS, depth)
  uint32_t* keys;      // (depth, KEYS)
  uint32_t* values;    // (KEYS / width, columns)
  uint32_t* rows;      // (KEYS, depth) one conversion of the cache's rows
  float* scores;       // (kMostPanelRows, KEYS)
  uint32_t* weights;   // (kMostPanelRows, KEYS / width)
  float* out;          // (ROWS, columns)
  float* sums;         // (ROWS, kLanes)
  float* maxima;       // (ROWS)
  float* whole;        // (ROWS, columns) of the splits before
  float* totals;       // (ROWS)
  float* whole_maxima; // (ROWS)
  float* key_scales;   // (KEYS)
  float* value_scales; // (KEYS)
  const uint8_t** at;  // (KEYS) rows of the cache
  const uint8_t** packed;  // (KEYS) of INT4: the same, while `at` has their numbers
  int8_t* numbers;         // (KEYS, head_dim) of INT4
  float* few;          // of attention_few.h
};

// Both kinds fit: sizes are those of the wider one.
Tile tile_of(int tid, const AttentionArgs& a) {
  const Widths w = widths(a, 1);
  const int64_t words = ROWS * w.depth + KEYS * (2 * w.depth + w.columns) + 2 * kMostPanelRows * KEYS +
                        ROWS * (2 * w.columns + kLanes + 3) + 2 * KEYS + few_floats(a) + 20 * 16;
  auto* next = static_cast<uint32_t*>(kvasir::own_scratch(tid, kvasir::SLOT_ATTENTION, 4 * words + 16 * KEYS + KEYS * a.head_dim + 64));
  Tile t;
  const auto take = [&](int64_t count) {
    uint32_t* got = next;
    next += up(count, 16);
    return got;
  };
  const auto take_floats = [&](int64_t count) { return reinterpret_cast<float*>(take(count)); };
  t.at = reinterpret_cast<const uint8_t**>(take(2 * KEYS));
  t.packed = reinterpret_cast<const uint8_t**>(take(2 * KEYS));
  t.numbers = reinterpret_cast<int8_t*>(take(KEYS * a.head_dim / 4));
  t.query = take(ROWS * w.depth);
  t.keys = take(KEYS * w.depth);
  t.rows = take(KEYS * w.depth);
  t.values = take(KEYS * w.columns);
  t.scores = take_floats(kMostPanelRows * KEYS);
  t.weights = take(kMostPanelRows * KEYS);
  t.out = take_floats(ROWS * w.columns);
  t.sums = take_floats(ROWS * kLanes);
  t.maxima = take_floats(ROWS);
  t.whole = take_floats(ROWS * w.columns);
  t.totals = take_floats(ROWS);
  t.whole_maxima = take_floats(ROWS);
  t.key_scales = take_floats(KEYS);
  t.value_scales = take_floats(KEYS);
  t.few = take_floats(few_floats(a));
  return t;
}

// A row as elements of Kind, zeros up to `depth`.
template <class Kind, class From>
KVASIR_INLINE void elements(const From* from, int64_t count, uint32_t* to, int64_t depth) {
  int64_t i = 0;
  if constexpr (Kind::kWidth == 1) {
    auto* wide = reinterpret_cast<float*>(to);
    for (; i + kLanes <= count; i += kLanes) store(wide + i, load(from + i));
    for (; i < count; ++i) wide[i] = widen(from[i]);
    for (; i < depth; ++i) wide[i] = 0;
  } else {
    auto* narrow_to = reinterpret_cast<bfloat16*>(to);
    for (; i + kLanes <= count; i += kLanes) store(narrow_to + i, load(from + i));
    for (; i < count; ++i) narrow(narrow_to + i, widen(from[i]));
    for (; i < 2 * depth; ++i) narrow_to[i] = bfloat16{0};
  }
}

// Whether a row of the cache is a row of elements as it stands.
template <class Kind, class From>
constexpr bool same_elements() {
  return sizeof(From) * Kind::kWidth == 4;
}

// Where the rows of positions first .. first + KEYS lie; those from `end` on are rows of zeros.
KVASIR_INLINE void locate(const AttentionArgs& a, const int64_t* table, int64_t kv_head, int64_t row_bytes, int64_t first,
                          int64_t end, const uint8_t* zeros, const uint8_t** at) {
  const int64_t token_bytes = a.kv_heads * row_bytes;
  int64_t j = 0;
  const int64_t count = least(KEYS, end - first);
  while (j < count) {
    const int64_t inside = (first + j) % a.block_size, stop = least(count, j + a.block_size - inside);
    const uint8_t* row = a.cache + table[(first + j) / a.block_size] * a.block_bytes + inside * token_bytes +
                         kv_head * row_bytes;
    for (; j < stop; ++j, row += token_bytes) at[j] = row;
  }
  for (; j < KEYS; ++j) at[j] = zeros;
}

// One task of work. start: of the sequence among the query tokens; partial: first row of its results, or -1.
struct Item {
  int64_t sequence, start, kv_head, tile, split, partial;
  Cut cut;
};

// The positions that a task looks at, first .. stop.
struct Span {
  int64_t first, stop;
};

Span span_of(const AttentionArgs& a, const Item& item) {
  const int64_t group = a.heads / a.kv_heads, queries = a.sequences->query_lens[item.sequence];
  const int64_t begin = a.sequences->kv_lens[item.sequence] - queries, row = item.tile * ROWS;
  const int64_t earliest = begin + row / group, latest = begin + (least(queries * group, row + ROWS) - 1) / group;
  const Span all{first_seen(a, earliest), latest + 1};
  if (item.cut.tiles > 1) return all;
  return {most(all.first, item.split * SPLIT), least(all.stop, (item.split + 1) * SPLIT)};
}

template <class From>
KVASIR_INLINE int64_t row_bytes_of(const AttentionArgs& a) {
  if (sizeof(From) == 1) return (a.cache_type == kvasir::INT4 ? a.head_dim / 2 : a.head_dim) + 4;
  return a.head_dim * static_cast<int64_t>(sizeof(From));
}

KVASIR_INLINE const int64_t* table_of(const AttentionArgs& a, const Item& item) {
  return a.sequences->tables + item.sequence * a.sequences->table_stride;
}

// Prefetches keys and values some lines at a time, between other work: all at once, the processor would wait for them first
// and compute afterwards. Rows of one head lie apart from one another, and without this each is waited for.
struct Ahead {
  const AttentionArgs* a;
  const int64_t* table;
  int64_t position, end, token_bytes, offset, bytes;
  const uint8_t* row = nullptr;
  int64_t line = 0;
  int64_t pace = 0;  // lines, of keys and of values, at each call of `some`

  KVASIR_INLINE void some() {
    for (int64_t i = 0; i < pace; ++i) {
      if (line >= bytes || !row) {
        if (row) ++position, line = 0;
        if (position >= end) return void(pace = 0);
        const int64_t block = table[position / a->block_size], inside = position % a->block_size;
        row = a->cache + block * a->block_bytes + inside * token_bytes + offset;
      }
      __builtin_prefetch(row + line, 0, 2);
      __builtin_prefetch(row + a->value_offset + line, 0, 2);
      line += 64;
    }
  }
};

// `bytes` of each position first .. end, from `offset` on, in about as many calls of `some`.
KVASIR_INLINE Ahead ahead_of(const AttentionArgs& a, const Item& item, int64_t offset, int64_t bytes, int64_t first,
                             int64_t end, int64_t token_bytes, int64_t calls) {
  Ahead ahead{&a, table_of(a, item), first, end, token_bytes, offset, bytes};
  if (end > first) ahead.pace = ((end - first) * ((bytes + 63) / 64) + calls - 1) / calls;
  return ahead;
}

template <class Kind, class From>
KVASIR_INLINE void pack_keys(const Tile& t, int64_t head_dim, int64_t depth, int64_t groups, Ahead& ahead) {
  const bool in_place = same_elements<Kind, From>() && head_dim == depth * Kind::kWidth;
  for (int64_t i = 0; i < groups * 16; i += 16) {
    ahead.some();
    const uint32_t* rows[16];
    for (int j = 0; j < 16; ++j) {
      rows[j] = reinterpret_cast<const uint32_t*>(t.at[i + j]);
      if (!in_place) {
        uint32_t* row = t.rows + (i + j) * depth;
        elements<Kind>(reinterpret_cast<const From*>(t.at[i + j]), head_dim, row, depth);
        rows[j] = row;
      }
    }
    transpose_16(rows, depth, t.keys + i, KEYS);
  }
}

template <class Kind, class From>
KVASIR_INLINE void pack_values(const Tile& t, int64_t head_dim, int64_t columns, int64_t keys, Ahead& ahead) {
  for (int64_t i = 0; i < keys; i += Kind::kWidth) {
    if (i % 16 == 0) ahead.some();
    uint32_t* to = t.values + i / Kind::kWidth * columns;
    const From* first = reinterpret_cast<const From*>(t.at[i]);
    int64_t d = 0;
    if constexpr (Kind::kWidth == 1) {
      elements<Kind>(first, head_dim, to, columns);
      d = columns;
    } else {
      const From* second = reinterpret_cast<const From*>(t.at[i + 1]);
      for (; d + kLanes <= head_dim; d += kLanes) {
        // The upper half of a float32 is the bfloat16 of it, exactly so for what a cache holds.
        const Words low = reinterpret_cast<Words>(load(first + d)), high = reinterpret_cast<Words>(load(second + d));
        const Words both = (low >> 16) | (high & 0xffff0000u);
        __builtin_memcpy(to + d, &both, sizeof both);
      }
      for (; d < head_dim; ++d) {
        bfloat16 low, high;
        narrow(&low, widen(first[d]));
        narrow(&high, widen(second[d]));
        to[d] = low.bits | static_cast<uint32_t>(high.bits) << 16;
      }
      for (; d < columns; ++d) to[d] = 0;
    }
  }
}

KVASIR_INLINE void read_scales(const Tile& t, const AttentionArgs& a, const uint8_t* zeros) {
  const int64_t behind = row_bytes_of<int8_t>(a) - 4;
  for (int64_t j = 0; j < KEYS; ++j) {
    const bool there = t.at[j] != zeros;
    t.key_scales[j] = t.value_scales[j] = 0;
    if (there) __builtin_memcpy(t.key_scales + j, t.at[j] + behind, 4);
    if (there) __builtin_memcpy(t.value_scales + j, t.at[j] + a.value_offset + behind, 4);
  }
}

// The numbers of INT4 rows as those of INT8 rows, where `at` is then. offset: from `packed` to the rows.
KVASIR_INLINE void unpack(const Tile& t, const AttentionArgs& a, const uint8_t* zeros, int64_t offset) {
  for (int64_t j = 0; j < KEYS; ++j) {
    if (t.packed[j] == zeros) continue;
    const uint8_t* from = t.packed[j] + offset;
    int8_t* to = t.numbers + j * a.head_dim;
    for (int64_t i = 0; i < a.head_dim / 2; ++i) {
      to[2 * i] = static_cast<int8_t>(2 * (from[i] & 15) - 15);
      to[2 * i + 1] = static_cast<int8_t>(2 * (from[i] >> 4) - 15);
    }
    t.at[j] = reinterpret_cast<const uint8_t*>(to);
  }
}

}  // namespace
}  // namespace KVASIR_ISA
