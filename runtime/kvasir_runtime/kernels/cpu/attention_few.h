// Attention of one query per sequence, of all heads that share a task of the cache: decode. Nothing is packed, since a
// packed key would be used by a few rows only. Used by attention.isa.cpp alone.
//
// A task is one split of one sequence and some heads. First all scores, from keys that are read once and in order, 16
// positions at a time; then weights of the whole split; then values. A key times a query leaves 16 partial sums, and those
// of 16 keys are added up by a tree of shuffles. Neighbouring values are interleaved, as dot products of pairs want it, in
// an order of columns that is put right at the end. Rows of int8 become bfloat16 first, which all heads that share them use.
#pragma once

#include "attention_tile.h"

#ifdef __AVX512BF16__
namespace KVASIR_ISA {
namespace {

constexpr int64_t FETCHED = 1;  // chunks that are asked for before they are needed

KVASIR_INLINE __m512bh pairs_at(const void* from) { return (__m512bh)_mm512_loadu_si512(from); }

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
    for (int64_t byte = 0; byte < row_bytes; byte += 64) _mm_prefetch(chunk + byte, _MM_HINT_T0);
}

// 32 numbers as bfloat16, which is the upper half of their float32.
KVASIR_INLINE __m512i widened(__m256i numbers) {
  const __m512i pairs = _mm512_cvtepi16_epi32(numbers), even = _mm512_srai_epi32(_mm512_slli_epi32(pairs, 24), 24);
  const __m512 low = _mm512_cvtepi32_ps(even), high = _mm512_cvtepi32_ps(_mm512_srai_epi32(pairs, 8));
  return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(_mm512_castps_si512(low), 16), _mm512_castps_si512(high));
}

// A chunk's rows of one head as bfloat16, exactly: as they stand in the cache, else in `memory`, with their scales.
template <class From, int LINES>
KVASIR_INLINE void widen_rows(const uint8_t* const* rows, int64_t offset, uint8_t* memory, float* scales, const uint8_t** to) {
  for (int j = 0; j < CHUNK; ++j) {
    const uint8_t* row = rows[j] + offset;
    to[j] = row;
    if (sizeof(From) == 2) continue;
    to[j] = memory + j * LINES * 64;
    __builtin_memcpy(scales + j, row + LINES * 32, sizeof *scales);
#pragma GCC unroll 4
    for (int line = 0; line < LINES; ++line) {
      const __m256i numbers = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 32 * line));
      _mm512_store_si512(memory + (j * LINES + line) * 64, widened(numbers));
    }
  }
}

// (4) sums of 16 lanes -> in each quarter the sums of that quarter's lanes, one for each of the four.
KVASIR_INLINE __m512 quarters(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d p = _mm512_castps_pd(ab), q = _mm512_castps_pd(cd);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(p, q)), _mm512_castpd_ps(_mm512_unpackhi_pd(p, q)));
}

