// Which variants this processor runs, and what the library was built from. Compiled for the baseline.
#include "isa.h"

#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#ifndef KVASIR_SOURCES
#define KVASIR_SOURCES ""
#endif

// The digest of the sources, so that Python never calls a library with the signatures of other sources.
KVASIR_API const char* kvasir_sources() { return KVASIR_SOURCES; }

// The variants whose instructions the processor and the system grant, the best first, with a space between them; "" when
// there is none. __builtin_cpu_supports looks at XCR0 too: registers that the system does not save count as absent.
KVASIR_API const char* kvasir_isas() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  // AVX-VNNI, by the instruction itself: not every compiler knows its name. It has no state beside that of AVX2.
  constexpr unsigned AVX_VNNI = 1u << 4;
  unsigned a = 0, b, c, d;
  const bool vnni = avx2 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & AVX_VNNI);
  if (bf16) return vnni ? "avx512_bf16 avx512 avx2_vnni avx2" : "avx512_bf16 avx512 avx2";
  if (avx512) return vnni ? "avx512 avx2_vnni avx2" : "avx512 avx2";
  if (avx2) return vnni ? "avx2_vnni avx2" : "avx2";
#elif defined(__aarch64__)
  constexpr unsigned long DOT_PRODUCTS = 1ul << 20;  // HWCAP_ASIMDDP
  if (getauxval(AT_HWCAP) & DOT_PRODUCTS) return "neon";
#endif
  return "";
}

// 1 where the processor multiplies tiles of bfloat16 and the system grants this process their state, else 0.
KVASIR_API int kvasir_amx() {
#if defined(KVASIR_AMX_EMULATED)
  return 1;
#elif defined(__x86_64__)
  constexpr unsigned TILES = 1u << 24, BFLOAT16 = 1u << 22, OSXSAVE = 1u << 27, TILE_STATE = 3u << 17;
  constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // arch_prctl(2)
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE)) return 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (TILES | BFLOAT16)) != (TILES | BFLOAT16)) return 0;
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & TILE_STATE) == TILE_STATE && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
  return 0;
#endif
}
