"""The signals: how many replicas the load needs, each as an absolute number, never as a factor on what runs.

kv, slots, itl   tokens to be decoded per second over what a replica decodes with as many sequences as its KV cache, its
                 slots, or the objective between two tokens allow, beside the prompts that it computes; and no fewer
                 replicas than what runs now occupies. Fewer replicas have larger batches and slower steps: what a
                 replica decodes in a full batch is known from the steps, so that this is no guess. While sequences lose
                 their cache to others, or some have waited for a minute and nothing else needs as much, kv is one
                 replica more than there are.
prefill          prompt tokens to be computed per second over the rate of a replica, at the utilization that the
                 objective for the first token leaves, three quarters at most
ttft             waiting prompt tokens that have to be computed within the objective for the first token
backlog          what arrives, with full replicas, and what will wait, in pods or at gateways, when a replica that is
                 added now is ready, within the horizon
The largest determines the count. A request enters a signal once: as a part of the rate, or as one that runs or waits.
"""

from collections.abc import Callable
from math import ceil, floor
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from kvasir_operator.scaling.capacity import ReplicaCapacity, replicas
from kvasir_operator.scaling.policy import ScalingPolicy
from kvasir_operator.scaling.window import LoadSample
from kvasir_operator.scaling.workload import Workload

Signal = Literal["kv", "slots", "prefill", "itl", "ttft", "backlog"]
SIGNALS: Final[tuple[Signal, ...]] = ("kv", "slots", "prefill", "itl", "ttft", "backlog")
ALLOCATOR_FRACTION: Final = 0.90
"""Of the cache: what a full allocator can use."""
PREFILL_FRACTION: Final = 0.75
"""Of the measured rate, which is that of steps without much decoding beside."""
LEAST_PREFILL_FRACTION: Final = 0.30
LEAST_WAIT_S: Final = 0.25
STEADY_POINTS: Final = 0.15
LEAST_SLACK_S: Final = 10.0
"""What an objective has to leave after a start, for a queue to be served within it."""
DRAINED_S: Final = 30.0
"""So long what the present replicas have to spare drains a queue; a load that grows leaves less."""
LEAST_GAIN: Final = 0.05
"""Share of a step by which one replica more has to shorten it, where the objective cannot be reached."""
EPSILON: Final = 1e-6
Part = Callable[[ReplicaCapacity], float]
"""A part of a replica's capacity, in the unit of a load."""


class DemandEdge(NamedTuple):
    """How much of a replica may be used. fraction: of its cache and slots now. target: the same of a batch whose rate
    is known, of which rate may be used; rate, too, of the prefill rate and of the objectives."""

    fraction: float
    target: float
    rate: float = 1.0


def target_edge(policy: ScalingPolicy) -> DemandEdge:
    """Above it replicas are added."""
    return DemandEdge(fraction=policy.target_fraction, target=policy.target_fraction)


def release_edge(policy: ScalingPolicy) -> DemandEdge:
    """Below it, with one fewer, a replica is removed: further down by the ratio of the two edges of the cache."""
    ratio = policy.release_fraction / policy.target_fraction
    return DemandEdge(fraction=policy.release_fraction, target=policy.target_fraction, rate=ratio)


def steady_edge(policy: ScalingPolicy) -> DemandEdge:
    """Below it for long, with one fewer, a replica is removed too: STEADY_POINTS above the release edge, at most the
    target."""
    fraction = min(policy.target_fraction, policy.release_fraction + STEADY_POINTS)
    return DemandEdge(
        fraction=fraction, target=policy.target_fraction, rate=min(1.0, fraction / policy.target_fraction)
    )


class ComingReplicas(NamedTuple):
    """start_s: until a replica that is added now is ready. begun_s: seconds for which those that are on their way have
    been starting, added up, each for start_s at most."""

    start_s: float = 0.0
    begun_s: float = 0.0


NONE_COMING: Final = ComingReplicas()


class Demand(Struct, frozen=True, kw_only=True):
    """Replicas by signal, as fractions. known: whether the capacity of any replica was read. replicas: whole ones that
    the signals require; signal: which of them requires most, of equal ones the first. load: of what was read; each: the
    capacity of the next replica. lost: ready replicas that have been silent for long, of which nothing is expected.
    itl_unreachable: no number of replicas reaches the objective between two tokens."""

    known: bool
    replicas: int = 0
    signal: Signal = "kv"
    levels: dict[Signal, float] = {}
    load: Workload = Workload()
    each: ReplicaCapacity = ReplicaCapacity()
    edge: float = 0.0
    lost: int = 0
    itl_unreachable: bool = False

    @property
    def level(self) -> float:
        """What that signal requires."""
        return self.levels.get(self.signal, 0.0)