KVASIR_INLINE __m512 halves(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

// Scores of R rows, one after another at `query`, and 16 keys, which lie at rows[.]. LINES: of a key.
template <int R, int LINES>
KVASIR_INLINE void score(const uint8_t* query, const uint8_t* const* rows, float* scores, int64_t stride) {
  __m512 four[R][4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    __m512 sum[R][4];
#pragma GCC unroll 4
    for (int key = 0; key < 4; ++key) {
#pragma GCC unroll 4
      for (int line = 0; line < LINES; ++line) {
        const __m512bh k = pairs_at(rows[4 * j + key] + 64 * line);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const __m512bh q = pairs_at(query + (r * LINES + line) * 64);
          sum[r][key] = _mm512_dpbf16_ps(line ? sum[r][key] : _mm512_setzero_ps(), k, q);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) four[r][j] = quarters(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
    _mm512_storeu_ps(scores + r * stride, halves(halves(four[r][0], four[r][1]), halves(four[r][2], four[r][3])));
}

// sums[r] += weights of R rows times 16 values, columns in the order that interleaving gives them. weights: pairs.
template <int R, int LINES>
KVASIR_INLINE void add_values(const uint8_t* const* rows, const uint32_t* weights, int64_t stride, float* sums) {
  __m512 sum[R][2 * LINES];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < 2 * LINES; ++n) sum[r][n] = _mm512_loadu_ps(sums + (r * 2 * LINES + n) * 16);
  for (int pair = 0; pair < CHUNK / 2; ++pair) {
    const uint8_t *even = rows[2 * pair], *odd = rows[2 * pair + 1];
#pragma GCC unroll 4
    for (int line = 0; line < LINES; ++line) {
      const __m512i a = _mm512_loadu_si512(even + 64 * line), b = _mm512_loadu_si512(odd + 64 * line);
      const __m512bh low = (__m512bh)_mm512_unpacklo_epi16(a, b), high = (__m512bh)_mm512_unpackhi_epi16(a, b);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const __m512bh weight = (__m512bh)_mm512_set1_epi32(weights[r * stride + pair]);
        sum[r][2 * line] = _mm512_dpbf16_ps(sum[r][2 * line], low, weight);
        sum[r][2 * line + 1] = _mm512_dpbf16_ps(sum[r][2 * line + 1], high, weight);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < 2 * LINES; ++n) _mm512_storeu_ps(sums + (r * 2 * LINES + n) * 16, sum[r][n]);
}

// 32 columns as add_values leaves them, in their order.
KVASIR_INLINE void in_order(const float* sums, float* out) {
  const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  const __m512 a = _mm512_loadu_ps(sums), b = _mm512_loadu_ps(sums + 16);
  _mm512_storeu_ps(out, _mm512_permutex2var_ps(a, low, b));
  _mm512_storeu_ps(out + 16, _mm512_permutex2var_ps(a, high, b));
}

template <int LINES>
KVASIR_INLINE void scores_of(int64_t rows, const uint8_t* query, const uint8_t* const* at, float* scores) {
  for (; rows > 4; rows -= 4, query += 4 * LINES * 64, scores += 4 * SPLIT) score<4, LINES>(query, at, scores, SPLIT);
  switch (rows) {
    case 1: return score<1, LINES>(query, at, scores, SPLIT);
    case 2: return score<2, LINES>(query, at, scores, SPLIT);
    case 3: return score<3, LINES>(query, at, scores, SPLIT);
    default: return score<4, LINES>(query, at, scores, SPLIT);
  }
}

template <int LINES>
KVASIR_INLINE void values_of(int64_t rows, const uint8_t* const* at, const uint32_t* weights, float* sums) {
  constexpr int MOST = LINES == 2 ? 4 : 2;
  for (; rows > MOST; rows -= MOST, weights += MOST * (SPLIT / 2), sums += MOST * LINES * 32)
    add_values<MOST, LINES>(at, weights, SPLIT / 2, sums);
  switch (rows) {
    case 1: return add_values<1, LINES>(at, weights, SPLIT / 2, sums);
    case 2: return add_values<2, LINES>(at, weights, SPLIT / 2, sums);
    case 3: return add_values<MOST == 4 ? 3 : 1, LINES>(at, weights, SPLIT / 2, sums);
    default: return add_values<MOST, LINES>(at, weights, SPLIT / 2, sums);
  }
}

// Scores (count, of whole chunks) of one row become weights. Of the chunks' positions those from .. to count.
struct Softened {
  float maximum, sum;
};

// limit: of scores before they are scaled, 0 for none. weights: null where they stay float32, in place of the scores.
KVASIR_INLINE Softened soften_few(float* scores, int64_t count, int64_t from, int64_t to, float scale, float limit,
                                  bfloat16* weights) {
  const __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512 best = _mm512_set1_ps(UNSEEN);
  for (int64_t i = 0; i < count; i += 16) {
    const __m512i place = _mm512_add_epi32(places, _mm512_set1_epi32(static_cast<int>(i)));
    const __mmask16 seen = _mm512_cmp_epi32_mask(place, _mm512_set1_epi32(static_cast<int>(from)), _MM_CMPINT_NLT) &
                           _mm512_cmp_epi32_mask(place, _mm512_set1_epi32(static_cast<int>(to)), _MM_CMPINT_LT);
    const Floats raw = load(scores + i), within = limit != 0 ? capped(raw, limit) : raw;
    const __m512 s = _mm512_mask_mov_ps(_mm512_set1_ps(UNSEEN), seen, reinterpret_cast<__m512>(within));
    _mm512_storeu_ps(scores + i, s);
    best = _mm512_max_ps(s, best);
  }
  const float found = _mm512_reduce_max_ps(best) * scale, maximum = found > LEAST ? found : LEAST;
  const Floats factor = splat(scale), offset = splat(-maximum);
  Floats total{};
  for (int64_t i = 0; i < count; i += 16) {
    const Floats p = exp2(multiply_add(load(scores + i), factor, offset));
    total += p;
    weights ? store(weights + i, p) : store(scores + i, p);
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
  const int64_t row_bytes = row_bytes_of<From>(a), query_bytes = LINES * 64;
  const Span span = span_of(a, item);
  const Chunks chunks = chunks_of<From>(a, item, span);
  const Chunks later = next ? chunks_of<From>(a, *next, span_of(a, *next)) : Chunks{};
  float* scores = memory;
  auto* weights = reinterpret_cast<uint32_t*>(scores + rows * SPLIT);
  float* sums = scores + rows * (SPLIT + SPLIT / 2);
  const auto* query = static_cast<const uint8_t*>(a.query) + (item.start * a.token_stride + head * a.head_dim) * 2;
  constexpr bool SCALED = sizeof(From) == 1;
  alignas(64) uint8_t wide[SCALED ? CHUNK * LINES * 64 : 1];
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
      widen_rows<From, LINES>(at, (item.kv_head + h) * row_bytes, wide, scales, of_head);
      scores_of<LINES>(group, query + h * group * query_bytes, of_head, to);
      for (int64_t r = 0; SCALED && r < group; ++r) store(to + r * SPLIT, load(to + r * SPLIT) * load(scales));
    }
  }
  Softened softened[MOST_HEADS];
  for (int64_t r = 0; r < rows; ++r)
    softened[r] = soften_few(scores + r * SPLIT, chunks.count * CHUNK, span.first - chunks.first, span.stop - chunks.first,
                             a.scale * 1.44269504f, a.cap / a.scale,
                             SCALED ? nullptr : reinterpret_cast<bfloat16*>(weights + r * (SPLIT / 2)));
  __builtin_memset(sums, 0, rows * a.head_dim * 4);
  for (int64_t chunk = chunks.count; chunk < 2 * chunks.count; ++chunk) {
    rows_of(chunks, chunk, span, at);
    const uint8_t* fetched = ahead(chunk);
    for (int64_t h = 0; h < heads; ++h) {
      ask(fetched ? fetched + h * row_bytes : nullptr, chunks.token_bytes, row_bytes);
      const int64_t place = h * group * SPLIT + (chunk - chunks.count) * CHUNK;
      widen_rows<From, LINES>(at, (item.kv_head + h) * row_bytes, wide, scales, of_head);
      for (int64_t r = place; SCALED && r < place + group * SPLIT; r += SPLIT)
        store(reinterpret_cast<bfloat16*>(weights) + r, load(scores + r) * load(scales));
      values_of<LINES>(group, of_head, weights + place / 2, sums + h * group * a.head_dim);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    alignas(64) float out[LINES * 32];
    for (int line = 0; line < LINES; ++line) in_order(sums + r * a.head_dim + 32 * line, out + 32 * line);
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
#endif
