"""Chooses the endpoints of one request by the least cost in seconds, from what the pods measured and what they hold.

Called once per request, never per token. Knows no clock, no Kubernetes and not what an address means. The cost and the
rule for copies are our own: its first terms hold LMetric (OSDI 2026) and llm-d's token load as special cases. What each
request needs of each endpoint is a msgspec.Struct: a dataclass takes ten times as long to make and to replace.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from statistics import median
from typing import Final, Literal, get_args

import msgspec
from msgspec import structs

from kvasir_gateway.queue_room import NO_BOUNDS, QueueRoom

Strategy = Literal["cost", "least-load", "round-robin"]
STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)
Reason = Literal["only", "cheapest", "tie", "copy", "session", "least_load", "turn", "no_reading"]

MEMORY_S: Final = 30.0
"""Over which the load of a pod is remembered, and beyond which no request is taken to delay another."""
MOST_COST_S: Final = 1e9
"""In place of a cost that is larger, or no number of seconds."""
_SPEEDS: Final = ("prefill_tokens_per_s", "stall_fraction", "decode_slope_s")
"""As EndpointLoad and ChoicePolicy have them."""


class EndpointLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod reported and measured; a speed is 0 before a first measurement.

    kind: of device and kernels; pods of one kind are equally fast. age_s: seconds since the report. queue_s: seconds to
    the first token of a request that has nothing to compute, -1 where the pod does not know. arrivals_per_s,
    busy_fraction: over the last MEMORY_S, of requests and of the time in which their prompts are computed. room: of its
    queue.
    """

    kind: str = ""
    age_s: float = 0.0
    running: int = 0
    waiting: int = 0
    waiting_uncached_tokens: int = 0
    queue_s: float = -1.0
    prefill_tokens_per_s: float = 0.0
    stall_fraction: float = 0.0
    decode_slope_s: float = 0.0
    max_sequences: int = 0
    arrivals_per_s: float = 0.0
    busy_fraction: float = 0.0
    room: QueueRoom = NO_BOUNDS


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint that may be chosen.

    inflight: requests that this gateway forwarded there and that have not ended. recent, recent_tokens: those of all
    gateways that are newer than the load, and their tokens that had to be computed. cached_tokens: of the prompt, that
    the pod holds. rent_s: what keeping requests with this prefix together has cost so far. sent_s, cold_s: when the pod
    got a prompt last, and one that it did not hold. load: None without a fresh reading of a ready pod.
    """

    address: str
    inflight: int = 0
    recent: int = 0
    recent_tokens: float = 0.0
    cached_tokens: float = 0.0
    rent_s: float = 0.0
    sent_s: float = float("-inf")
    cold_s: float = float("-inf")
    load: EndpointLoad | None = None

    @property
    def requests(self) -> int:
        """Requests at the endpoint: the larger of the pod's count (of all gateways) and this gateway's."""
        reported = self.load.running + self.load.waiting + self.recent if self.load else 0
        return max(self.inflight, reported)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSize:
    """prompt_tokens, output_tokens: estimates, since the gateway has no tokenizer. session: of the client, "" for
    none; turn: how many requests the service got before. gateway: number of this one among those that choose.
    num_sequences: that the request generates at once."""

    prompt_tokens: float
    output_tokens: float = 0.0
    session: str = ""
    turn: int = 0
    gateway: int = 0
    num_sequences: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicePolicy:
    """Parameters of the choice.

    fresh_s: age up to which a reading costs nothing; every second beyond it is a second of cost, since a pod that does
    not answer may be in a long step. tie_fraction: costs this close are equal. prefill_tokens_per_s, stall_fraction,
    decode_slope_s, output_tokens: assumed where no pod of the service has measured them. max_endpoints: length of the
    list, for retries.
    """

    strategy: Strategy = "cost"
    fresh_s: float = 2.0
    tie_fraction: float = 0.05
    prefill_tokens_per_s: float = 1000.0
    stall_fraction: float = 1.0
    decode_slope_s: float = 0.001
    output_tokens: float = 256.0
    max_endpoints: int = 4


class EndpointCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one endpoint in seconds, by terms.

    wait_s: until the prompt's turn. compute_s: of what is not cached. stall_s: put on sequences that run. decode_s: by
    which this answer and theirs are slower beside each other. later_s: by which requests that come later will wait for
    the computation. silence_s: beyond which the pod did not report.
    """

    address: str
    uncached_tokens: float
    wait_s: float
    compute_s: float
    stall_s: float
    decode_s: float
    later_s: float
    silence_s: float

    @property
    def total_s(self) -> float:
        """All terms, 0..MOST_COST_S."""
        total_s = self.wait_s + self.compute_s + self.stall_s + self.decode_s + self.later_s + self.silence_s
        return total_s if 0 <= total_s <= MOST_COST_S else MOST_COST_S


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointChoice:
    """Addresses in order of preference, best first, and why the first one was chosen.

    costs: of every endpoint with a reading, in that order; empty where costs do not decide. uncached_tokens: that the
    first one has to compute. is_cold: that is most of the prompt. rented: the endpoint whose prefix keeps requests
    together, and what that has cost so far. full: endpoints whose queues would refuse the request; is_saturated: all
    that have a reading.
    """

    addresses: tuple[str, ...]
    reason: Reason
    uncached_tokens: float = 0.0
    is_cold: bool = False
    rented: tuple[str, float] | None = None
    costs: tuple[EndpointCost, ...] = ()
    full: frozenset[str] = frozenset()
    is_saturated: bool = False

    @property
    def has_alternative(self) -> bool:
        """Whether another endpoint may take the request where the first one refuses it."""
        return len(self.addresses) > 1 and self.addresses[1] not in self.full