def demand(
    last: LoadSample | None,
    load: Workload,
    policy: ScalingPolicy,
    edge: DemandEdge,
    coming: ComingReplicas = NONE_COMING,
) -> Demand:
    """Demand at one edge: the target when asking whether to add, the release when asking whether to remove.

    last: the newest sample; load: of the window that ends with it. coming: what is on its way, when asking whether
    to add.
    """
    if last is None or not last.typical.kv_tokens:
        return Demand(known=False)
    prompts = _computing(last, load.prompt_rate)
    levels: dict[Signal, float] = {
        "kv": max(
            _present(last, load, edge, load.running_kv, load.usual_kv, _usable),
            _flow(last, load, prompts, lambda c: edge.target * _kv_batch(load, c)) / edge.rate,
        ),
        "slots": max(
            _present(last, load, edge, load.running, load.usual_running, lambda c: c.slots),
            _flow(last, load, prompts, lambda c: edge.target * c.slots) / edge.rate,
        ),
        "prefill": _prefill(last, load, policy, edge),
    }
    unreachable = _itl_unreachable(load, policy)
    if unreachable:
        levels["itl"] = _itl_helped(load, edge)
    elif policy.itl_s:
        levels["itl"] = _itl(last, load, prompts, policy.itl_s * edge.rate, edge)
    if policy.ttft_s:
        levels["ttft"] = _ttft(last, load, policy, edge)
    if (load.waiting or coming.start_s) and (backlog := _backlog(last, load, policy, coming)):
        levels["backlog"] = backlog
    if load.exhausted or (load.stuck and levels["kv"] == max(levels.values()) <= len(last.supply)):
        # What was measured of requests says that they fit, and they do not: one replica more, then another look.
        levels["kv"] = max(levels["kv"], len(last.supply) + 1.0)
    signal = max(levels, key=levels.__getitem__)  # they are in the order of SIGNALS
    return Demand(
        known=True,
        replicas=ceil(levels[signal] - EPSILON) + len(last.lost),
        signal=signal,
        levels=levels,
        load=load,
        each=last.typical,
        edge=edge.fraction,
        lost=len(last.lost),
        itl_unreachable=unreachable,
    )


def _needed(last: LoadSample, amount: float, part: Part) -> float:
    return replicas(amount, last.supply, last.typical, part)


def _present(last: LoadSample, load: Workload, edge: DemandEdge, now: float, usual: float, part: Part) -> float:
    """Replicas that what runs occupies, entirely now, and up to the edge usually, beside those that compute prompts for
    them. While a queue is drained the present replicas are meant to be full, which is no reason for more."""
    if load.queued:
        return min(float(len(last.supply)), last.prefill + _needed(last, now, part))
    return last.prefill + max(
        _needed(last, now, lambda c: edge.rate * part(c)), _needed(last, usual, lambda c: edge.fraction * part(c))
    )


def _usable(c: ReplicaCapacity) -> float:
    """Tokens of the cache that a full allocator can use."""
    return ALLOCATOR_FRACTION * c.kv_tokens


def _kv_batch(load: Workload, c: ReplicaCapacity) -> float:
    """Requests that the cache holds; 0 where it is not known how much one pins."""
    return _usable(c) / load.kv_tokens if load.kv_tokens else 0.0


def _flow(last: LoadSample, load: Workload, prompts: float, batch: Part) -> float:
    """Replicas for the rate of arrivals, where each has so many requests at once and computes their prompts beside.
    prompts: replicas that would compute these and nothing else."""
    return _decoding(last, load, load.arrivals_per_s, batch) + prompts


def _decoding(last: LoadSample, load: Workload, requests: float, batch: Part) -> float:
    """Replicas that decode so many requests per second in such batches."""

    def served_per_s(c: ReplicaCapacity) -> float:
        most = batch(c)
        # Where no step was measured a request is taken to stay as long as it does now, whatever the batch.
        each_s = load.output_tokens * load.step.step_s(most) or load.seconds
        return most / each_s if each_s else 0.0

    return _needed(last, requests, served_per_s)


def _computing(last: LoadSample, tokens: float) -> float:
    """Replicas that compute so many prompt tokens per second and nothing else."""
    return _needed(last, tokens, lambda c: c.prefill_tokens_per_s)


