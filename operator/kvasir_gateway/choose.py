"""Chooses the endpoints of one request by the least cost in seconds, from the pods' readings and own in-flight counts.

Called by the picker once per request, never per token. Knows no clock, no Kubernetes and not what an address means.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Reason = Literal["only", "cheapest", "tie", "bounded", "no_reading"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointLoad:
    """The load that a pod reported. age_s: seconds since then; the speeds are 0 before a first measurement."""

    age_s: float
    running: int = 0
    waiting: int = 0
    waiting_uncached_tokens: int = 0
    prefill_tokens_per_s: float = 0.0
    decode_step_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One endpoint that may be chosen.

    inflight: requests that this gateway forwarded there and that have not ended. recent, recent_tokens: those of them
    that are newer than the load, and their estimated prompt tokens. load: None without a fresh reading of a ready pod.
    """

    address: str
    inflight: int = 0
    recent: int = 0
    recent_tokens: int = 0
    load: EndpointLoad | None = None

    @property
    def requests(self) -> int:
        """Requests at the endpoint: the larger of the pod's count (of all gateways) and this gateway's."""
        reported = self.load.running + self.load.waiting + self.recent if self.load else 0
        return max(self.inflight, reported)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicePolicy:
    """Parameters of the choice.

    load_factor: an endpoint gets at most this times the mean of requests, plus one, while another one is below that.
    fresh_s: age up to which a reading costs nothing; every second beyond it is a second of cost, since a pod that does
    not answer may be in a long step. tie_fraction: costs this close are equal. prefill_tokens_per_s, decode_step_s:
    speeds assumed before a first measurement. max_endpoints: length of the list, for retries.
    """

    load_factor: float = 1.25
    fresh_s: float = 1.0
    tie_fraction: float = 0.05
    prefill_tokens_per_s: float = 1000.0
    decode_step_s: float = 0.05
    max_endpoints: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointChoice:
    """Addresses in order of preference, best first, and why the first one was chosen."""

    addresses: tuple[str, ...]
    reason: Reason


def choose(candidates: Sequence[Candidate], *, prompt_tokens: int, policy: ChoicePolicy, seed: int) -> EndpointChoice:
    """Order the endpoints for one request.

    prompt_tokens: an estimate, since the gateway has no tokenizer. seed: any non-negative number; it breaks ties.
    Endpoints without a load come last. Raises ValueError for no candidates: the caller answers 503 instead.
    """
    if not candidates:
        raise ValueError("no candidates to choose from")
    known = [c for c in candidates if c.load is not None]
    unread = sorted((c for c in candidates if c.load is None), key=lambda c: c.inflight)
    if not known:
        return _without_readings(unread, policy, seed)
    costs = {c.address: _cost_s(c, prompt_tokens, policy) for c in known}
    limit = policy.load_factor * (sum(c.requests for c in known) + 1) / len(known) + 1
    ranked = sorted(known, key=lambda c: (c.requests + 1 > limit, costs[c.address]))
    within = [c for c in ranked if c.requests + 1 <= limit]
    near = [c for c in within if costs[c.address] <= costs[within[0].address] * (1 + policy.tie_fraction) + 1e-6]
    first = _lighter_of_two(near, seed)
    if len(candidates) == 1:
        reason: Reason = "only"
    elif costs[within[0].address] > min(costs.values()):
        reason = "bounded"
    else:
        reason = "tie" if len(near) > 1 else "cheapest"
    rest = [c for c in (*ranked, *unread) if c is not first]
    return EndpointChoice(addresses=_addresses([first, *rest], policy), reason=reason)


def _without_readings(unread: list[Candidate], policy: ChoicePolicy, seed: int) -> EndpointChoice:
    least = [c for c in unread if c.inflight == unread[0].inflight]
    first = _lighter_of_two(least, seed)
    rest = [c for c in unread if c is not first]
    return EndpointChoice(addresses=_addresses([first, *rest], policy), reason="no_reading")


def _cost_s(candidate: Candidate, prompt_tokens: int, policy: ChoicePolicy) -> float:
    """Seconds until the prompt is computed, plus one decode step for every request beside it."""
    load = candidate.load
    assert load is not None
    prefill = load.prefill_tokens_per_s or policy.prefill_tokens_per_s
    step_s = load.decode_step_s or policy.decode_step_s
    queued_tokens = load.waiting_uncached_tokens + candidate.recent_tokens + prompt_tokens
    beside = load.running + load.waiting + candidate.recent
    return queued_tokens / prefill + beside * step_s + max(0.0, load.age_s - policy.fresh_s)


def _lighter_of_two(candidates: list[Candidate], seed: int) -> Candidate:
    """Power of two choices: the one with fewer requests of two drawn by seed, so that gateways spread their picks."""
    count = len(candidates)
    if count == 1:
        return candidates[0]
    one = seed % count
    other = (one + 1 + seed // count % (count - 1)) % count
    return min(candidates[one], candidates[other], key=lambda c: c.requests)


def _addresses(ordered: list[Candidate], policy: ChoicePolicy) -> tuple[str, ...]:
    return tuple(c.address for c in ordered[: policy.max_endpoints])
