"""A queueing model of one pod: a queue for slots and KV cache, prompts computed in order, decode shared by all.

It reports the same `/state` document as a runtime, so that the autoscaler reads it as it reads a real one. A step of
decode takes base + slope × sequences; prompts take a fixed rate, and most of the time where both are to be done, as a
scheduler with chunks does. Sequences that no longer fit lose their blocks and are computed again.
"""

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from kvasir_api.state import DecodeTotals, KvState, MeasuredRates, RequestTotals, RuntimeState, ServedTotals
from kvasir_operator.simulation.traffic import SimulatedRequest

PREFILL_SHARE: Final = 0.75
"""Of the time, while there are both prompts and sequences to decode."""
ADMITTED_FRACTION: Final = 0.95
"""Of the cache that may be in use after a request is admitted."""
PREFIXES: Final = 64
"""Shared prefixes that a pod keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodProfile:
    """What a pod is capable of, and how long it takes to start. max_waiting: requests that may wait; further ones are
    refused; 0 sets no bound."""

    kv_tokens: int = 200_000
    slots: int = 256
    prefill_tokens_per_s: float = 15_928.0
    step_base_s: float = 0.020
    step_slope_s: float = 0.00015
    max_model_len: int = 32_768
    cold_start_s: float = 120.0
    max_waiting: int = 0

    def step_s(self, sequences: float) -> float:
        """Seconds in which each sequence gets one token."""
        return self.step_base_s + self.step_slope_s * sequences


@dataclass(slots=True)
class ActiveRequest:
    """A request at a pod. left: prompt tokens to compute; held: tokens in the cache; clock: of the pod when its first
    token was there; first_at, ended_at: seconds, -1 before. tries: how often it was sent again."""

    request: SimulatedRequest
    since: float = 0.0
    left: float = 0.0
    held: int = 0
    clock: float = 0.0
    done: int = 0
    first_at: float = -1.0
    ended_at: float = -1.0
    tries: int = 0


class PodModel:
    """One pod. created, ready_at: seconds. draining: it takes no new requests."""

    def __init__(self, number: int, profile: PodProfile, *, created: float, ready_at: float) -> None:
        self.name, self.number, self.profile = f"pod-{number}", number, profile
        self.created, self.ready_at, self.draining = created, ready_at, False
        self.waiting: deque[ActiveRequest] = deque()
        self._prompts: deque[ActiveRequest] = deque()
        self._decoding: list[tuple[float, int, ActiveRequest]] = []
        self._prefixes: dict[int, None] = {}
        self._clock = self._held = self._starts = 0.0
        self._waiting_tokens = 0
        self._arrivals = self._completions = self._prompt_tokens = self._preemptions = self._aborts = 0
        self._query_tokens = self._hit_tokens = self._refused = self._retried = 0
        self._was_queued = False
        self._kv_token_s = self._steps = self._step_s = self._rows = 0.0

    def ready(self, now: float) -> bool:
        """Whether it takes requests."""
        return now >= self.ready_at and not self.draining

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return len(self._prompts) + len(self._decoding)

    @property
    def load(self) -> int:
        """Requests at the pod."""
        return self.running + len(self.waiting)

    @property
    def pinned(self) -> float:
        """Tokens in the cache that requests hold."""
        return self._held + len(self._decoding) * self._clock - self._starts

    @property
    def has_room(self) -> bool:
        """Whether its queue takes one more, as a runtime counts it between two snapshots."""
        places = self.running if self._was_queued else self.profile.slots
        return not self.profile.max_waiting or self.load + 1 - places <= self.profile.max_waiting

    def submit(self, active: ActiveRequest, *, is_retry: bool = False) -> bool:
        """Put a request into the queue; False where that is full. is_retry: it says that it was sent before."""
        self._retried += is_retry
        if not self.has_room:
            self._refused += 1
            return False
        request = active.request
        hit = request.shared if request.group in self._prefixes else 0
        if request.group >= 0:
            self._prefixes.pop(request.group, None)
            self._prefixes[request.group] = None
            if len(self._prefixes) > PREFIXES:
                del self._prefixes[next(iter(self._prefixes))]
        active.left = request.prompt + active.done - hit
        active.held = request.prompt + active.done - hit
        self._arrivals += 1
        self._prompt_tokens += int(active.left)
        self._query_tokens += request.prompt
        self._hit_tokens += hit
        self._waiting_tokens += int(active.left)
        self.waiting.append(active)
        return True

    def handed_back(self) -> list[ActiveRequest]:
        """What has not begun, which another pod can do instead; this one takes nothing more."""
        self.draining = True
        given, self.waiting = list(self.waiting), deque()
        self._waiting_tokens = 0
        self._aborts += len(given)
        return given

    def advance(self, now: float, seconds: float) -> list[ActiveRequest]:
        """Work for a while; requests that ended."""
        self._admit(now)
        busy_s = self._prefill(now, seconds)
        ended = self._decode(now, seconds - busy_s)
        while self.pinned > self.profile.kv_tokens and len(self._decoding) > 1:
            self._preempt()
        self._admit(now + seconds)
        self._was_queued = bool(self.waiting)
        return ended

    def state(self) -> RuntimeState:
        """The document that a runtime would serve."""
        profile, pinned = self.profile, min(round(self.pinned), self.profile.kv_tokens)
        return RuntimeState(
            model="simulated",
            phase="draining" if self.draining else "ready",
            kv=KvState(capacity_tokens=profile.kv_tokens, pinned_tokens=pinned, free_tokens=profile.kv_tokens - pinned),
            running=self.running,
            waiting=len(self.waiting),
            waiting_uncached_tokens=self._waiting_tokens,
            max_sequences=profile.slots,
            max_model_len=profile.max_model_len,
            totals=RequestTotals(
                arrivals=self._arrivals,
                completions=self._completions,
                aborts=self._aborts,
                uncached_prompt_tokens=self._prompt_tokens,
                prefix_query_tokens=self._query_tokens,
                prefix_hit_tokens=self._hit_tokens,
                preemptions=self._preemptions,
                generation_tokens=int(self._rows),
                kv_token_seconds=round(self._kv_token_s, 3),
            ),
            served=ServedTotals(refused=self._refused, retried=self._retried),
            rates=MeasuredRates(
                prefill_tokens_per_s=profile.prefill_tokens_per_s if self._prompt_tokens else 0.0,
                decode_step_s=profile.step_s(len(self._decoding)) if self._decoding else 0.0,
            ),
            decoded=DecodeTotals(steps=int(self._steps), seconds=round(self._step_s, 6), rows=int(self._rows)),
        )

    def _admit(self, now: float) -> None:
        room = ADMITTED_FRACTION * self.profile.kv_tokens
        while self.waiting and self.running < self.profile.slots:
            active = self.waiting[0]
            if self.running and self.pinned + active.held > room:
                return
            self.waiting.popleft()
            self._waiting_tokens -= int(active.left)
            active.since = max(now, active.request.at)
            self._held += active.held
            self._prompts.append(active)

    def _prefill(self, now: float, seconds: float) -> float:
        """Compute prompts in order; the seconds that this took of the whole."""
        share = PREFILL_SHARE if self._decoding else 1.0
        budget_s, used_s, rate = share * seconds, 0.0, self.profile.prefill_tokens_per_s
        while self._prompts and used_s < budget_s:
            active = self._prompts[0]
            took_s = min(budget_s - used_s, active.left / rate)
            used_s, active.left = used_s + took_s, active.left - took_s * rate
            if active.left > 1e-6:
                break
            self._prompts.popleft()
            if active.first_at < 0:
                active.first_at = now + used_s / share
            active.clock = self._clock
            self._starts += self._clock
            heappush(self._decoding, (self._clock + active.request.output - active.done, active.request.number, active))
        return used_s

    def _decode(self, now: float, seconds: float) -> list[ActiveRequest]:
        ended: list[ActiveRequest] = []
        left_s = seconds
        while self._decoding and left_s > 1e-9:
            sequences = len(self._decoding)
            step_s = self.profile.step_s(sequences)
            tokens = min(left_s / step_s, max(0.0, self._decoding[0][0] - self._clock))
            self._clock += tokens
            left_s -= tokens * step_s
            self._steps, self._step_s = self._steps + tokens, self._step_s + tokens * step_s
            self._rows += tokens * sequences
            while self._decoding and self._decoding[0][0] <= self._clock + 1e-9:
                active = heappop(self._decoding)[2]
                active.ended_at = now + seconds - left_s
                self._leave(active)
                self._completions += 1
                grown = self._clock - active.clock
                self._kv_token_s += (active.ended_at - active.since) * (active.held + grown / 2)
                ended.append(active)
        return ended

    def _leave(self, active: ActiveRequest) -> None:
        self._held -= active.held
        self._starts -= active.clock

    def _preempt(self) -> None:
        """The sequence that began last loses its blocks, and comes first again."""
        entry = max(self._decoding, key=lambda e: (e[2].clock, e[1]))
        self._decoding.remove(entry)
        active = entry[2]
        self._decoding.sort()
        self._leave(active)
        active.done += int(self._clock - active.clock)
        active.left = active.held = active.request.prompt + active.done
        self._preemptions += 1
        self._waiting_tokens += int(active.left)
        self.waiting.appendleft(active)
