"""A runtime pod, step by step: a queue, a KV cache of pieces with LRU eviction, prompts in chunks beside decoding.

It reports what a runtime reports, with the rates that a runtime would measure, so that the gateway's code reads it as a
real one. Requests are admitted while the cache will hold all that run to their ends, as in the runtime
(`core/kv_peak`), whose forecast of lengths is here what they will be: nothing is preempted.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import exp
from typing import Final

from kvasir_api.prefix_digest import WHOLE, PrefixSet
from kvasir_api.state import KvState, MeasuredRates, PrefixDigest, RequestTotals, RuntimeState, TtftForecast

PIECE_TOKENS: Final = 64
"""Of a piece of route hashes: 256 bytes of text."""
MEMORY_S: Final = 10.0
"""Of the rates that a runtime measures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSpeed:
    """Qwen3-32B on two H100 by default: the prefill rate that llm-d measured, and a cache of what 0.9 of 160 GB holds
    beside the weights, at 262,144 bytes per token."""

    prefill_tokens_per_s: float = 15_928.0
    step_base_s: float = 0.020
    step_slope_s: float = 0.00015
    chunk_tokens: int = 2048
    kv_tokens: int = 286_000
    slots: int = 256


@dataclass(slots=True, kw_only=True)
class PodRequest:
    """pieces: of the prompt; answer: pieces that its answer will have. output: tokens of the answer.

    left: prompt tokens to compute; hits: pieces found in the cache. at, first_at, ended_at: seconds, -1 before.
    """

    number: int
    at: float
    pieces: tuple[bytes, ...]
    answer: tuple[bytes, ...]
    output: int
    left: float = 0.0
    hits: int = 0
    first_at: float = -1.0
    ended_at: float = -1.0


@dataclass(slots=True)
class PieceCache:
    """Blocks of the device by piece; those that no request holds are evicted, the one used longest ago first.

    own_tokens: of answers in the making. noted: pieces of prompts, which the digest lists.
    """

    capacity: int
    own_tokens: int = 0
    pins: dict[bytes, int] = field(default_factory=dict)
    idle: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    noted: PrefixSet = field(default_factory=PrefixSet)
    changed: list[bytes] = field(default_factory=list)

    def hits(self, pieces: Sequence[bytes]) -> int:
        """Leading pieces that are there."""
        for count, piece in enumerate(pieces):
            if piece not in self.pins and piece not in self.idle:
                return count
        return len(pieces)

    def room_tokens(self, pieces: Sequence[bytes]) -> int:
        """For answers, beside the prompts that requests hold and another one."""
        return PIECE_TOKENS * (self.capacity - len(self.pins) - sum(piece not in self.pins for piece in pieces))

    def take(self, pieces: Sequence[bytes]) -> None:
        """Hold the pieces of a prompt."""
        for piece in pieces:
            self.idle.pop(piece, None)
            self.pins[piece] = self.pins.get(piece, 0) + 1
            if piece not in self.noted.hashes:
                self._note(piece)
        self._evict()

    def grow(self, tokens: int) -> None:
        """Answers are so much longer."""
        self.own_tokens += tokens
        self._evict()

    def release(self, pieces: Sequence[bytes], answer: Sequence[bytes], tokens: int) -> None:
        """A request has ended, with an answer of so many tokens: what it computed stays while there is room, its
        beginning longest."""
        self.own_tokens -= tokens
        for piece in reversed(answer):
            if piece not in self.pins:
                self.idle[piece] = None
        for piece in reversed(pieces):
            self.pins[piece] -= 1
            if not self.pins[piece]:
                del self.pins[piece]
                self.idle[piece] = None
        self._evict()

    def _evict(self) -> None:
        while self.idle and len(self.pins) + len(self.idle) > self.capacity - self.own_tokens // PIECE_TOKENS:
            piece, _ = self.idle.popitem(last=False)
            if piece in self.noted.hashes:
                self._note(piece)

    def _note(self, piece: bytes) -> None:
        self.noted.toggle(piece)
        self.changed.append(piece)


