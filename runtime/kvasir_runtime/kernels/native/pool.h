// A team of threads that computes one parallel region at a time, with barriers of about a microsecond inside it.
//
// A kernel is a function kernel(tid, nth, ...) that every thread of the team calls: it claims pieces of its work with
// `claim` until there are none, and whoever reads what others wrote calls `barrier` first. So one kernel is a region of
// its own, and many kernels with barriers between them are one region too: a whole step of a model.
//
// Sharing is dynamic because cores are shared: a thread that lost its core to another process holds up only the piece it
// has claimed. Threads that wait spin for a moment, then sleep.
#pragma once

#include <cstdint>

namespace kvasir {

using Region = void (*)(int tid, int nth, void* args);

// Scratch memory of a kernel. One slot each for those whose buffers are in use at the same time.
enum Slot { SLOT_LINEAR, SLOT_ATTENTION, SLOT_STEP, SLOT_OTHER, SLOTS };

// Memory that all threads of a region share, wanted before it begins.
struct Need {
  Slot slot;
  int64_t bytes;
};

// Runs fn(0, nth, args) ... fn(nth - 1, nth, args), one of them on the caller, and returns when all have. Callers on
// several threads take turns. Must not be called inside a region.
void run(Region fn, void* args, const Need* needs = nullptr, int num_needs = 0);

// Waits for all threads of the region; what they wrote before it is seen after it. All claims start anew.
void barrier(int tid, int nth);

// The next piece of `count` that nobody has, or -1 when none is left. Threads begin in a range of their own, neighbouring
// pieces one after another, and take from others' when it is done. Between two barriers at most LOOPS loops may be
// shared, each under its own number and with one and the same count on all threads.
constexpr int LOOPS = 4;
int64_t claim(int tid, int nth, int64_t count, int loop = 0);

// Memory of this thread, at least `bytes`; and of the region, as large as `run` was told. Aligned to 4096, kept from call
// to call, contents undefined.
void* own_scratch(int tid, Slot slot, int64_t bytes);
void* shared_scratch(Slot slot);

int threads();

}  // namespace kvasir
