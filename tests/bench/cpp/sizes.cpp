// Sizes of the structs that Python fills, so that a test finds a field which only one side has.
#define KVASIR_ISA sizes
#include "elementwise.h"
#include "linear.h"
#include "step.h"

#define KVASIR_SIZE(name) \
  extern "C" __attribute__((visibility("default"))) int kvasir_sizeof_##name() { return sizeof(kvasir::name); }

KVASIR_SIZE(Sequences)
KVASIR_SIZE(AttentionArgs)
KVASIR_SIZE(NormArgs)
KVASIR_SIZE(SplitArgs)
KVASIR_SIZE(ActAndMulArgs)
KVASIR_SIZE(GatherArgs)
KVASIR_SIZE(ArgmaxArgs)
KVASIR_SIZE(Linear)
KVASIR_SIZE(Product)
KVASIR_SIZE(Grouped)
KVASIR_SIZE(Experts)
KVASIR_SIZE(StepLayer)
KVASIR_SIZE(StepModel)
KVASIR_SIZE(StepBatch)
