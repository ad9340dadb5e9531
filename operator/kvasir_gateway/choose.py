"""Chooses the endpoints of one request: the least cost in seconds, bounded, from readings and own in-flight counts.

Called by the picker once per request, never per token. Knows no clock, no addresses' meaning and no Kubernetes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Reason = Literal["only", "cheapest", "tie", "bounded", "blind"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a pod said of itself. age_s: seconds since it was true; the speeds are 0 while nothing was measured."""

    age_s: float
    running: int = 0
    waiting: int = 0
    waiting_uncached_tokens: int = 0
    prefill_tokens_per_s: float = 0.0
    decode_step_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One endpoint that may be chosen.

    inflight: requests that this gateway forwarded there and that have not ended. recent, recent_tokens: those of them,
    and their estimated prompt tokens, that its reading cannot know yet. reading: None when there is none to trust.
    """

    address: str
    inflight: int = 0
    recent: int = 0
    recent_tokens: int = 0
    reading: Reading | None = None

    @property
    def requests(self) -> int:
        """Requests there, by whoever knows more: the pod (from all gateways) or this gateway."""
        said = self.reading.running + self.reading.waiting + self.recent if self.reading else 0
        return max(self.inflight, said)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Numbers of the choice.

    load_factor: no endpoint gets more than this times the mean of requests, plus one, while another one can be taken.
    fresh_s: age up to which a reading costs nothing; every second beyond it is a second of cost, since a pod that does
    not answer may be in a long step. tie_fraction: costs this close are equal. prefill_tokens_per_s, decode_step_s:
    speeds assumed before any was measured. max_endpoints: length of the list, for retries.
    """

    load_factor: float = 1.25
    fresh_s: float = 1.0
    tie_fraction: float = 0.05
    prefill_tokens_per_s: float = 1000.0
    decode_step_s: float = 0.05
    max_endpoints: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Addresses in order of preference, best first, and why the first one."""

    addresses: tuple[str, ...]
    reason: Reason
    message: str


def choose(candidates: Sequence[Candidate], *, prompt_tokens: int, policy: Policy, seed: int) -> Choice:
    """Order the endpoints for one request.

    prompt_tokens: an estimate, since the gateway has no tokenizer. seed: any non-negative number; it breaks ties.
    Endpoints without a reading come last. Raises ValueError for no candidates: the caller answers 503 instead.
    """
    if not candidates:
        raise ValueError("no candidates to choose from")
    known = [c for c in candidates if c.reading is not None]
    blind = sorted((c for c in candidates if c.reading is None), key=lambda c: c.inflight)
    if not known:
        return _blind(blind, policy, seed)
    costs = {c.address: _cost_s(c, prompt_tokens, policy) for c in known}
    limit = policy.load_factor * (sum(c.requests for c in known) + 1) / len(known) + 1
    ranked = sorted(known, key=lambda c: (c.requests + 1 > limit, costs[c.address]))
    within = [c for c in ranked if c.requests + 1 <= limit]
    near = [c for c in within if costs[c.address] <= costs[within[0].address] * (1 + policy.tie_fraction) + 1e-6]
    first = _lighter_of_two(near, seed)
    cheapest = min(costs.values())
    if len(candidates) == 1:
        reason: Reason = "only"
    elif costs[within[0].address] > cheapest:
        reason = "bounded"
    else:
        reason = "tie" if len(near) > 1 else "cheapest"
    message = (
        f"{first.address} costs {costs[first.address]:.3f} s with {first.requests} requests; "
        f"cheapest of {len(candidates)} is {cheapest:.3f} s, at most {limit:.1f} requests each"
    )
    rest = [c for c in (*ranked, *blind) if c is not first]
    return Choice(addresses=_addresses([first, *rest], policy), reason=reason, message=message)


def _blind(blind: list[Candidate], policy: Policy, seed: int) -> Choice:
    least = [c for c in blind if c.inflight == blind[0].inflight]
    first = _lighter_of_two(least, seed)
    rest = [c for c in blind if c is not first]
    message = f"no endpoint of {len(blind)} has a reading; {first.address} has {first.inflight} requests of ours"
    return Choice(addresses=_addresses([first, *rest], policy), reason="blind", message=message)


def _cost_s(candidate: Candidate, prompt_tokens: int, policy: Policy) -> float:
    """Seconds until the prompt is computed, plus one round of single tokens of everybody beside it."""
    reading = candidate.reading
    assert reading is not None
    prefill = reading.prefill_tokens_per_s or policy.prefill_tokens_per_s
    step_s = reading.decode_step_s or policy.decode_step_s
    queued_tokens = reading.waiting_uncached_tokens + candidate.recent_tokens + prompt_tokens
    beside = reading.running + reading.waiting + candidate.recent
    return queued_tokens / prefill + beside * step_s + max(0.0, reading.age_s - policy.fresh_s)


def _lighter_of_two(candidates: list[Candidate], seed: int) -> Candidate:
    """Power of two choices: of two drawn ones that with fewer requests, so that gateways do not all pick the same."""
    count = len(candidates)
    if count == 1:
        return candidates[0]
    one = seed % count
    other = (one + 1 + seed // count % (count - 1)) % count
    return min(candidates[one], candidates[other], key=lambda c: c.requests)


def _addresses(ordered: list[Candidate], policy: Policy) -> tuple[str, ...]:
    return tuple(c.address for c in ordered[: policy.max_endpoints])
