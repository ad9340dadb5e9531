// What this processor can do at best, for the benchmark: plain reads, and dot products without memory.
#include "pool.h"
#include "vector.h"

#ifdef __AVX512F__
namespace KVASIR_ISA {
namespace {

struct Read {
  const char* bytes;
  int64_t chunks;  // of 128 KiB
};

void read(int tid, int nth, const Read& args) {
  __m512i sum[8] = {};
  for (int64_t chunk; (chunk = kvasir::claim(tid, nth, args.chunks)) >= 0;) {
    const char* p = args.bytes + (chunk << 17);
    for (int64_t i = 0; i < 1 << 17; i += 512)
      for (int j = 0; j < 8; ++j) sum[j] = _mm512_add_epi64(sum[j], _mm512_loadu_si512(p + i + 64 * j));
  }
  for (int j = 0; j < 8; ++j) asm volatile("" ::"v"(sum[j]));
}

// 16 independent chains in registers. Returns nothing: the time is what counts.
#define KVASIR_CHAIN(instruction, r) instruction " %0, %0, %%zmm" #r "\n"
#define KVASIR_CHAINS(instruction)                                                                                   \
  KVASIR_CHAIN(instruction, 8) KVASIR_CHAIN(instruction, 9) KVASIR_CHAIN(instruction, 10) KVASIR_CHAIN(instruction, 11)  \
  KVASIR_CHAIN(instruction, 12) KVASIR_CHAIN(instruction, 13) KVASIR_CHAIN(instruction, 14) KVASIR_CHAIN(instruction, 15) \
  KVASIR_CHAIN(instruction, 16) KVASIR_CHAIN(instruction, 17) KVASIR_CHAIN(instruction, 18) KVASIR_CHAIN(instruction, 19) \
  KVASIR_CHAIN(instruction, 20) KVASIR_CHAIN(instruction, 21) KVASIR_CHAIN(instruction, 22) KVASIR_CHAIN(instruction, 23)
#define KVASIR_CLOBBERED "zmm8", "zmm9", "zmm10", "zmm11", "zmm12", "zmm13", "zmm14", "zmm15", "zmm16", "zmm17", \
                         "zmm18", "zmm19", "zmm20", "zmm21", "zmm22", "zmm23"
constexpr int64_t CHAINS = 16;

// kind: 0 bfloat16, 1 eight bits
void dots(int32_t kind, int64_t rounds) {
  const __m512i ones = _mm512_set1_epi32(0x3f803f80);
  for (int64_t r = 0; r < rounds; ++r) {
#ifdef __AVX512BF16__
    if (kind == 0) {
      asm volatile(KVASIR_CHAINS("vdpbf16ps") ::"v"(ones) : KVASIR_CLOBBERED);
      continue;
    }
#endif
    asm volatile(KVASIR_CHAINS("vpdpbusd") ::"v"(ones) : KVASIR_CLOBBERED);
  }
}

struct Dots {
  int32_t kind;
  int64_t rounds;
};

}  // namespace
}  // namespace KVASIR_ISA

KVASIR_EXPORT(kvasir_ceiling_read)(const char* bytes, int64_t chunks) {
  KVASIR_ISA::Read args{bytes, chunks};
  kvasir::run([](int tid, int nth, void* p) { KVASIR_ISA::read(tid, nth, *static_cast<KVASIR_ISA::Read*>(p)); }, &args);
}

KVASIR_EXPORT(kvasir_ceiling_dots)(int32_t kind, int64_t rounds) {
  KVASIR_ISA::Dots args{kind, rounds};
  kvasir::run(
      [](int tid, int nth, void* p) {
        const auto& a = *static_cast<KVASIR_ISA::Dots*>(p);
        while (kvasir::claim(tid, nth, nth) >= 0) KVASIR_ISA::dots(a.kind, a.rounds);
      },
      &args);
}
#endif