def choose(
    candidates: Sequence[Candidate], request: RequestSize, *, policy: ChoicePolicy, seed: int = 0
) -> EndpointChoice:
    """Order the endpoints for one request: those whose queues take it before those that would refuse it.

    seed: any non-negative number; it breaks ties. Endpoints without a load come last. Raises ValueError for no
    candidates: the caller answers 503 instead.
    """
    if not candidates:
        raise ValueError("no candidates to choose from")
    known = [c for c in candidates if c.load is not None]
    unread = sorted((c for c in candidates if c.load is None), key=lambda c: c.inflight)
    full = [c.address for c in known if not has_room(c, request, policy)]
    if not full:
        return _choice(known, unread, request, policy, seed)
    choice = _choice([c for c in known if c.address not in full] or known, unread, request, policy, seed)
    addresses = tuple(dict.fromkeys([*choice.addresses, *full]))[: policy.max_endpoints]
    return replace(choice, addresses=addresses, full=frozenset(full), is_saturated=len(full) == len(known))


def num_taken(load: EndpointLoad, num_sequences: int) -> int:
    """Sequences that a request with so many counts as at an endpoint: 1 where even an empty one refuses it for them."""
    bound = load.room.most_requests
    return num_sequences if bound <= 0 or num_sequences <= load.max_sequences + bound else 1


def has_room(candidate: Candidate, request: RequestSize, policy: ChoicePolicy) -> bool:
    """Whether an endpoint's queue takes a request, as far as its bounds are known. One with more sequences than fit
    into an empty one has nothing to wait for."""
    load = candidate.load
    if load is None or load.room.has_no_bounds:
        return True
    requests = load.running + load.waiting + candidate.recent + num_taken(load, request.num_sequences) - 1
    if load.room.takes_any(requests):
        return True
    cost = _cost(candidate, request, policy)
    return load.room.takes(
        requests=requests,
        tokens=load.waiting_uncached_tokens + candidate.recent_tokens + cost.uncached_tokens,
        wait_s=cost.wait_s,
        first_token_s=cost.wait_s + cost.compute_s,
    )


def _choice(
    known: list[Candidate], unread: list[Candidate], request: RequestSize, policy: ChoicePolicy, seed: int
) -> EndpointChoice:
    """By the session, else by the strategy."""
    candidates = [*known, *unread]
    if request.session:
        return _by_session(known or unread, candidates, request, policy)
    if policy.strategy == "round-robin":
        return _in_turn(known or unread, candidates, request, policy)
    if not known:
        first = _one_of([c for c in unread if c.inflight == unread[0].inflight], seed)
        return _chosen(first, unread, request, policy, "no_reading")
    if policy.strategy == "least-load":
        ranked = sorted(known, key=lambda c: c.requests)
        first = _one_of([c for c in ranked if c.requests == ranked[0].requests], seed)
        return _chosen(first, [*ranked, *unread], request, policy, "least_load")
    return _by_cost(known, unread, request, policy, seed)


