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

struct alignas(64) Claims {
  int64_t next[2][LOOPS];  // by parity of the phase, then loop: how many pieces of this thread's range are taken
};

struct Buffer {
  void* data = nullptr;
  int64_t bytes = 0;
};

struct alignas(64) Word {
  int value = 0;
};

// Waiting is on a word that changes. `sleepers` is raised before a thread sleeps on it and is read after the change, both
// sequentially consistent, so that no wake-up is lost.
struct State {
  Word epoch;           // raised when a region begins
  Word epoch_sleepers;
  Word phase;           // raised when all threads have arrived at a barrier or at the end of the region
  Word phase_sleepers;
  Word arrived;
  Region fn = nullptr;
  void* args = nullptr;
  int size = 1;
  int stopping = 0;
  pid_t owner = 0;
  pthread_t workers[MAX_THREADS];
  bool pinned = false;
  cpu_set_t allowed, callers;  // while pinned: all CPUs granted, and those where no worker is
  Claims claims[MAX_THREADS];
  Buffer own[MAX_THREADS][SLOTS];
  Buffer shared[SLOTS];
};

State pool;
pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

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

// Each thread clears its claims of the next phase before it arrives, when nobody can use them: those of the phase before
// this one, all of whose users have passed a barrier since.
int arrive(int tid, int nth) {
  const int phase = load(pool.phase);
  for (int loop = 0; loop < LOOPS; ++loop) pool.claims[tid].next[(phase + 1) & 1][loop] = 0;
  if (__atomic_add_fetch(&pool.arrived.value, 1, __ATOMIC_ACQ_REL) == nth) {
    __atomic_store_n(&pool.arrived.value, 0, __ATOMIC_RELAXED);
    change(pool.phase, pool.phase_sleepers);
  }
  return phase;
}

void* work(void* argument) {
  const int tid = static_cast<int>(reinterpret_cast<intptr_t>(argument));
  int epoch = 0;
  for (;;) {
    await_change(pool.epoch, pool.epoch_sleepers, epoch, WORKER_AWAKE_NS);
    epoch = load(pool.epoch);
    if (pool.stopping) return nullptr;
    pool.fn(tid, pool.size, pool.args);
    arrive(tid, pool.size);
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

// Each worker gets a CPU of its own where there is one for each, because the kernel wakes a thread on the CPU of whoever
// woke it when all are busy: caller and worker would take turns on one while another process has the other. With fewer
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

// The caller steps aside when it runs where a worker does. It is not bound: threads that it makes would be bound as well.
void step_aside() {
  const int cpu = sched_getcpu();
  if (cpu < 0 || CPU_ISSET(cpu, &pool.callers)) return;
  if (sched_setaffinity(0, sizeof pool.callers, &pool.callers) == 0) sched_setaffinity(0, sizeof pool.allowed, &pool.allowed);
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
  for (Word* word : {&pool.epoch, &pool.epoch_sleepers, &pool.phase, &pool.phase_sleepers, &pool.arrived}) word->value = 0;
  for (Claims& claims : pool.claims) claims = Claims{};
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

}  // namespace

void run(Region fn, void* args, const Need* needs, int num_needs) {
  pthread_mutex_lock(&turn);
  if (pool.size > 1 && pool.owner != getpid()) start_locked(pool.size);
  for (int i = 0; i < num_needs; ++i) grown(pool.shared[needs[i].slot], needs[i].bytes);
  const int nth = pool.size;
  pool.fn = fn;
  pool.args = args;
  if (pool.pinned) step_aside();
  if (nth > 1) change(pool.epoch, pool.epoch_sleepers);
  fn(0, nth, args);
  const int phase = arrive(0, nth);
  if (nth > 1) await_change(pool.phase, pool.phase_sleepers, phase, BARRIER_AWAKE_NS);
  pthread_mutex_unlock(&turn);
}

void barrier(int tid, int nth) {
  const int phase = arrive(tid, nth);
  if (nth > 1) await_change(pool.phase, pool.phase_sleepers, phase, BARRIER_AWAKE_NS);
}

int64_t claim(int tid, int nth, int64_t count, int loop) {
  const int parity = load(pool.phase) & 1;
  for (int i = 0; i < nth; ++i) {
    const int owner = tid + i < nth ? tid + i : tid + i - nth;
    const int64_t start = count * owner / nth, end = count * (owner + 1) / nth;
    int64_t* next = &pool.claims[owner].next[parity][loop];
    // Looking first keeps the line shared once a range is used up.
    if (__atomic_load_n(next, __ATOMIC_RELAXED) >= end - start) continue;
    const int64_t piece = start + __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
    if (piece < end) return piece;
  }
  return -1;
}

void* own_scratch(int tid, Slot slot, int64_t bytes) { return grown(pool.own[tid][slot], bytes); }

void* shared_scratch(Slot slot) { return pool.shared[slot].data; }

int threads() { return pool.size; }

}  // namespace kvasir

// What Python calls. Changing the number of threads waits for the region that runs.
KVASIR_API int kvasir_pool_start(int wanted) {
  pthread_mutex_lock(&kvasir::turn);
  const int started = kvasir::start_locked(wanted);
  pthread_mutex_unlock(&kvasir::turn);
  return started;
}

KVASIR_API int kvasir_pool_threads() { return kvasir::threads(); }
