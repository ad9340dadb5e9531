// A team of threads that computes one parallel region at a time, with barriers of about a microsecond inside it.
//
// A kernel is a function kernel(tid, nth, ...) that every thread of the team calls: it claims chunks of its work with
// `claim` until there are none, and a thread that reads what others wrote calls `barrier` first. So one kernel is a region of
// its own, and many kernels with barriers between them are one region too: a whole step of a model.
//
// Sharing is dynamic because cores are shared: a thread that lost its core to another process holds up only the chunk it
// has claimed, and one that has something else to do first joins the others where they are by then. Threads that wait
// spin for a moment, then sleep.
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

// Lets the workers begin fn(1, nth, args) ... fn(nth - 1, nth, args) and returns; `finish` takes part as fn(0, nth, args)
// until all is done. args: at most ARGS_BYTES, copied; what they point to must live until then. Callers on several
// threads take turns, from begin to finish. Must not be called inside a region. A thread that begins another region
// finishes the one before.
//
// A worker that is late, or has lost its core, need not come: fn must not count on more than one thread, nor on number 0.
constexpr int64_t ARGS_BYTES = 1024;
void begin(Region fn, const void* args, int64_t bytes, const Need* needs = nullptr, int num_needs = 0);
void finish();

template <class Args>
void run(Region fn, Args* args, const Need* needs = nullptr, int num_needs = 0) {
  static_assert(sizeof(Args) <= ARGS_BYTES);
  begin(fn, args, sizeof(Args), needs, num_needs);
  finish();
}

// Waits until all chunks of the phase are computed, by whichever threads took them; what was written before is seen after it. All
// claims start again. True for the one thread that ended the phase. passed: whether it is over already, and this thread
// comes too late to it.
bool barrier(int tid, int nth);
bool passed(int tid);

// The next chunk of `count` that no thread has, or -1 when none is left. Threads begin in a range of their own, neighbouring
// chunks one after another, and take from others' when it is done. Between two barriers at most LOOPS loops may be
// shared, each under its own number and with one and the same count on all threads.
constexpr int LOOPS = 4;
int64_t claim(int tid, int nth, int64_t count, int loop = 0);

// Memory of this thread, at least `bytes`; and of the region, as large as `run` was told. Aligned to 4096, kept from call
// to call, contents undefined.
void* own_scratch(int tid, Slot slot, int64_t bytes);
void* shared_scratch(Slot slot);

int threads();

}  // namespace kvasir
