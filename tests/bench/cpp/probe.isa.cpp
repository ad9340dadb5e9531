// What a variant computes to show that it runs: who took how many chunks, over several phases. For tests of the pool.
#include "isa.h"
#include "pool.h"

namespace KVASIR_ISA {
namespace {

struct Probe {
  int64_t chunks, phases;
  int64_t* taken;  // (phases, chunks): how often each chunk was computed
  int64_t* sums;   // (phases, threads): what each thread that came saw of the phase before, all of it
};

void probe(int tid, int nth, const Probe& args) {
  for (int64_t phase = 0; phase < args.phases; ++phase) {
    int64_t* row = args.taken + phase * args.chunks;
    for (int64_t chunk; (chunk = kvasir::claim(tid, nth, args.chunks)) >= 0;) ++row[chunk];
    kvasir::barrier(tid, nth);
    int64_t sum = 0;
    for (int64_t chunk = 0; chunk < args.chunks; ++chunk) sum += row[chunk];
    args.sums[phase * nth + tid] = sum;
  }
}

}  // namespace
}  // namespace KVASIR_ISA

KVASIR_EXPORT(kvasir_probe_begin)(int64_t chunks, int64_t phases, int64_t* taken, int64_t* sums) {
  const KVASIR_ISA::Probe args{chunks, phases, taken, sums};
  const auto region = [](int tid, int nth, void* p) { KVASIR_ISA::probe(tid, nth, *static_cast<KVASIR_ISA::Probe*>(p)); };
  kvasir::begin(region, &args, sizeof args);
}

KVASIR_EXPORT(kvasir_probe)(int64_t chunks, int64_t phases, int64_t* taken, int64_t* sums) {
  KVASIR_JOIN(kvasir_probe_begin, KVASIR_ISA)(chunks, phases, taken, sums);
  kvasir::finish();
}
