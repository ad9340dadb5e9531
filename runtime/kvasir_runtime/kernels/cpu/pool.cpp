#include "pool.h"

#include "isa.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <initializer_list>

namespace kvasir {
namespace {

constexpr int MAX_THREADS = 256;
// How long a thread waits awake. Never by sched_yield: on a core that another process wants that gives away a whole time
// slice (3 ms), while a thread that sleeps takes its core back as soon as it is woken.
constexpr int64_t WORKER_AWAKE_NS = 100'000;  // the time between two operations of one step, and some
constexpr int64_t BARRIER_AWAKE_NS = 50'000;   // the others are at work, unless they have lost their core for long

// How many chunks of a thread's range are taken, by loop, below the number of the phase that took them: those of another
// phase count as none, so they need no clearing.
struct alignas(64) Claims {
  uint64_t taken[LOOPS];
};
constexpr int TAKEN_BITS = 28;
constexpr uint64_t TAKEN_MASK = (uint64_t{1} << TAKEN_BITS) - 1;

// Where a thread is in the region. inside: it has looked for chunks of this phase, which cannot end before it leaves.
struct alignas(64) Place {
  int64_t phase = 0;
  bool inside = false;
};

struct Buffer {
  void* data = nullptr;
  int64_t bytes = 0;
};

struct alignas(64) Word {
  int value = 0;
};

// A number above a count, changed together.
struct alignas(64) Pair {
  int64_t value = 0;
};
constexpr int COUNT_BITS = 16;
constexpr int64_t COUNT_MASK = (int64_t{1} << COUNT_BITS) - 1;
constexpr int64_t CLOSED = int64_t{1} << (COUNT_BITS - 1);

// Waiting is on a word that changes. `sleepers` is raised before a thread sleeps on it and is read after the change, both
// sequentially consistent, so that no wake-up is lost.
struct State {
  Word epoch;           // raised when a region begins
  Word epoch_sleepers;
  Pair progress;        // the phase that is being computed, and how many threads are inside it
  Word progress_sleepers;
  Pair team;            // the epoch, and how many workers take part, with CLOSED when no more may
  Word team_sleepers;
  Region fn = nullptr;
  alignas(64) char args[ARGS_BYTES];
  int64_t first_phase = 0;
  bool begun = false;
  pthread_t beginner;
  int size = 1;
  int stopping = 0;
  pid_t owner = 0;
  pthread_t workers[MAX_THREADS];
  bool pinned = false;
  cpu_set_t allowed, callers;  // while pinned: all CPUs granted, and those where no worker is
  Claims claims[MAX_THREADS];
  Place places[MAX_THREADS];
  Buffer own[MAX_THREADS][SLOTS];
  Buffer shared[SLOTS];
};

State pool;
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

int load(const Word& word) { return __atomic_load_n(&word.value, __ATOMIC_ACQUIRE); }

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void futex(Word& word, int operation, int value) {
  syscall(SYS_futex, &word.value, operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

void await_change(Word& word, Word& sleepers, int old, int64_t awake_ns) {
  int64_t deadline = 0;
  do {
    for (int i = 0; i < 64; ++i) {
      if (load(word) != old) return;
      pause_briefly();
    }
    if (!deadline) deadline = now_ns() + awake_ns;
  } while (now_ns() < deadline);
  __atomic_add_fetch(&sleepers.value, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&word.value, __ATOMIC_SEQ_CST) == old) futex(word, FUTEX_WAIT, old);
  __atomic_sub_fetch(&sleepers.value, 1, __ATOMIC_SEQ_CST);
}

void change(Word& word, Word& sleepers) {
  __atomic_add_fetch(&word.value, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&sleepers.value, __ATOMIC_SEQ_CST)) futex(word, FUTEX_WAKE, INT_MAX);
}

int64_t load(const Pair& pair) { return __atomic_load_n(&pair.value, __ATOMIC_ACQUIRE); }

bool replace(Pair& pair, int64_t& seen, int64_t by) {
  return __atomic_compare_exchange_n(&pair.value, &seen, by, false, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE);
}

// Sleepers look at the lower half, which changes with the number and the count.
void wake(Pair& pair, Word& sleepers) {
  if (!__atomic_load_n(&sleepers.value, __ATOMIC_SEQ_CST)) return;
  syscall(SYS_futex, &pair.value, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, nullptr, nullptr, 0);
}

template <class Done>
void await(Pair& pair, Word& sleepers, const Done& done) {
  int64_t deadline = 0;
  do {
    for (int i = 0; i < 64; ++i) {
      if (done(load(pair))) return;
      pause_briefly();
    }
    if (!deadline) deadline = now_ns() + BARRIER_AWAKE_NS;
  } while (now_ns() < deadline);
  __atomic_add_fetch(&sleepers.value, 1, __ATOMIC_SEQ_CST);
  for (int64_t seen; !done(seen = __atomic_load_n(&pair.value, __ATOMIC_SEQ_CST));) {
    syscall(SYS_futex, &pair.value, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, static_cast<int>(seen), nullptr, nullptr, 0);
  }
  __atomic_sub_fetch(&sleepers.value, 1, __ATOMIC_SEQ_CST);
}

// False where the phase is over already.
bool enter(Place& place) {
  int64_t seen = load(pool.progress);
  while (seen >> COUNT_BITS == place.phase) {
    if (replace(pool.progress, seen, seen + 1)) return place.inside = true;
  }
  return false;
}

// A thread that is inside has found no more chunks. So a phase is over when the last one leaves, and those who come later have
// nothing to do in it.
bool leave(Place& place) {
  place.inside = false;
  int64_t seen = load(pool.progress);
  for (;;) {
    const bool last = (seen & COUNT_MASK) == 1;
    if (!replace(pool.progress, seen, last ? (place.phase + 1) << COUNT_BITS : seen - 1)) continue;
    if (last) wake(pool.progress, pool.progress_sleepers);
    return last;
  }
}

void take_part(int tid) {
  Place& place = pool.places[tid];
  place.phase = pool.first_phase;
  place.inside = false;
  pool.fn(tid, pool.size, pool.args);
  if (place.inside) leave(place);
}

// False where the region is over, which needs no latecomers.
bool join(int epoch) {
  int64_t seen = load(pool.team);
  while (static_cast<int>(seen >> COUNT_BITS) == epoch && !(seen & CLOSED)) {
    if (replace(pool.team, seen, seen + 1)) return true;
  }
  return false;
}

void* work(void* argument) {
  const int tid = static_cast<int>(reinterpret_cast<intptr_t>(argument));
  int epoch = 0;
  for (;;) {
    await_change(pool.epoch, pool.epoch_sleepers, epoch, WORKER_AWAKE_NS);
    epoch = load(pool.epoch);
    if (pool.stopping) return nullptr;
    if (!join(epoch)) continue;
    take_part(tid);
    const int64_t left = __atomic_sub_fetch(&pool.team.value, 1, __ATOMIC_SEQ_CST) & COUNT_MASK;
    if (left == CLOSED) wake(pool.team, pool.team_sleepers);
  }
}

void* grown(Buffer& buffer, int64_t bytes) {
  if (buffer.bytes < bytes) {
    free(buffer.data);
    buffer.bytes = (bytes + bytes / 2 + 4095) / 4096 * 4096;
    if (posix_memalign(&buffer.data, 4096, buffer.bytes)) abort();
  }
  return buffer.data;
}

// Each worker gets a CPU of its own where there is one for each, because the kernel wakes a thread on the CPU of the
// thread that woke it when all are busy: caller and worker would take turns on one while another process has the other. With fewer
// threads than CPUs (a quota) nothing is bound, since other processes of the same size would choose the same ones.
void pin_workers() {
  pool.pinned = false;
  if (sched_getaffinity(0, sizeof pool.allowed, &pool.allowed) || CPU_COUNT(&pool.allowed) != pool.size) return;
  pool.callers = pool.allowed;
  for (int cpu = CPU_SETSIZE - 1, tid = pool.size - 1; tid > 0 && cpu >= 0; --cpu) {
    if (!CPU_ISSET(cpu, &pool.allowed)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (pthread_setaffinity_np(pool.workers[tid--], sizeof one, &one)) return;
    CPU_CLR(cpu, &pool.callers);
  }
  pool.pinned = pool.size > 1;
}

// While the caller takes part it stays where no worker is: it may sleep for a moment, and would be woken on the CPU of the
// worker that wakes it. Only so long, since threads that it makes would be bound as well.
void bind_caller(bool bound) {
  if (pool.pinned) sched_setaffinity(0, sizeof(cpu_set_t), bound ? &pool.callers : &pool.allowed);
}

void stop_locked() {
  if (pool.size > 1 && pool.owner == getpid()) {
    pool.stopping = 1;
    change(pool.epoch, pool.epoch_sleepers);
    for (int tid = 1; tid < pool.size; ++tid) pthread_join(pool.workers[tid], nullptr);
  }
  // In the child of a fork the workers do not exist, and what they had arrived at is void.
  pool.stopping = 0;
  pool.size = 1;
  for (Word* word : {&pool.epoch, &pool.epoch_sleepers, &pool.progress_sleepers, &pool.team_sleepers}) word->value = 0;
  pool.team.value = CLOSED;
}

int start_locked(int wanted) {
  stop_locked();
  pool.owner = getpid();
  wanted = wanted < 1 ? 1 : wanted > MAX_THREADS ? MAX_THREADS : wanted;
  int started = 1;
  // Workers read `size` only inside a region, and none begins before this returns.
  while (started < wanted &&
         pthread_create(&pool.workers[started], nullptr, work, reinterpret_cast<void*>(intptr_t(started))) == 0) {
    ++started;
  }
  pool.size = started;
  pin_workers();
  return started;
}

// By this thread, and not finished.
bool begun_here() { return __atomic_load_n(&pool.begun, __ATOMIC_ACQUIRE) && pthread_equal(pool.beginner, pthread_self()); }

}  // namespace

void begin(Region fn, const void* args, int64_t bytes, const Need* needs, int num_needs) {
  if (begun_here()) finish();
  pthread_mutex_lock(&mutex);
  if (pool.size > 1 && pool.owner != getpid()) start_locked(pool.size);
  for (int i = 0; i < num_needs; ++i) grown(pool.shared[needs[i].slot], needs[i].bytes);
  pool.fn = fn;
  __builtin_memcpy(pool.args, args, bytes);
  pool.first_phase = (load(pool.progress) >> COUNT_BITS) + 1;
  __atomic_store_n(&pool.progress.value, pool.first_phase << COUNT_BITS, __ATOMIC_RELEASE);
  if (pool.size > 1) {
    const int64_t epoch = static_cast<uint32_t>(pool.epoch.value) + 1u;
    __atomic_store_n(&pool.team.value, epoch << COUNT_BITS, __ATOMIC_RELEASE);
    change(pool.epoch, pool.epoch_sleepers);
  }
  pool.beginner = pthread_self();
  __atomic_store_n(&pool.begun, true, __ATOMIC_RELEASE);
}

void finish() {
  if (!begun_here()) return;
  bind_caller(true);
  take_part(0);
  if (pool.size > 1) {
    __atomic_or_fetch(&pool.team.value, CLOSED, __ATOMIC_SEQ_CST);
    await(pool.team, pool.team_sleepers, [](int64_t seen) { return (seen & COUNT_MASK) == CLOSED; });
  }
  bind_caller(false);
  __atomic_store_n(&pool.begun, false, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&mutex);
}

bool barrier(int tid, int) {
  Place& place = pool.places[tid];
  const bool last = (place.inside || enter(place)) && leave(place);
  const int64_t next = ++place.phase;
  await(pool.progress, pool.progress_sleepers, [next](int64_t seen) { return seen >> COUNT_BITS >= next; });
  return last;
}

bool passed(int tid) { return load(pool.progress) >> COUNT_BITS > pool.places[tid].phase; }

int64_t claim(int tid, int nth, int64_t count, int loop) {
  Place& place = pool.places[tid];
  if (!place.inside && !enter(place)) return -1;
  const uint64_t tag = static_cast<uint64_t>(place.phase) << TAKEN_BITS;
  for (int i = 0; i < nth; ++i) {
    const int owner = tid + i < nth ? tid + i : tid + i - nth;
    const int64_t start = count * owner / nth;
    const uint64_t size = count * (owner + 1) / nth - start;
    if (!size) continue;
    uint64_t* taken = &pool.claims[owner].taken[loop];
    uint64_t seen = __atomic_load_n(taken, __ATOMIC_RELAXED);
    while ((seen & ~TAKEN_MASK) != tag) {
      if (__atomic_compare_exchange_n(taken, &seen, tag | 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return start;
    }
    // Looking first keeps the line shared once a range is used up.
    if ((seen & TAKEN_MASK) >= size) continue;
    const uint64_t chunk = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED) & TAKEN_MASK;
    if (chunk < size) return start + static_cast<int64_t>(chunk);
  }
  return -1;
}

void* own_scratch(int tid, Slot slot, int64_t bytes) { return grown(pool.own[tid][slot], bytes); }

void* shared_scratch(Slot slot) { return pool.shared[slot].data; }

int threads() { return pool.size; }

}  // namespace kvasir

// What Python calls. Changing the number of threads waits for the region that runs.
KVASIR_API int kvasir_pool_start(int wanted) {
  kvasir::finish();
  pthread_mutex_lock(&kvasir::mutex);
  const int started = kvasir::start_locked(wanted);
  pthread_mutex_unlock(&kvasir::mutex);
  return started;
}

KVASIR_API void kvasir_pool_finish() { kvasir::finish(); }

KVASIR_API int kvasir_pool_threads() { return kvasir::threads(); }
