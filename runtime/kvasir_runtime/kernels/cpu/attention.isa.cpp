// Attention over the paged cache: flash attention (Dao et al. 2022) in tiles of KEYS positions that are packed from where
// the block tables say they lie. All heads that share keys are rows of one tile, so that keys and values are read once.
//
// Work is cut into (sequence, key head, up to ROWS rows); sequences of few rows are cut along their positions too, at
// fixed places, so that one long sequence keeps all threads busy and a result does not depend on who else is in the batch.
// In float32, and where that is asked for, sums of many rows end there too, so that it does not depend on how much of its
// own sequence comes at a time.
#include "attention_few.h"
#include "attention_tile.h"

namespace KVASIR_ISA {
namespace {

// Scores of one row become weights. It sees positions from .. to (not included) of the tile; keep: what older sums count.
// limit: of scores before they are scaled, 0 for none.
template <class Kind, bool SCALED>
KVASIR_INLINE void soften(const Tile& t, float* scores, uint32_t* weights, int64_t row, int64_t keys, int64_t from,
                          int64_t to, float scale, float limit, float* shift) {
  constexpr int kVectors = KEYS / kLanes;
  Floats s[kVectors], best = splat(UNSEEN);
  const bool masked = from > 0 || to < up(keys, kLanes);
#pragma GCC unroll 16
  for (int i = 0; i < kVectors; ++i) {
    s[i] = splat(UNSEEN);
    if (i * kLanes >= keys) continue;
    s[i] = load(scores + i * kLanes);
    if (SCALED) s[i] *= load(t.key_scales + i * kLanes);
    if (limit != 0) s[i] = capped(s[i], limit);
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

// One panel of up to kPanelRows rows over the packed tile. position: of the first row's query; window as in the arguments.
template <class Kind, bool SCALED>
KVASIR_INLINE void panel(const Tile& t, const Widths& w, int64_t row, int rows, int64_t keys, const int64_t* from,
                         const int64_t* to, float scale, float limit) {
  product_any<Kind>(rows, t.query + row * w.depth, w.depth, t.keys, KEYS, w.depth, t.scores, KEYS, nullptr,
                    up(keys, kLanes) / kLanes);
  constexpr int kShifts = (Kind::kPanelRows + 15) / 16 * 16;
  float shift[kShifts] = {}, keep[kShifts];
  constexpr int64_t weight_stride = KEYS / Kind::kWidth;
  for (int r = 0; r < rows; ++r) {
    soften<Kind, SCALED>(t, t.scores + r * KEYS, t.weights + r * weight_stride, row + r, keys, from[r], to[r], scale,
                         limit, shift + r);
  }
  for (int i = 0; i < rows; i += kLanes) store(keep + i, exp2(load(shift + i)));
  for (int r = 0; r < rows; ++r) {
    float* sums = t.sums + (row + r) * kLanes;
    store(sums, multiply_add(load(sums), splat(keep[r]), load(t.scores + r * KEYS)));
  }
  product_any<Kind>(rows, t.weights, weight_stride, t.values, w.columns, (keys + Kind::kWidth - 1) / Kind::kWidth,
                    t.out + row * w.columns, w.columns, keep, w.columns / kLanes);
}

// Adds the sums of one split to those of the splits before it, which its being empty leaves as they are.
KVASIR_INLINE void fold(float* best, float* total, float* out, float split_best, float split_total, const float* split,
                        int64_t columns) {
  const float now = split_best > *best ? split_best : *best;
  const Floats before = exp2(splat(*best - now)), keep = exp2(splat(split_best - now));
  *best = now;
  *total = multiply_add(splat(split_total), keep, splat(*total) * before)[0];
  for (int64_t d = 0; d < columns; d += kLanes) store(out + d, multiply_add(load(split + d), keep, load(out + d) * before));
}

// The same for a panel of rows whose split ends, while its sums are in the cache. Sums of the next split begin where
// these are: their first factor is 0, as the maximum is LEAST.
KVASIR_INLINE void fold_panel(const Tile& t, const Widths& w, int64_t row, int count) {
  static_assert(kRows <= kLanes);
  float added[kLanes] = {}, before[kLanes], keep[kLanes], best[kLanes], totals[kLanes];
  for (int i = 0; i < count; ++i) added[i] = sum(load(t.sums + (row + i) * kLanes));
  // Lanes behind the last row hold what nothing reads.
  const Floats split = load(t.maxima + row), whole = load(t.whole_maxima + row), now = larger(split, whole);
  const Floats old_factor = exp2(whole - now), new_factor = split == splat(LEAST) ? Floats{} : exp2(split - now);
  store(before, old_factor);
  store(keep, new_factor);
  store(best, now);
  store(totals, multiply_add(load(added), new_factor, load(t.totals + row) * old_factor));
  for (int i = 0; i < count; ++i) {
    const float* from = t.out + (row + i) * w.columns;
    float* to = t.whole + (row + i) * w.columns;
    for (int64_t d = 0; d < w.columns; d += kLanes)
      store(to + d, multiply_add(load(from + d), splat(keep[i]), load(to + d) * splat(before[i])));
    t.maxima[row + i] = LEAST;
    t.whole_maxima[row + i] = best[i];
    t.totals[row + i] = totals[i];
  }
}

// Sums of no position yet.
KVASIR_INLINE void clear(const Tile& t, const Widths& w, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) t.maxima[r] = LEAST;
  __builtin_memset(t.out, 0, rows * w.columns * 4);
  __builtin_memset(t.sums, 0, rows * kLanes * 4);
}

// Ends the first split: what is folded into nothing stays as it is, so the sums change places.
KVASIR_INLINE void end_first(Tile& t, const Widths& w, int64_t rows, bool is_last) {
  float* out = t.out;
  t.out = t.whole;
  t.whole = out;
  for (int64_t r = 0; r < rows; ++r) {
    t.whole_maxima[r] = t.maxima[r];
    t.totals[r] = sum(load(t.sums + r * kLanes));
  }
  if (!is_last) clear(t, w, rows);
}

// ahead: what this thread most likely reads next.
template <class Kind, class Query, class From>
void attend(const AttentionArgs& a, Tile t, const Item& item, Ahead ahead, float* partials) {
  constexpr bool SCALED = sizeof(From) == 1;
  const Widths w = widths(a, Kind::kWidth);
  const int64_t row_bytes = row_bytes_of<From>(a);
  const int64_t group = a.heads / a.kv_heads, queries = a.sequences->query_lens[item.sequence];
  const int64_t end = a.sequences->kv_lens[item.sequence], begin = end - queries;
  const int64_t first_row = item.tile * ROWS, rows = least(ROWS, queries * group - first_row);
  const auto* query = static_cast<const Query*>(a.query);
  const bool packed = SCALED && a.cache_type == kvasir::INT4;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t token = item.start + (first_row + r) / group, head = item.kv_head * group + (first_row + r) % group;
    const Query* from = query + token * a.token_stride + head * a.head_dim;
    if (packed) {
      float turned[LONGEST_HEAD];
      for (int64_t d = 0; d < a.head_dim; ++d) turned[d] = widen(from[d]);
      hadamard(turned, a.head_dim, back_of(a.head_dim));
      elements<Kind>(turned, a.head_dim, t.query + r * w.depth, w.depth);
    } else {
      elements<Kind>(from, a.head_dim, t.query + r * w.depth, w.depth);
    }
  }
  // In bfloat16 prompts and answers have kernels of their own, so that their bits differ, unless these are told not to.
  const bool folds_all = Kind::kWidth == 1 || (a.invariant && Kind::kPanelRows <= kLanes);
  const bool many = folds_all && item.cut.tiles > 1;
  clear(t, w, rows);
  const auto [first, stop] = span_of(a, item);
  alignas(64) static const uint8_t zeros[4096] = {};
  const int64_t* table = table_of(a, item);
  const float scale = a.scale * 1.44269504f, limit = a.cap / a.scale;
  for (int64_t at = first / KEYS * KEYS; at < stop; at += KEYS) {
    const int64_t keys = least(KEYS, stop - at), padded = up(keys, Kind::kWidth * Kind::kDepthUnit);
    locate(a, table, item.kv_head, row_bytes, at, stop, zeros, t.at);
    // Before the window others may have written by now: a weight of 0 times what is no number would be none.
    for (int64_t j = 0; j < first - at; ++j) t.at[j] = t.at[first - at];
    if (SCALED) read_scales(t, a, zeros);
    if (packed) {
      __builtin_memcpy(t.packed, t.at, KEYS * sizeof *t.at);
      unpack(t, a, zeros, 0);
    }
    pack_keys<Kind, From>(t, a.head_dim, w.depth, (padded + 15) / 16, ahead);
    // Rows of zeros have no values behind them.
    for (int64_t j = 0; j < KEYS && !packed; ++j) t.at[j] += j < keys ? a.value_offset : 0;
    if (packed) unpack(t, a, zeros, a.value_offset);
    pack_values<Kind, From>(t, a.head_dim, w.columns, padded, ahead);
    const bool is_last = at + KEYS >= stop, is_first = at / SPLIT == first / SPLIT;
    const bool ends = many && ((at + KEYS) % SPLIT == 0 || is_last);
    for (int64_t row = 0; row < rows; row += Kind::kPanelRows) {
      const int count = static_cast<int>(least(Kind::kPanelRows, rows - row));
      int64_t from[Kind::kPanelRows], to[Kind::kPanelRows];
      bool any = false;
      for (int r = 0; r < count; ++r) {
        const int64_t position = begin + (first_row + row + r) / group;
        to[r] = least(keys, position + 1 - at);
        from[r] = first_seen(a, position) - at;
        any |= to[r] > 0 && from[r] < keys;
      }
      const bool folds = ends && !is_first;
      for (int64_t i = 0; i < (folds ? count * w.columns : 0); i += 16) __builtin_prefetch(t.whole + row * w.columns + i, 1);
      if (any) panel<Kind, SCALED>(t, w, row, count, padded, from, to, scale, limit);
      if (folds) fold_panel(t, w, row, count);
    }
    if (ends && is_first) end_first(t, w, rows, is_last);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const float total = many ? t.totals[r] : sum(load(t.sums + r * kLanes));
    const float* out = (many ? t.whole : t.out) + r * w.columns;
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
    __builtin_memset(out, 0, columns * 4);
    for (int64_t s = 0; s < item.cut.splits; ++s) {
      const float* part = first + s * rows * stride;
      fold(&best, &total, out, part[0], part[1], part + 16, columns);
    }
    finish<Query>(a, out, total, item.start + r / group, item.kv_head * group + r % group);
  }
}

// The cuts of all sequences, made by each thread once a call, and what lies before each sequence.
struct Plan {
  Cut* cuts;
  int64_t* tasks;    // (count + 1)
  int64_t* partials;  // (count) rows of partial results
  int64_t* starts;    // (count) query tokens
  int64_t num_merges;
  int64_t few_heads;  // key heads in one task of attention_few.h
};

constexpr int64_t PLAN_BYTES = sizeof(Cut) + 3 * 8;

Plan planned(const AttentionArgs& a, int nth, void* memory) {
  const int64_t count = a.sequences->count, group = a.heads / a.kv_heads;
  Plan plan{static_cast<Cut*>(memory), nullptr, nullptr, nullptr, 0, 1};
  plan.tasks = reinterpret_cast<int64_t*>(plan.cuts + count);
  plan.partials = plan.tasks + count + 1;
  plan.starts = plan.partials + count;
  int64_t tasks = 0, partials = 0, start = 0, few = 0;
  for (int64_t s = 0; s < count; ++s) {
    plan.cuts[s] = cut(a, s);
    few += plan.cuts[s].few ? plan.cuts[s].splits : 0;
  }
  // All heads together read memory in order, where that leaves tasks enough for all threads.
  if (few >= 4 * nth) plan.few_heads = a.kv_heads;
  for (int64_t s = 0; s < count; ++s) {
    const int64_t queries = a.sequences->query_lens[s];
    plan.tasks[s] = tasks;
    plan.partials[s] = partials;
    plan.starts[s] = start;
    start += queries;
    tasks += a.kv_heads / (plan.cuts[s].few ? plan.few_heads : 1) * plan.cuts[s].tiles * plan.cuts[s].splits;
    if (plan.cuts[s].splits > 1) {
      partials += a.kv_heads * plan.cuts[s].splits * queries * group;
      ++plan.num_merges;
    }
  }
  plan.tasks[count] = tasks;
  return plan;
}

// near: a sequence to begin looking at, not behind that of the task.
Item item_of(const AttentionArgs& a, const Plan& plan, int64_t task, int64_t near) {
  Item item{};
  item.sequence = near;
  while (plan.tasks[item.sequence + 1] <= task) ++item.sequence;
  item.start = plan.starts[item.sequence];
  item.cut = plan.cuts[item.sequence];
  const int64_t inside = task - plan.tasks[item.sequence];
  if (item.cut.tiles > 1) {
    item.kv_head = inside / item.cut.tiles;
    item.tile = inside % item.cut.tiles;
    item.partial = -1;
    return item;
  }
  // All heads of a split one after another: their rows are neighbours in memory.
  const int64_t heads = item.cut.few ? plan.few_heads : 1, parts = a.kv_heads / heads, split = inside / parts;
  item.kv_head = inside % parts * heads;
  item.split = item.cut.first_split + split;
  const int64_t rows = a.sequences->query_lens[item.sequence] * (a.heads / a.kv_heads);
  const bool whole = item.cut.splits == 1;
  item.partial = whole ? -1 : plan.partials[item.sequence] + (item.kv_head * item.cut.splits + split) * rows;
  return item;
}

// What to ask for while a task is computed: of one among many tiles of queries its own later keys, else all of the next
// task, which is most likely this thread's too.
template <class From>
Ahead next_of(const AttentionArgs& a, const Plan& plan, int64_t task, const Item& item) {
  const int64_t row_bytes = row_bytes_of<From>(a), token_bytes = a.kv_heads * row_bytes;
  const auto [first, stop] = span_of(a, item);
  const int64_t calls = (stop - first + 15) / 16 * 2;
  if (item.cut.tiles > 1) {
    return ahead_of(a, item, item.kv_head * row_bytes, row_bytes, first + KEYS, stop, token_bytes, calls);
  }
  if (task + 1 == plan.tasks[a.sequences->count]) return {};
  const Item next = item_of(a, plan, task + 1, item.sequence);
  const auto [begin, end] = span_of(a, next);
  return ahead_of(a, next, next.kv_head * row_bytes, row_bytes, begin, least(end, begin + SPLIT), token_bytes, calls);
}

template <class From>
KVASIR_INLINE void few(const AttentionArgs& a, const Plan& plan, const Tile& t, int64_t task, const Item& item,
                       float* partials) {
  const Item next = task + 1 < plan.tasks[a.sequences->count] ? item_of(a, plan, task + 1, item.sequence) : Item{};
  const Item* after = next.cut.few ? &next : nullptr;
  const auto attend_rows = a.head_dim == 64 ? attend_few<From, 2> : attend_few<From, 4>;
  attend_rows(a, t.few, item, plan.few_heads, after, partials);
}

#if defined(__AVX512BF16__)
// By the rows of its own sequence, so that the others of a batch change nothing.
KVASIR_INLINE bool takes_amx(const AttentionArgs& a, const Item& item) {
  return a.amx && a.sequences->query_lens[item.sequence] * (a.heads / a.kv_heads) >= AMX_ROWS;
}
#endif

template <class Kind, class Query, class From>
void run_all(int tid, int nth, const AttentionArgs& a) {
  const int64_t count = a.sequences->count, group = a.heads / a.kv_heads;
  const Plan plan = planned(a, nth, kvasir::own_scratch(tid, kvasir::SLOT_OTHER, (count + 1) * PLAN_BYTES));
  const Tile t = tile_of(tid, a);
  auto* partials = static_cast<float*>(kvasir::shared_scratch(kvasir::SLOT_ATTENTION));
  int64_t near = 0;
  for (int64_t task; (task = kvasir::claim(tid, nth, plan.tasks[count], 0)) >= 0;) {
    const Item item = item_of(a, plan, task, task < plan.tasks[near] ? 0 : near);
    near = item.sequence;
    if (item.cut.few) {
      if constexpr (sizeof(Query) == 2) few<From>(a, plan, t, task, item, partials);
      continue;
    }
    const Ahead ahead = next_of<From>(a, plan, task, item);
#if defined(__AVX512BF16__)
    if constexpr (Kind::kWidth == 2) {
      if (takes_amx(a, item)) {
        attend<Tiles, Query, From>(a, t, item, ahead, partials);
        continue;
      }
    }
#endif
    attend<Kind, Query, From>(a, t, item, ahead, partials);
  }
  if (!plan.num_merges) return;
  kvasir::barrier(tid, nth);
  for (int64_t task; (task = kvasir::claim(tid, nth, count * a.kv_heads, 0)) >= 0;) {
    Item item{};
    item.sequence = task / a.kv_heads;
    item.cut = plan.cuts[item.sequence];
    if (item.cut.splits == 1) continue;
    item.start = plan.starts[item.sequence];
    item.kv_head = task % a.kv_heads;
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
  kvasir::run(region, args, &need, 1);
}
