// One source, several instruction sets. Each *.isa.cpp is compiled once per variant with KVASIR_ISA set to its name
// (build.py has the flags); everything in it lives in the namespace KVASIR_ISA, so that the linker never takes one
// variant's function for another's, and is exported under names that end in the variant's. library.py asks the processor
// which variant to call. Include no header of the standard library with functions in it: they would be merged.
#pragma once

#include <stdint.h>

// The head of a function that Python calls and that is the same for all variants.
#define KVASIR_API extern "C" __attribute__((visibility("default")))

#define KVASIR_JOIN_(a, b) a##__##b
#define KVASIR_JOIN(a, b) KVASIR_JOIN_(a, b)
// The head of a function that Python calls: KVASIR_EXPORT(kvasir_linear)(...) is void kvasir_linear__avx512_bf16(...).
#define KVASIR_EXPORT(name) \
  KVASIR_API void KVASIR_JOIN(name, KVASIR_ISA)

#define KVASIR_INLINE inline __attribute__((always_inline))
