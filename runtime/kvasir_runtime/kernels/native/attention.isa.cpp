// Attention over the paged cache: flash attention (Dao et al. 2022) in tiles of KEYS positions that are packed from where
// the block tables say they lie. All heads that share keys are rows of one tile, so that keys and values are read once.
//
// Work is cut into (sequence, key head, up to ROWS rows); sequences of few rows are cut along their positions too, at
// fixed places, so that one long sequence keeps all threads busy and a result does not depend on who else is in the batch.
#include "attention.h"

#include "pool.h"
#include "tile.h"

namespace KVASIR_ISA {
namespace {

using kvasir::AttentionArgs;

constexpr int64_t ROWS = 96;
constexpr int64_t KEYS = 128;
constexpr int64_t SPLIT = 256;
// Scores of what is not seen, and the least that a maximum can be: so far apart that their difference gives exactly 0, and
// finite, so that no difference is NaN.
constexpr float UNSEEN = -1e30f, LEAST = -1e20f;

KVASIR_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
KVASIR_INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
KVASIR_INLINE int64_t up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

// How one sequence is cut. splits > 1: partial results are merged afterwards.
struct Cut {
  int64_t tiles, first_split, splits;
};

Cut cut(const AttentionArgs& a, int64_t sequence) {
  const int64_t queries = a.sequences->query_lens[sequence], end = a.sequences->kv_lens[sequence];
  const int64_t rows = queries * (a.heads / a.kv_heads);
  if (rows > ROWS) return {(rows + ROWS - 1) / ROWS, 0, 1};
  const int64_t first = a.window ? most(0, end - queries - a.window + 1) / SPLIT : 0;
  return {1, first, (end - 1) / SPLIT - first + 1};
}

// Widths of a call. depth: elements of 32 bits along a head, padded to 16; columns: along a head's values, padded.
struct Widths {
  int64_t depth, columns;
};

KVASIR_INLINE Widths widths(const AttentionArgs& a, int width) {
  return {up((a.head_dim + width - 1) / width, 16), up(a.head_dim, kLanes)};
}

KVASIR_INLINE int64_t partial_floats(const AttentionArgs& a) { return up(a.head_dim, kLanes) + 16; }

// Where a thread keeps a tile. l is kept lane by lane, and summed once at the end.
struct Tile {
  uint32_t* query;     // (ROWS, depth)
  uint32_t* keys;      // (depth, KEYS)
  uint32_t* values;    // (KEYS / width, columns)
  uint32_t* rows;      // (KEYS, depth) one conversion of the cache's rows
  float* scores;       // (kRows, KEYS)
  uint32_t* weights;   // (kRows, KEYS / width)
  float* out;          // (ROWS, columns)
  float* sums;         // (ROWS, kLanes)
  float* maxima;       // (ROWS)
  float* key_scales;   // (KEYS)
  float* value_scales; // (KEYS)
  const uint8_t** at;  // (KEYS) rows of the cache
};

// Both kinds fit: sizes are those of the wider one.
Tile tile_of(int tid, const AttentionArgs& a) {
  const Widths w = widths(a, 1);
  const int64_t words = ROWS * w.depth + KEYS * (2 * w.depth + w.columns) + 2 * kRows * KEYS +
                        ROWS * (w.columns + kLanes + 1) + 2 * KEYS + 16 * 16;
  auto* next = static_cast<uint32_t*>(kvasir::own_scratch(tid, kvasir::SLOT_ATTENTION, 4 * words + 8 * KEYS + 64));
  Tile t;
  const auto take = [&](int64_t count) {
    uint32_t* got = next;
    next += up(count, 16);
    return got;
  };
  const auto take_floats = [&](int64_t count) { return reinterpret_cast<float*>(take(count)); };
  t.at = reinterpret_cast<const uint8_t**>(take(2 * KEYS));
  t.query = take(ROWS * w.depth);
  t.keys = take(KEYS * w.depth);
  t.rows = take(KEYS * w.depth);
  t.values = take(KEYS * w.columns);
  t.scores = take_floats(kRows * KEYS);
  t.weights = take(kRows * KEYS);
  t.out = take_floats(ROWS * w.columns);
  t.sums = take_floats(ROWS * kLanes);
  t.maxima = take_floats(ROWS);
  t.key_scales = take_floats(KEYS);
  t.value_scales = take_floats(KEYS);
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
  const int64_t token_bytes = a.kv_heads * row_bytes, block_bytes = token_bytes * a.block_size;
  int64_t j = 0;
  const int64_t count = least(KEYS, end - first);
  while (j < count) {
    const int64_t inside = (first + j) % a.block_size, stop = least(count, j + a.block_size - inside);
    const uint8_t* row = a.cache + table[(first + j) / a.block_size] * block_bytes + inside * token_bytes +
                         kv_head * row_bytes;
    for (; j < stop; ++j, row += token_bytes) at[j] = row;
  }
  for (; j < KEYS; ++j) at[j] = zeros;
}

// One piece of work. start: of the sequence among the query tokens; partial: first row of its results, or -1.
struct Item {
  int64_t sequence, start, kv_head, tile, split, partial;
  Cut cut;
};

// The positions that a piece looks at, first .. stop.
struct Span {
  int64_t first, stop;
};

Span span_of(const AttentionArgs& a, const Item& item) {
  const int64_t group = a.heads / a.kv_heads, queries = a.sequences->query_lens[item.sequence];
  const int64_t begin = a.sequences->kv_lens[item.sequence] - queries, row = item.tile * ROWS;
  const int64_t earliest = begin + row / group, latest = begin + (least(queries * group, row + ROWS) - 1) / group;
  const Span all{a.window ? most(0, earliest - a.window + 1) : 0, latest + 1};
  if (item.cut.tiles > 1) return all;
  return {most(all.first, item.split * SPLIT), least(all.stop, (item.split + 1) * SPLIT)};
}

template <class From>
KVASIR_INLINE int64_t row_bytes_of(const AttentionArgs& a) {
  return a.head_dim * static_cast<int64_t>(sizeof(From)) + (sizeof(From) == 1 ? 4 : 0);
}

KVASIR_INLINE const int64_t* table_of(const AttentionArgs& a, const Item& item) {
  return a.sequences->tables + item.sequence * a.sequences->table_stride;
}

// Asks for the keys and values of positions first .. end, `bytes` of each from where the key head's begin. Rows of one head
// lie apart from one another, and without this each is waited for.
KVASIR_INLINE void fetch(const AttentionArgs& a, const Item& item, int64_t head_offset, int64_t bytes, int64_t first,
                         int64_t end, int64_t token_bytes) {
  const int64_t* table = table_of(a, item);
  for (int64_t j = first, stop; j < end; j = stop) {
    const int64_t inside = j % a.block_size;
    stop = least(end, j + a.block_size - inside);
    const uint8_t* row = a.cache + (table[j / a.block_size] * a.block_size + inside) * token_bytes + head_offset;
    for (int64_t i = j; i < stop; ++i, row += token_bytes) {
      for (int64_t line = 0; line < bytes; line += 64) {
        __builtin_prefetch(row + line, 0, 2);
        __builtin_prefetch(row + a.value_offset + line, 0, 2);
      }
    }
  }
}

template <class Kind, class From>
KVASIR_INLINE void pack_keys(const Tile& t, int64_t head_dim, int64_t depth, int64_t groups) {
  const bool in_place = same_elements<Kind, From>() && head_dim == depth * Kind::kWidth;
  for (int64_t i = 0; i < groups * 16; i += 16) {
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
KVASIR_INLINE void pack_values(const Tile& t, int64_t head_dim, int64_t columns, int64_t keys) {
  for (int64_t i = 0; i < keys; i += Kind::kWidth) {
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
  for (int64_t j = 0; j < KEYS; ++j) {
    const bool there = t.at[j] != zeros;
    t.key_scales[j] = t.value_scales[j] = 0;
    if (there) __builtin_memcpy(t.key_scales + j, t.at[j] + a.head_dim, 4);
    if (there) __builtin_memcpy(t.value_scales + j, t.at[j] + a.value_offset + a.head_dim, 4);
  }
}

// Scores of one row become weights. It sees positions from .. to (not included) of the tile; keep: what older sums count.
template <class Kind, bool SCALED>
KVASIR_INLINE void soften(const Tile& t, float* scores, uint32_t* weights, int64_t row, int64_t keys, int64_t from,
                          int64_t to, float scale, float* shift) {
  constexpr int kVectors = KEYS / kLanes;
  Floats s[kVectors], best = splat(UNSEEN);
  const bool masked = from > 0 || to < up(keys, kLanes);
#pragma GCC unroll 16
  for (int i = 0; i < kVectors; ++i) {
    s[i] = splat(UNSEEN);
    if (i * kLanes >= keys) continue;
    s[i] = load(scores + i * kLanes);
    if (SCALED) s[i] *= load(t.key_scales + i * kLanes);
    if (masked) {
      Ints place{};
      for (int lane = 0; lane < kLanes; ++lane) place[lane] = i * kLanes + lane;
      const Ints low = Ints{} + static_cast<int32_t>(from), high = Ints{} + static_cast<int32_t>(to);
      s[i] = ((place >= low) & (place < high)) ? s[i] : splat(UNSEEN);
    }
    best = larger(best, s[i]);
  }
  const float before = t.maxima[row], tile_best = largest(best) * scale;
  const float now = tile_best > before ? tile_best : before;
  t.maxima[row] = now;
  *shift = before - now;
  const Floats factor = splat(scale), offset = splat(-now);
  Floats total{};
#pragma GCC unroll 16
  for (int i = 0; i < kVectors; ++i) {
    if (i * kLanes >= keys) continue;
    Floats p = exp2(multiply_add(s[i], factor, offset));
    total += p;
    if (SCALED) p *= load(t.value_scales + i * kLanes);
    if constexpr (Kind::kWidth == 1) {
      store(reinterpret_cast<float*>(weights) + i * kLanes, p);
    } else {
      store(reinterpret_cast<bfloat16*>(weights) + i * kLanes, p);
    }
  }
  store(scores, total);
}

// One panel of up to kRows rows over the packed tile. position: of the first row's query; window as in the arguments.
template <class Kind, bool SCALED>
KVASIR_INLINE void panel(const Tile& t, const Widths& w, int64_t row, int rows, int64_t keys, const int64_t* from,
                         const int64_t* to, float scale) {
  product_any<Kind>(rows, t.query + row * w.depth, w.depth, t.keys, KEYS, w.depth, t.scores, KEYS, nullptr,
                    up(keys, kLanes) / kLanes);
  float shift[16] = {}, keep[16];
  constexpr int64_t weight_stride = KEYS / Kind::kWidth;
  for (int r = 0; r < rows; ++r) {
    soften<Kind, SCALED>(t, t.scores + r * KEYS, t.weights + r * weight_stride, row + r, keys, from[r], to[r], scale,
                         shift + r);
  }
  for (int i = 0; i < kRows; i += kLanes) store(keep + i, exp2(load(shift + i)));
  for (int r = 0; r < rows; ++r) {
    float* sums = t.sums + (row + r) * kLanes;
    store(sums, multiply_add(load(sums), splat(keep[r]), load(t.scores + r * KEYS)));
  }
  product_any<Kind>(rows, t.weights, weight_stride, t.values, w.columns, (keys + Kind::kWidth - 1) / Kind::kWidth,
                    t.out + row * w.columns, w.columns, keep, w.columns / kLanes);
}

template <class Query>
KVASIR_INLINE void finish(const AttentionArgs& a, const float* out, float sum, int64_t token, int64_t head) {
  Query* to = static_cast<Query*>(const_cast<void*>(a.out)) + (token * a.heads + head) * a.head_dim;
  const Floats factor = splat(1 / sum);
  int64_t d = 0;
  for (; d + kLanes <= a.head_dim; d += kLanes) store(to + d, load(out + d) * factor);
  for (; d < a.head_dim; ++d) narrow(to + d, out[d] * (1 / sum));
}

template <class Kind, class Query, class From>
void attend(const AttentionArgs& a, const Tile& t, const Item& item, float* partials) {
  constexpr bool SCALED = sizeof(From) == 1;
  const Widths w = widths(a, Kind::kWidth);
  const int64_t row_bytes = row_bytes_of<From>(a);
  const int64_t group = a.heads / a.kv_heads, queries = a.sequences->query_lens[item.sequence];
  const int64_t end = a.sequences->kv_lens[item.sequence], begin = end - queries;
  const int64_t first_row = item.tile * ROWS, rows = least(ROWS, queries * group - first_row);
  const auto* query = static_cast<const Query*>(a.query);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t token = item.start + (first_row + r) / group, head = item.kv_head * group + (first_row + r) % group;
    elements<Kind>(query + token * a.token_stride + head * a.head_dim, a.head_dim, t.query + r * w.depth, w.depth);
    t.maxima[r] = LEAST;
  }
  __builtin_memset(t.out, 0, rows * w.columns * 4);
  __builtin_memset(t.sums, 0, rows * kLanes * 4);
  const auto [first, stop] = span_of(a, item);
  alignas(64) static const uint8_t zeros[4096] = {};
  const int64_t* table = table_of(a, item);
  const float scale = a.scale * 1.44269504f;
  for (int64_t at = first / KEYS * KEYS; at < stop; at += KEYS) {
    const int64_t keys = least(KEYS, stop - at);
    const int64_t token_bytes = a.kv_heads * row_bytes;
    fetch(a, item, item.kv_head * row_bytes, row_bytes, at + KEYS, least(stop, at + 2 * KEYS), token_bytes);
    locate(a, table, item.kv_head, row_bytes, at, stop, zeros, t.at);
    if (SCALED) read_scales(t, a, zeros);
    pack_keys<Kind, From>(t, a.head_dim, w.depth, (keys + 15) / 16);
    // Rows of zeros have no values behind them.
    for (int64_t j = 0; j < KEYS; ++j) t.at[j] += j < keys ? a.value_offset : 0;
    pack_values<Kind, From>(t, a.head_dim, w.columns, keys);
    for (int64_t row = 0; row < rows; row += kRows) {
      const int count = static_cast<int>(least(kRows, rows - row));
      int64_t from[kRows], to[kRows];
      bool any = false;
      for (int r = 0; r < count; ++r) {
        const int64_t position = begin + (first_row + row + r) / group;
        to[r] = least(keys, position + 1 - at);
        from[r] = a.window ? position - a.window + 1 - at : 0;
        any |= to[r] > 0 && from[r] < keys;
      }
      if (any) panel<Kind, SCALED>(t, w, row, count, keys, from, to, scale);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    const float total = sum(load(t.sums + r * kLanes));
    const float* out = t.out + r * w.columns;
    if (item.partial < 0) {
      finish<Query>(a, out, total, item.start + (first_row + r) / group, item.kv_head * group + (first_row + r) % group);
    } else {
      float* to = partials + (item.partial + r) * partial_floats(a);
      to[0] = t.maxima[r];
      to[1] = total;
      __builtin_memcpy(to + 16, out, w.columns * 4);
    }
  }
}

// Joins the partial results of one sequence and key head, from first position to last.
template <class Query>
void merge(const AttentionArgs& a, const Item& item, const float* partials) {
  const int64_t group = a.heads / a.kv_heads, rows = a.sequences->query_lens[item.sequence] * group;
  const int64_t columns = up(a.head_dim, kLanes), stride = partial_floats(a);
  for (int64_t r = 0; r < rows; ++r) {
    const float* first = partials + (item.partial + r) * stride;
    float best = LEAST, total = 0, out[1024];
    for (int64_t s = 0; s < item.cut.splits; ++s) best = first[s * rows * stride] > best ? first[s * rows * stride] : best;
    __builtin_memset(out, 0, columns * 4);
    for (int64_t s = 0; s < item.cut.splits; ++s) {
      const float* part = first + s * rows * stride;
      const Floats keep = exp2(splat(part[0] - best));
      total += part[1] * keep[0];
      for (int64_t d = 0; d < columns; d += kLanes) store(out + d, multiply_add(load(part + 16 + d), keep, load(out + d)));
    }
    finish<Query>(a, out, total, item.start + r / group, item.kv_head * group + r % group);
  }
}

// The cuts of all sequences, made by each thread once a call, and what lies before each sequence.
struct Plan {
  Cut* cuts;
  int64_t* pieces;    // (count + 1)
  int64_t* partials;  // (count) rows of partial results
  int64_t* starts;    // (count) query tokens
  int64_t num_merges;
};

constexpr int64_t PLAN_BYTES = sizeof(Cut) + 3 * 8;

Plan planned(const AttentionArgs& a, void* memory) {
  const int64_t count = a.sequences->count, group = a.heads / a.kv_heads;
  Plan plan{static_cast<Cut*>(memory), nullptr, nullptr, nullptr, 0};
  plan.pieces = reinterpret_cast<int64_t*>(plan.cuts + count);
  plan.partials = plan.pieces + count + 1;
  plan.starts = plan.partials + count;
  int64_t pieces = 0, partials = 0, start = 0;
  for (int64_t s = 0; s < count; ++s) {
    const int64_t queries = a.sequences->query_lens[s];
    plan.cuts[s] = cut(a, s);
    plan.pieces[s] = pieces;
    plan.partials[s] = partials;
    plan.starts[s] = start;
    start += queries;
    pieces += a.kv_heads * plan.cuts[s].tiles * plan.cuts[s].splits;
    if (plan.cuts[s].splits > 1) {
      partials += a.kv_heads * plan.cuts[s].splits * queries * group;
      ++plan.num_merges;
    }
  }
  plan.pieces[count] = pieces;
  return plan;
}

// near: a sequence to begin looking at, not behind that of the piece.
Item item_of(const AttentionArgs& a, const Plan& plan, int64_t piece, int64_t near) {
  Item item{};
  item.sequence = near;
  while (plan.pieces[item.sequence + 1] <= piece) ++item.sequence;
  item.start = plan.starts[item.sequence];
  item.cut = plan.cuts[item.sequence];
  const int64_t inside = piece - plan.pieces[item.sequence];
  if (item.cut.tiles > 1) {
    item.kv_head = inside / item.cut.tiles;
    item.tile = inside % item.cut.tiles;
    item.partial = -1;
    return item;
  }
  // All heads of a split one after another: their rows are neighbours in memory.
  const int64_t split = inside / a.kv_heads;
  item.kv_head = inside % a.kv_heads;
  item.split = item.cut.first_split + split;
  const int64_t rows = a.sequences->query_lens[item.sequence] * (a.heads / a.kv_heads);
  const bool whole = item.cut.splits == 1;
  item.partial = whole ? -1 : plan.partials[item.sequence] + (item.kv_head * item.cut.splits + split) * rows;
  return item;
}

template <class Kind, class Query, class From>
void run_all(int tid, int nth, const AttentionArgs& a) {
  const int64_t count = a.sequences->count, group = a.heads / a.kv_heads;
  const Plan plan = planned(a, kvasir::own_scratch(tid, kvasir::SLOT_OTHER, (count + 1) * PLAN_BYTES));
  const Tile t = tile_of(tid, a);
  auto* partials = static_cast<float*>(kvasir::shared_scratch(kvasir::SLOT_ATTENTION));
  int64_t near = 0;
  for (int64_t piece; (piece = kvasir::claim(tid, nth, plan.pieces[count], 0)) >= 0;) {
    const Item item = item_of(a, plan, piece, piece < plan.pieces[near] ? 0 : near);
    near = item.sequence;
    // The split after this one is most likely this thread's too: with each head, the next part of all of its rows.
    const int64_t after = piece - item.kv_head + a.kv_heads;
    if (item.cut.tiles == 1 && after < plan.pieces[count]) {
      const Item next = item_of(a, plan, after, near);
      const auto [first, stop] = span_of(a, next);
      const int64_t part = (stop - first + a.kv_heads - 1) / a.kv_heads, from = first + item.kv_head * part;
      const int64_t token_bytes = a.kv_heads * row_bytes_of<From>(a);
      if (next.cut.tiles == 1) fetch(a, next, 0, token_bytes, from, least(stop, from + part), token_bytes);
    }
    attend<Kind, Query, From>(a, t, item, partials);
  }
  if (!plan.num_merges) return;
  kvasir::barrier(tid, nth);
  for (int64_t piece; (piece = kvasir::claim(tid, nth, count * a.kv_heads, 0)) >= 0;) {
    Item item{};
    item.sequence = piece / a.kv_heads;
    item.cut = plan.cuts[item.sequence];
    if (item.cut.splits == 1) continue;
    item.start = plan.starts[item.sequence];
    item.kv_head = piece % a.kv_heads;
    item.partial = plan.partials[item.sequence] +
                   item.kv_head * item.cut.splits * a.sequences->query_lens[item.sequence] * group;
    merge<Query>(a, item, partials);
  }
}

}  // namespace

int64_t attention_bytes(const AttentionArgs& a) {
  int64_t rows = 0;
  for (int64_t s = 0; s < a.sequences->count; ++s) {
    const Cut c = cut(a, s);
    if (c.splits > 1) rows += a.kv_heads * c.splits * a.sequences->query_lens[s] * (a.heads / a.kv_heads);
  }
  return rows * partial_floats(a) * 4;
}

void attention(int tid, int nth, const AttentionArgs& a) {
#if defined(__AVX512BF16__)
  using Best = Pair;
#else
  using Best = Single;
#endif
  if (a.query_type == kvasir::FLOAT32) {
    if (a.cache_type == kvasir::FLOAT32) return run_all<Single, float, float>(tid, nth, a);
    return run_all<Single, float, int8_t>(tid, nth, a);
  }
  if (a.cache_type == kvasir::BFLOAT16) return run_all<Best, bfloat16, bfloat16>(tid, nth, a);
  return run_all<Best, bfloat16, int8_t>(tid, nth, a);
}

}  // namespace KVASIR_ISA

KVASIR_EXPORT(kvasir_attention)(const kvasir::AttentionArgs* args) {
  const kvasir::Need need{kvasir::SLOT_ATTENTION, KVASIR_ISA::attention_bytes(*args)};
  const auto region = [](int tid, int nth, void* p) {
    KVASIR_ISA::attention(tid, nth, *static_cast<const kvasir::AttentionArgs*>(p));
  };
  kvasir::run(region, const_cast<kvasir::AttentionArgs*>(args), &need, 1);
}