def cost_of(
    candidate: Candidate, request: RequestSize, *, uncached_tokens: float, policy: ChoicePolicy
) -> EndpointCost:
    """What a request costs at an endpoint that has a load, in seconds: for itself, and for others there.

    With u uncached tokens, R sequences there, and the pod's own prefill rate V, stall fraction s and slope b: the wait,
    u/V, s*R*u/V, and 2*b*O*R for O output tokens. Those who come later wait for u/V more each; there are as many as
    arrive until the queue is empty again, which takes (wait + u/V) / (1 - busy) in a queue with one server.
    """
    load = candidate.load
    assert load is not None
    rate = load.prefill_tokens_per_s or policy.prefill_tokens_per_s
    beside = load.running + load.waiting + candidate.recent
    beside = min(beside, load.max_sequences) if load.max_sequences else beside
    queued_s = load.waiting_uncached_tokens / rate
    if load.running or load.waiting:
        queued_s = max(queued_s, load.queue_s)
    wait_s, compute_s = queued_s + candidate.recent_tokens / rate, uncached_tokens / rate
    free = 1.0 - load.busy_fraction
    until_empty_s = min(MEMORY_S, (wait_s + compute_s) / free) if free > 0 else MEMORY_S
    return EndpointCost(
        address=candidate.address,
        uncached_tokens=uncached_tokens,
        wait_s=wait_s,
        compute_s=compute_s,
        stall_s=load.stall_fraction * beside * compute_s,
        decode_s=2 * load.decode_slope_s * request.output_tokens * beside,
        later_s=compute_s * load.arrivals_per_s * until_empty_s,
        silence_s=max(0.0, load.age_s - policy.fresh_s),
    )


def with_speeds(known: Sequence[Candidate], policy: ChoicePolicy) -> list[Candidate]:
    """Pods of one kind are equally fast: what each measured also depends on what it happened to compute, and cold
    prompts would all go to the one that measured most. known: those with a load."""
    loads = [c.load for c in known if c.load is not None]
    by_kind = {
        kind: {name: _speed(name, kind, loads, policy) for name in _SPEEDS} for kind in {load.kind for load in loads}
    }
    return [
        structs.replace(candidate, load=structs.replace(load, **by_kind[load.kind]))
        for candidate, load in zip(known, loads, strict=True)
    ]


def _by_cost(
    known: list[Candidate], unread: list[Candidate], request: RequestSize, policy: ChoicePolicy, seed: int
) -> EndpointChoice:
    known = with_speeds(known, policy)
    costs = {c.address: _cost(c, request, policy) for c in known}
    ranked = sorted(known, key=lambda c: costs[c.address].total_s)
    most_s = costs[ranked[0].address].total_s * (1 + policy.tie_fraction) + 1e-6
    near = [c for c in ranked if costs[c.address].total_s <= most_s]
    first = _longest_ago(near, request, seed)
    reason: Reason = "only" if len(known) + len(unread) == 1 else "tie" if len(near) > 1 else "cheapest"
    other, rent_s = _copied(first, known, costs, request, policy)
    rented = (first.address, rent_s) if first.cached_tokens and len(known) > 1 else None
    if other is not None:
        first, reason = other, "copy"
    choice = _chosen(first, [*ranked, *unread], request, policy, reason)
    return replace(choice, rented=rented, costs=tuple(costs[c.address] for c in ranked))


def _longest_ago(near: list[Candidate], request: RequestSize, seed: int) -> Candidate:
    """Of equals one of those that hold the most: that which got a cold prompt longest ago where this is one, else any.
    Of those the second gateway takes the next, so that gateways that choose at once do not choose alike; where a prompt
    is cold they should."""
    most = max(c.cached_tokens for c in near)
    holders = [c for c in near if c.cached_tokens == most]
    is_cold = 2 * most < request.prompt_tokens
    since = {c.address: c.cold_s if is_cold else c.sent_s for c in holders}
    moment = sorted(since.values())[0 if is_cold else request.gateway % len(since)]
    return _one_of([c for c in holders if since[c.address] == moment], seed)


