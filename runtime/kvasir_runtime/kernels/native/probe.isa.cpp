// What a variant computes to show that it runs: who took how many pieces, over several phases. For tests of the pool.
#include "isa.h"
#include "pool.h"

namespace KVASIR_ISA {
namespace {

struct Probe {
  int64_t pieces, phases;
  int64_t* taken;  // (phases, pieces): how often each piece was computed
  int64_t* sums;   // (phases, threads): what each thread that came saw of the phase before, all of it
};

void probe(int tid, int nth, const Probe& args) {
  for (int64_t phase = 0; phase < args.phases; ++phase) {
    int64_t* row = args.taken + phase * args.pieces;
    for (int64_t piece; (piece = kvasir::claim(tid, nth, args.pieces)) >= 0;) ++row[piece];
    kvasir::barrier(tid, nth);
    int64_t sum = 0;
    for (int64_t piece = 0; piece < args.pieces; ++piece) sum += row[piece];
    args.sums[phase * nth + tid] = sum;
  }
}

}  // namespace
}  // namespace KVASIR_ISA

KVASIR_EXPORT(kvasir_probe_begin)(int64_t pieces, int64_t phases, int64_t* taken, int64_t* sums) {
  const KVASIR_ISA::Probe args{pieces, phases, taken, sums};
  const auto region = [](int tid, int nth, void* p) { KVASIR_ISA::probe(tid, nth, *static_cast<KVASIR_ISA::Probe*>(p)); };
  kvasir::begin(region, &args, sizeof args);
}

KVASIR_EXPORT(kvasir_probe)(int64_t pieces, int64_t phases, int64_t* taken, int64_t* sums) {
  KVASIR_JOIN(kvasir_probe_begin, KVASIR_ISA)(pieces, phases, taken, sums);
  kvasir::finish();
}
