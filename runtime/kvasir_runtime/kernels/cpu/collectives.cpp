// Sums, gathers and broadcasts between the processes that compute one model together, through memory that all of them map.
//
// The memory is a head and, for each process (rank), two slots of SLOT bytes. Every operation is a row of exchanges: each
// rank writes a piece to its slot, raises its count, waits until all have raised theirs, and reads what it needs. Exchanges
// use the two slots in turn: a rank that writes a slot again has seen all counts of the exchange between, so no rank still
// reads what the slot held. All ranks must call the same operations in the same order.
//
// Sums are in the order of the ranks, so every rank gets the same bits.
//
// A pipe is the same memory with PIPE_SLOTS slots, through which rank 0 sends in one direction: it writes the next piece
// while others still read those before, and waits only for the slot of a piece that some rank has not read yet.
#include "isa.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <cstdint>

namespace {

constexpr int64_t SLOT = 256 << 10;
constexpr int64_t HEAD = 4096;
constexpr int64_t PIPE_SLOTS = 16;  // a power of two, so that counts may wrap
constexpr int MAX_RANKS = 32;
// As in pool.cpp: never by sched_yield. The others are in the same operation, unless they wait for a core.
constexpr int64_t AWAKE_NS = 50'000;
constexpr int64_t LOOK_NS = 100'000'000;  // how often a sleeper looks whether the group was aborted
constexpr int ABORTED = -1;

struct alignas(64) Word {
  int value;
};

struct Group {
  Word aborted;
  Word sleepers;
  Word arrived[MAX_RANKS];
};
static_assert(sizeof(Group) <= HEAD);

struct Member {
  Group* group;
  int rank, ranks;