def _copied(
    first: Candidate,
    known: list[Candidate],
    costs: dict[str, EndpointCost],
    request: RequestSize,
    policy: ChoicePolicy,
) -> tuple[Candidate | None, float]:
    """The endpoint that shall compute the prefix too, or None; and what staying with its holder has cost by now.

    Rent or buy: staying costs what the holder is slower than the others would be on average if they held it as well;
    less than nothing where it is quicker. When the sum reaches the price of the copy, it is made, once (the rule of
    Karlin et al. 1988). The best of the others instead of their mean would make every busy holder copy.
    """
    lacking = [c for c in known if c.cached_tokens < first.cached_tokens]
    if not lacking:
        return None, first.rent_s
    uncached = _uncached(first, request)
    held = {c.address: cost_of(c, request, uncached_tokens=uncached, policy=policy).total_s for c in lacking}
    excess_s = costs[first.address].total_s - sum(held.values()) / len(held)
    rent_s = max(0.0, first.rent_s + excess_s)
    best = min(lacking, key=lambda c: (held[c.address], c.cold_s))
    price_s = costs[best.address].total_s - held[best.address]
    if excess_s <= 0 or rent_s < price_s:
        return None, rent_s
    return best, 0.0


def _speed(name: str, kind: str, loads: Sequence[EndpointLoad], policy: ChoicePolicy) -> float:
    """The median of what pods of a kind measured, so that one of several cannot shift it; where none did, of all."""
    measured = [(load.kind, value) for load in loads if (value := getattr(load, name)) > 0]
    values = [value for of_kind, value in measured if of_kind == kind] or [value for _, value in measured]
    assumed: float = getattr(policy, name)
    return median(values) if values else assumed


def _cost(candidate: Candidate, request: RequestSize, policy: ChoicePolicy) -> EndpointCost:
    return cost_of(candidate, request, uncached_tokens=_uncached(candidate, request), policy=policy)


def _uncached(candidate: Candidate, request: RequestSize) -> float:
    """At least one token is computed, or there is nothing to sample from."""
    return max(1.0, request.prompt_tokens - candidate.cached_tokens)


def _by_session(
    among: list[Candidate], candidates: Sequence[Candidate], request: RequestSize, policy: ChoicePolicy
) -> EndpointChoice:
    """The same endpoint for the same session, at every gateway (rendezvous hashing, Thaler and Ravishankar 1998): when
    one leaves, its sessions alone move."""
    ranked = sorted(among, key=_rank(request.session), reverse=True)
    reason: Reason = "session" if len(candidates) > 1 else "only"
    return _chosen(ranked[0], [*ranked, *candidates], request, policy, reason)


def _rank(session: str) -> Callable[[Candidate], bytes]:
    return lambda c: blake2b(f"{c.address}\0{session}".encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _in_turn(
    among: list[Candidate], candidates: Sequence[Candidate], request: RequestSize, policy: ChoicePolicy
) -> EndpointChoice:
    ordered = sorted(among, key=lambda c: c.address)
    start = request.turn % len(ordered)
    ranked = [*ordered[start:], *ordered[:start]]
    reason: Reason = "turn" if len(candidates) > 1 else "only"
    return _chosen(ranked[0], [*ranked, *candidates], request, policy, reason)


def _one_of(candidates: list[Candidate], seed: int) -> Candidate:
    """The one with fewer requests of two that are drawn by seed, so that gateways spread what they forward."""
    count = len(candidates)
    if count == 1:
        return candidates[0]
    one = seed % count
    other = (one + 1 + seed // count % (count - 1)) % count
    return min(candidates[one], candidates[other], key=lambda c: c.requests)


def _chosen(
    first: Candidate, ranked: list[Candidate], request: RequestSize, policy: ChoicePolicy, reason: Reason
) -> EndpointChoice:
    addresses = dict.fromkeys([first.address, *(c.address for c in ranked)])
    uncached = _uncached(first, request)
    return EndpointChoice(
        addresses=tuple(addresses)[: policy.max_endpoints],
        reason=reason,
        uncached_tokens=uncached,
        is_cold=2 * uncached > request.prompt_tokens,
    )
