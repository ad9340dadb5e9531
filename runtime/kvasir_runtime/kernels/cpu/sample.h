// One id per row of logits, drawn as kernels/sample.py defines it, for a region of the pool.
#pragma once

#include "attention.h"

namespace kvasir {

// How a row is drawn. `DRAW` in kernels/sample.py has the same fields.
struct Draw {
  float temperature, top_p, min_p;
  int32_t top_k;
  int64_t seed, position;
};

// What a request changes in its logits before it is drawn, in the order of `wire.SamplingConfig`. Of nothing there are 0.
// allowed: ascending ids, which alone remain; null for all. stops: ids that are forbidden while below_min_tokens.
// bias_ids: each once. words: of each bad word the number of its ids, then they. mask: a bit for each id that a grammar
// allows, null for none. tokens: of prompt and answer, all of them ids of the vocabulary.
// fallback: the id that is taken where all are forbidden, -1 for none. active: more than stops may change logits.
struct Edits {
  const int32_t *allowed, *stops, *bias_ids, *words;
  const float* biases;
  const uint32_t* mask;
  const int32_t* tokens;
  int64_t num_allowed, num_stops, num_biases, words_size, mask_words, num_tokens, prompt_tokens;
  float repetition, frequency, presence;
  int32_t fallback, below_min_tokens, active;

  bool penalizes() const { return repetition != 1 || frequency != 0 || presence != 0; }
};

// ids[r] = the id drawn from row r, -1 where the row is invalid. logits: (rows, columns), which stay as they are.
// edits: (rows), null for rows that change nothing; or null. Slot OTHER is shared: sample_bytes.
struct SampleArgs {
  const void* logits;
  const Draw* draws;
  const Edits* const* edits;
  int64_t* ids;
  int64_t rows, columns;
  Type type;
};

}  // namespace kvasir

namespace KVASIR_ISA {

int64_t sample_bytes(const kvasir::SampleArgs& args);

// ids are whole after the caller's next barrier. They do not depend on the number of threads, nor on other rows.
void sample(int tid, int nth, const kvasir::SampleArgs& args);

}  // namespace KVASIR_ISA