def _prefill(last: LoadSample, load: Workload, policy: ScalingPolicy, edge: DemandEdge) -> float:
    """At a utilization at which a prompt waits as long as the objective allows: ρ/(1−ρ) prompts, as in an M/M/1
    queue."""

    def tokens_per_s(c: ReplicaCapacity) -> float:
        rate, used = c.prefill_tokens_per_s, PREFILL_FRACTION
        if policy.ttft_s and rate and load.prompt_tokens:
            service_s = load.prompt_tokens / rate
            slack_s = max(LEAST_WAIT_S, policy.ttft_s - service_s)
            used = min(PREFILL_FRACTION, max(LEAST_PREFILL_FRACTION, slack_s / (slack_s + service_s)))
        return used * edge.rate * rate

    return _needed(last, load.prompt_rate, tokens_per_s)


def _itl(last: LoadSample, load: Workload, prompts: float, step_s: float, edge: DemandEdge) -> float:
    """Replicas whose steps are short enough. Prompts take their share of the time, which makes steps so much longer."""
    supply = max(1, len(last.supply))
    share = 1 - min(PREFILL_FRACTION, prompts / supply)
    most = load.step.batch_within(step_s * share)
    if not most:
        return 0.0
    if not load.step.slope_s:
        return load.running / most
    return _flow(last, load, prompts, lambda _: most) / edge.target


def _itl_unreachable(load: Workload, policy: ScalingPolicy) -> bool:
    """Whether a sequence alone, without prompts beside it, takes longer than the objective by measured steps."""
    return bool(policy.itl_s) and load.step.varied and load.step.step_s(1.0) > policy.itl_s


def _itl_helped(load: Workload, edge: DemandEdge) -> float:
    """Replicas up to which one more shortens steps by LEAST_GAIN.

    A replica that decodes t tokens per second has batches b of t·step(b) sequences: steps of base / (1 − slope·t).
    """
    busy = load.step.slope_s * load.arrivals_per_s * load.output_tokens / edge.rate
    count = floor(busy) + 1
    most = count + ceil(1 / LEAST_GAIN)  # so many beyond what is busy are enough for any load
    # As (1 − busy / count) / (1 − busy / (count + 1)), which of a large load has no digits left.
    while count < most and (count - busy) * (count + 1) < (1 - LEAST_GAIN) * count * (count + 1 - busy):
        count += 1
    return float(count)


def _ttft(last: LoadSample, load: Workload, policy: ScalingPolicy, edge: DemandEdge) -> float:
    """Replicas that compute what waits within the objective, or within a cold start where that is longer: before, no
    new one helps. 0 where the present ones are done by then."""
    rate = last.typical.prefill_tokens_per_s
    if not rate:
        return 0.0
    slack_s = max(LEAST_WAIT_S, policy.ttft_s * edge.rate - load.prompt_tokens / rate)
    needed = load.waiting_tokens / (rate * max(slack_s, policy.cold_start_s))
    return needed if needed > len(last.supply) else 0.0


def _backlog(last: LoadSample, load: Workload, policy: ScalingPolicy, coming: ComingReplicas) -> float:
    """Full replicas for what arrives and, within the horizon, for what will wait when a replica that is added now is
    ready: what waits now and what comes until then, less what the present ones and those on their way serve. What
    replicas refuse does not wait. 0 where nothing will."""
    horizon_s = _horizon(policy)
    arriving = _full(last, load, requests_per_s=load.arrivals_per_s, tokens_per_s=load.prompt_rate)
    waiting_s = 0.0
    if load.waiting:
        both = _full(
            last,
            load,
            requests_per_s=load.arrivals_per_s + load.waiting / horizon_s,
            tokens_per_s=load.prompt_rate + load.waiting_tokens / horizon_s,
        )
        waiting_s = horizon_s * (both - arriving)
    admitted = arriving
    if load.refused_per_s:
        admitted_per_s = max(0.0, load.arrivals_per_s - load.refused_per_s)
        admitted = _full(last, load, requests_per_s=admitted_per_s, tokens_per_s=admitted_per_s * load.prompt_tokens)
    excess = admitted - len(last.supply)
    left_s = waiting_s + excess * (coming.start_s if excess > 0 else min(coming.start_s, DRAINED_S)) - coming.begun_s
    return arriving + left_s / horizon_s if left_s > 0 else 0.0


def _horizon(policy: ScalingPolicy) -> float:
    """Seconds within which a queue is to be served: those that an objective leaves after a start, where it leaves
    enough."""
    slack_s = policy.ttft_s - policy.cold_start_s
    return min(policy.horizon_s, slack_s) if slack_s >= LEAST_SLACK_S else policy.horizon_s


def _full(last: LoadSample, load: Workload, *, requests_per_s: float, tokens_per_s: float) -> float:
    """Full replicas that serve so many requests and compute so many prompt tokens."""
    batches: tuple[Part, ...] = (lambda c: _kv_batch(load, c), lambda c: c.slots)
    return _computing(last, tokens_per_s) + max(_decoding(last, load, requests_per_s, batch) for batch in batches)
