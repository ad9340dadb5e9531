// Which variant this processor runs, and what the library was built from. Compiled for the baseline.
#include "isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#ifndef KVASIR_SOURCES
#define KVASIR_SOURCES ""
#endif

// The digest of the sources, so that Python never calls a library with the signatures of other sources.
KVASIR_API const char* kvasir_sources() { return KVASIR_SOURCES; }

// The best variant whose instructions the processor and the system grant, or "" when there is none.
// __builtin_cpu_supports looks at XCR0 too: registers that the system does not save count as absent.
KVASIR_API const char* kvasir_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
  if (avx512 && __builtin_cpu_supports("avx512bf16")) return "avx512_bf16";
  if (avx512) return "avx512";
  if (avx2) return "avx2";
#endif
  return "";
}