  char* slot(int of) const {
    const int64_t parity = group->arrived[rank].value & 1;  // of this rank: no other rank writes it
    return reinterpret_cast<char*>(group) + HEAD + (parity * ranks + of) * SLOT;
  }
};

int load(const Word& word) { return __atomic_load_n(&word.value, __ATOMIC_SEQ_CST); }

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

// Not private: the word is in the memory of several processes.
void wake(Word& word) { syscall(SYS_futex, &word.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

void sleep_on(Word& word, int seen) {
  const timespec look = {0, LOOK_NS};
  syscall(SYS_futex, &word.value, FUTEX_WAIT, seen, &look, nullptr, 0);
}

bool behind(const Word& word, int wanted) { return static_cast<int>(static_cast<unsigned>(load(word)) - static_cast<unsigned>(wanted)) < 0; }

bool await(Group& group, Word& word, int wanted) {
  int64_t deadline = 0;
  do {
    for (int i = 0; i < 64; ++i) {
      if (!behind(word, wanted)) return true;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    if (!deadline) deadline = now_ns() + AWAKE_NS;
  } while (now_ns() < deadline);
  // Raised before this thread sleeps and read behind each change, so that no wake-up is lost.
  __atomic_add_fetch(&group.sleepers.value, 1, __ATOMIC_SEQ_CST);
  bool arrived = false;
  for (;;) {
    const int seen = load(word);
    arrived = static_cast<int>(static_cast<unsigned>(seen) - static_cast<unsigned>(wanted)) >= 0;
    if (arrived || load(group.aborted)) break;
    sleep_on(word, seen);
  }
  __atomic_sub_fetch(&group.sleepers.value, 1, __ATOMIC_SEQ_CST);
  return arrived;
}

// Ends one exchange; what all ranks wrote may be read after it, from the slots that `slot` gave before.
bool exchanged(const Member& member) {
  Group& group = *member.group;
  Word& own = group.arrived[member.rank];
  const int wanted = static_cast<int>(static_cast<unsigned>(own.value) + 1u);
  __atomic_store_n(&own.value, wanted, __ATOMIC_SEQ_CST);
  if (load(group.sleepers)) wake(own);
  for (int of = 0; of < member.ranks; ++of) {
    if (of != member.rank && !await(group, group.arrived[of], wanted)) return false;
  }
  return !load(group.aborted);
}

float widened(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  __builtin_memcpy(&value, &wide, 4);
  return value;
}

uint16_t rounded(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);  // a NaN stays one
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void add_up(float* out, char* const* slots, int ranks, int64_t count) {
  __builtin_memcpy(out, slots[0], count * 4);
  for (int of = 1; of < ranks; ++of) {
    const float* part = reinterpret_cast<const float*>(slots[of]);
    for (int64_t i = 0; i < count; ++i) out[i] += part[i];
  }
}

// In float32, rounded once.
void add_up(uint16_t* out, char* const* slots, int ranks, int64_t count) {
  constexpr int64_t TILE = 256;
  float sums[TILE];
  for (int64_t first = 0; first < count; first += TILE) {
    const int64_t size = count - first < TILE ? count - first : TILE;
    for (int of = 0; of < ranks; ++of) {
      const uint16_t* part = reinterpret_cast<const uint16_t*>(slots[of]) + first;
      for (int64_t i = 0; i < size; ++i) sums[i] = (of ? sums[i] : 0.0f) + widened(part[i]);
    }
    for (int64_t i = 0; i < size; ++i) out[first + i] = rounded(sums[i]);
  }
}

template <class Number>
int all_reduce(const Member& member, Number* data, int64_t count) {
  constexpr int64_t most = SLOT / static_cast<int64_t>(sizeof(Number));
  for (int64_t first = 0; first < count; first += most) {
    const int64_t size = count - first < most ? count - first : most;
    char* slots[MAX_RANKS];
    for (int of = 0; of < member.ranks; ++of) slots[of] = member.slot(of);
    __builtin_memcpy(slots[member.rank], data + first, size * sizeof(Number));
    if (!exchanged(member)) return ABORTED;
    add_up(data + first, slots, member.ranks, size);
  }
  return 0;
}

}  // namespace

KVASIR_API int64_t kvasir_group_bytes(int ranks) { return ranks > MAX_RANKS ? 0 : HEAD + 2 * ranks * SLOT; }

// data becomes the sum of all ranks' data. type: 0 float32, 1 bfloat16. Like all of these 0, or -1 once aborted.
KVASIR_API int kvasir_group_all_reduce(void* memory, int rank, int ranks, void* data, int64_t count, int type) {
  const Member member = {static_cast<Group*>(memory), rank, ranks};
  if (type == 1) return all_reduce(member, static_cast<uint16_t*>(data), count);
  return all_reduce(member, static_cast<float*>(data), count);
}

// out: `bytes` of each rank, one after another, or null for a rank that needs none.
KVASIR_API int kvasir_group_gather(void* memory, int rank, int ranks, const void* data, int64_t bytes, void* out) {
  const Member member = {static_cast<Group*>(memory), rank, ranks};
  for (int64_t first = 0; first < bytes; first += SLOT) {
    const int64_t size = bytes - first < SLOT ? bytes - first : SLOT;
    char* slots[MAX_RANKS];
    for (int of = 0; of < ranks; ++of) slots[of] = member.slot(of);
    __builtin_memcpy(slots[rank], static_cast<const char*>(data) + first, size);
    if (!exchanged(member)) return ABORTED;
    for (int of = 0; out && of < ranks; ++of) {
      __builtin_memcpy(static_cast<char*>(out) + of * bytes + first, slots[of], size);
    }
  }
  return 0;
}

// data: read at rank 0, written at the others.
KVASIR_API int kvasir_group_broadcast(void* memory, int rank, int ranks, void* data, int64_t bytes) {
  const Member member = {static_cast<Group*>(memory), rank, ranks};
  for (int64_t first = 0; first < bytes; first += SLOT) {
    const int64_t size = bytes - first < SLOT ? bytes - first : SLOT;
    char* const slot = member.slot(0);
    if (rank == 0) __builtin_memcpy(slot, static_cast<char*>(data) + first, size);
    if (!exchanged(member)) return ABORTED;
    if (rank != 0) __builtin_memcpy(static_cast<char*>(data) + first, slot, size);
  }
  return 0;
}

KVASIR_API int64_t kvasir_pipe_slot_bytes() { return SLOT; }
KVASIR_API int64_t kvasir_pipe_slots() { return PIPE_SLOTS; }
KVASIR_API int64_t kvasir_pipe_bytes(int ranks) { return ranks > MAX_RANKS ? 0 : HEAD + PIPE_SLOTS * SLOT; }

// As kvasir_group_broadcast, but rank 0 goes on as soon as there is room for what it sends.
KVASIR_API int kvasir_pipe_pass(void* memory, int rank, int ranks, void* data, int64_t bytes) {
  Group& group = *static_cast<Group*>(memory);
  Word& own = group.arrived[rank];
  for (int64_t first = 0; first < bytes; first += SLOT) {
    const int64_t size = bytes - first < SLOT ? bytes - first : SLOT;
    const unsigned number = static_cast<unsigned>(own.value);
    char* const slot = static_cast<char*>(memory) + HEAD + number % PIPE_SLOTS * SLOT;
    char* const piece = static_cast<char*>(data) + first;
    if (rank == 0) {
      for (int of = 1; of < ranks; ++of) {
        if (!await(group, group.arrived[of], static_cast<int>(number + 1 - PIPE_SLOTS))) return ABORTED;
      }
      __builtin_memcpy(slot, piece, size);
    } else {
      if (!await(group, group.arrived[0], static_cast<int>(number + 1))) return ABORTED;
      __builtin_memcpy(piece, slot, size);
    }
    __atomic_store_n(&own.value, static_cast<int>(number + 1), __ATOMIC_SEQ_CST);
    if (load(group.sleepers)) wake(own);
    if (load(group.aborted)) return ABORTED;
  }
  return 0;
}

// From now on every operation of every rank ends with -1.
KVASIR_API void kvasir_group_abort(void* memory, int ranks) {
  Group& group = *static_cast<Group*>(memory);
  __atomic_store_n(&group.aborted.value, 1, __ATOMIC_SEQ_CST);
  for (int of = 0; of < ranks; ++of) wake(group.arrived[of]);
}
