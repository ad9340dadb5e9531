// What a request changes in its logits, without a copy of them: a bit for each id that is left as it is, and a list of
// the few ids whose logits are others.
#pragma once

#include "sample.h"
#include "sample_values.h"

namespace KVASIR_ISA {

// bits: of all ids, those whose logits count as they are. ids, logits: the others that can be drawn.
struct Edited {
  uint32_t* bits;
  int32_t* ids;
  float* logits;
  int64_t count;
};

constexpr int64_t bits_of(int64_t columns) { return (columns + 31) / 32; }

// Ids that may be listed.
KVASIR_INLINE int64_t most_edited(const kvasir::Edits& e, int64_t columns) {
  const int64_t most = e.num_biases + (e.penalizes() ? e.num_tokens : 0);
  return most < columns ? most : columns;
}

// Makes `made` from a row of logits; its memory is there. counts: (columns), undefined before and after.
template <class T>
struct Editing {
  const kvasir::Edits& e;
  const T* row;
  int64_t columns;
  Edited& made;
  int32_t* counts;

  bool is_left(int32_t id) const { return id >= 0 && id < columns && made.bits[id / 32] >> id % 32 & 1; }
  void leave_out(int32_t id) const {
    if (id >= 0 && id < columns) made.bits[id / 32] &= ~(1u << id % 32);
  }

  void run() const {
    made.count = 0;
    allow();
    for (int64_t i = 0; i < (e.below_min_tokens ? e.num_stops : 0); ++i) leave_out(e.stops[i]);
    forbid_words();
    if (e.penalizes()) count();
    for (int64_t i = 0; i < e.num_biases; ++i) list(e.bias_ids[i], e.biases[i]);
    for (int64_t i = 0; i < (e.penalizes() ? e.num_tokens : 0); ++i) list(e.tokens[i], 0);
  }

  void allow() const {
    const int64_t words = bits_of(columns);
    for (int64_t i = 0; i < words; ++i) {
      made.bits[i] = e.allowed ? 0 : !e.mask ? ~0u : i < e.mask_words ? e.mask[i] : 0;
    }
    for (int64_t i = 0; i < e.num_allowed; ++i) {
      const int32_t id = e.allowed[i];
      const bool both = !e.mask || (id / 32 < e.mask_words && e.mask[id / 32] >> id % 32 & 1);
      if (id < columns && both) made.bits[id / 32] |= 1u << id % 32;
    }
  }

  // The last id of a word is forbidden where the answer ends in those before it.
  void forbid_words() const {
    for (const int32_t* word = e.words; word < e.words + e.words_size; word += 1 + *word) {
      const int64_t before = *word - 1;
      if (before > e.num_tokens - e.prompt_tokens) continue;
      if (!__builtin_memcmp(word + 1, e.tokens + e.num_tokens - before, before * sizeof(int32_t))) {
        leave_out(word[1 + before]);
      }
    }
  }

  // Each id's occurrences in the answer, with SEEN where it is in prompt or answer.
  static constexpr int32_t SEEN = 1 << 30;
  void count() const {
    for (int64_t i = 0; i < e.num_biases; ++i) counts[e.bias_ids[i]] = 0;
    for (int64_t i = 0; i < e.num_tokens; ++i) counts[e.tokens[i]] = SEEN;
    for (int64_t i = e.prompt_tokens; i < e.num_tokens; ++i) ++counts[e.tokens[i]];
  }

  void list(int32_t id, float bias) const {
    if (!is_left(id)) return;
    leave_out(id);
    float logit = widen(row[id]) + bias;
    if (e.penalizes()) {
      if (counts[id] & SEEN) logit = logit > 0 ? logit / e.repetition : logit * e.repetition;
      const int32_t times = counts[id] & ~SEEN;
      logit -= e.frequency * times + e.presence * (times > 0);
    }
    made.ids[made.count] = id;
    made.logits[made.count++] = logit;
  }
};

}  // namespace KVASIR_ISA