class SimulatedPod:
    """One pod. address: as the gateway knows it. now: the end of its last step."""

    def __init__(self, address: str, speed: PodSpeed) -> None:
        self.address, self.speed = address, speed
        self.cache = PieceCache(speed.kv_tokens // PIECE_TOKENS)
        self.waiting: deque[PodRequest] = deque()
        self._prompts: deque[PodRequest] = deque()
        self._decoding: list[tuple[int, int, PodRequest]] = []
        self._steps = self._sequence = 0
        self._arrivals = self._completions = self._uncached = self._generated = 0
        self._stall, self._stall_weight, self._leaving_per_s, self._left_at = 0.0, 0.0, 0.0, 0.0

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not (self.waiting or self._prompts or self._decoding)

    def submit(self, request: PodRequest) -> None:
        """A request arrives."""
        request.left = PIECE_TOKENS * (len(request.pieces) - self.cache.hits(request.pieces))
        self._arrivals += 1
        self._uncached += int(request.left)
        self.waiting.append(request)

    def step(self, now: float) -> float:
        """Begin a step; when it ends. 0 tokens are computed of nothing."""
        self._admit()
        speed, rows = self.speed, len(self._decoding)
        budget, computed = speed.chunk_tokens - rows, 0.0
        while self._prompts and budget > 0:
            request = self._prompts[0]
            tokens = min(float(budget), request.left)
            request.left -= tokens
            budget, computed = budget - int(tokens), computed + tokens
            if request.left > 0:
                break
            self._prompts.popleft()
            heappush(self._decoding, (self._steps + request.output, request.number, request))
        decode_s = speed.step_base_s + speed.step_slope_s * rows
        elapsed_s = max(speed.step_base_s, computed / speed.prefill_tokens_per_s) + speed.step_slope_s * rows
        if computed and rows:
            keep = exp(-elapsed_s / MEMORY_S)
            self._stall = keep * self._stall + elapsed_s - decode_s
            self._stall_weight = keep * self._stall_weight + elapsed_s
        return now + elapsed_s

    def collect(self, now: float) -> list[PodRequest]:
        """The step has ended: each sequence has a token more. Those that ended."""
        self._steps += 1
        self.cache.grow(len(self._decoding))
        self._generated += len(self._decoding)
        ended: list[PodRequest] = []
        for _, _, request in self._decoding:
            if request.first_at < 0:
                request.first_at = now
        while self._decoding and self._decoding[0][0] <= self._steps:
            request = heappop(self._decoding)[2]
            request.ended_at = now
            self.cache.release(request.pieces, request.answer, request.output)
            self._completions += 1
            ended.append(request)
            keep = exp(-(now - self._left_at) / MEMORY_S)
            self._leaving_per_s, self._left_at = self._leaving_per_s * keep + 1 / MEMORY_S, now
        return ended

    def state(self, instance: str) -> RuntimeState:
        """The document that a runtime would serve."""
        speed, rows = self.speed, len(self._decoding)
        waiting_tokens = sum(request.left for request in self.waiting)
        left = sum(request.left for request in self._prompts)
        step_s = speed.step_base_s + speed.step_slope_s * rows
        queue_s = (waiting_tokens + left) / speed.prefill_tokens_per_s + step_s
        if self.waiting and self._leaving_per_s > 0:
            queue_s = max(queue_s, (len(self.waiting) + 1) / self._leaving_per_s)
        return RuntimeState(
            model="m",
            instance=instance,
            kv=KvState(
                capacity_tokens=speed.kv_tokens,
                pinned_tokens=min(speed.kv_tokens, PIECE_TOKENS * len(self.cache.pins) + self.cache.own_tokens),
                cached_tokens=PIECE_TOKENS * len(self.cache.idle),
            ),
            phase="ready",
            device=f"{speed.prefill_tokens_per_s:g} tokens/s",
            running=len(self._prompts) + rows,
            waiting=len(self.waiting),
            waiting_uncached_tokens=int(waiting_tokens),
            max_sequences=speed.slots,
            ttft=TtftForecast(queue_s=queue_s),
            totals=RequestTotals(
                arrivals=self._arrivals,
                completions=self._completions,
                uncached_prompt_tokens=self._uncached,
                generation_tokens=self._generated,
            ),
            rates=MeasuredRates(
                prefill_tokens_per_s=speed.prefill_tokens_per_s if self._uncached else 0.0,
                decode_step_s=step_s if self._generated else 0.0,
                decode_slope_s=speed.step_slope_s if self._generated else 0.0,
                stall_fraction=self._stall / self._stall_weight if self._stall_weight else 0.0,
            ),
        )

    def changed_pieces(self) -> list[bytes]:
        """What came and went since the last call, for readings."""
        changed, self.cache.changed = self.cache.changed, []
        return changed

    def _admit(self) -> None:
        while self.waiting and len(self._prompts) + len(self._decoding) < self.speed.slots:
            request = self.waiting[0]
            if not self._fits(request):
                return
            self.waiting.popleft()
            request.hits = min(self.cache.hits(request.pieces), max(0, len(request.pieces) - 1))
            request.left = float(PIECE_TOKENS * (len(request.pieces) - request.hits))
            self.cache.take(request.pieces)
            self._prompts.append(request)

    def _fits(self, request: PodRequest) -> bool:
        """Whether all that run fit to their ends beside a request; one that would run alone does."""
        room = self.cache.room_tokens(request.pieces)
        lengths = [(end - self._steps, each.output) for end, _, each in self._decoding]
        lengths += [(each.output, each.output) for each in (request, *self._prompts)]
        if len(lengths) == 1 or self.cache.own_tokens + len(lengths) * max(lengths)[0] <= room:
            return True
        held = 0
        for count, (rest, output) in enumerate(sorted(lengths, reverse=True), 1):
            held += output - rest
            if held + count * rest > room:
                return False
        return True


@dataclass(slots=True)
class DigestLog:
    """The changes of a pod's digest, for several readers at their own numbers."""

    pod: SimulatedPod
    changes: list[bytes] = field(default_factory=list)

    def digest(self, after: int) -> PrefixDigest:
        """As a runtime answers a reader that names `after`."""
        self.changes += self.pod.changed_pieces()
        held, odd = self.pod.cache.noted, dict[bytes, None]()
        for piece in self.changes[after:] if after != WHOLE else ():
            if piece in odd:
                del odd[piece]
            else:
                odd[piece] = None
        added = held.hashes if after == WHOLE else [piece for piece in odd if piece in held.hashes]
        return PrefixDigest(
            sequence=len(self.changes),
            entries=len(held.hashes),
            checksum=held.checksum,
            after=after,
            added=b"".join(added),
            removed=b"" if after == WHOLE else b"".join(piece for piece in odd if piece not in held.hashes),
        )
