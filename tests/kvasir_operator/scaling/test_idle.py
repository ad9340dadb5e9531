"""To zero and back: when the last replica leaves, what starts the first one, and how many a crowd of requests needs."""

import pytest
from msgspec.structs import replace

from kvasir_api.autoscaling import Autoscaling
from kvasir_api.state import KvState, RequestTotals, RuntimeState, ServiceDemand
from kvasir_operator.scaling.capacity import ReplicaCapacity
from kvasir_operator.scaling.decide import ScalingState
from kvasir_operator.scaling.idle import replica_floor
from kvasir_operator.scaling.last_known import LastKnown
from kvasir_operator.scaling.policy import ScalingPolicy
from kvasir_operator.scaling.tick import TickInputs, tick
from kvasir_operator.scaling.window import EMPTY, LoadWindow, ScaledReplica
from kvasir_operator.scaling.workload import Workload

SPEC = Autoscaling(min_replicas=0, max_replicas=8, idle_seconds=300)
EACH = ReplicaCapacity(kv_tokens=60_000, slots=64, prefill_tokens_per_s=6_000)


@pytest.mark.parametrize(
    ("least", "wanted", "requested_at", "since", "ttft_s", "cold_start_s", "expected"),
    [
        (2, 0, 999.0, 0.0, 0.0, 0.0, (2, "floor")),
        (0, 1, 701.0, 0.0, 0.0, 40.0, (1, "activity")),
        (0, 1, 700.0, 0.0, 0.0, 40.0, (0, "idle")),
        # its time begins when it can take requests
        (0, 1, 0.0, 701.0, 0.0, 40.0, (1, "activity")),
        (0, 0, 0.0, 999.0, 0.0, 40.0, (0, "idle")),
        (0, 0, 999.0, 0.0, 0.0, 40.0, (1, "activity")),
        # an objective that no start meets keeps one, and a start that meets it does not
        (0, 1, 0.0, 0.0, 39.0, 40.0, (1, "reserve")),
        (0, 1, 0.0, 0.0, 41.0, 40.0, (0, "idle")),
        (0, 1, 0.0, 0.0, 40.5, 40.0, (1, "reserve")),  # its prompt takes a second
        (0, 0, 0.0, 0.0, 39.0, 40.0, (0, "idle")),
    ],
)
def test_the_fewest_replicas(least, wanted, requested_at, since, ttft_s, cold_start_s, expected):
    rules = ScalingPolicy(min_replicas=least, idle_s=300, ttft_s=ttft_s, cold_start_s=cold_start_s)
    window = LoadWindow(known=LastKnown(requested_at=requested_at, capacity=EACH))
    load = Workload(prompt_tokens=6_000)
    found = replica_floor(rules, window, load, wanted=wanted, since=since, now=1000.0)
    assert (found.replicas, found.why) == expected


def replace_spec(**changes):
    return SPEC.model_copy(update=changes)


class Service:
    """Ticks of one service; pods and gateways say what a test makes them say."""

    def __init__(self, wanted, spec=SPEC, expected=EACH):
        self.spec, self.now, self.window = spec, 0.0, EMPTY
        self.state = ScalingState(wanted=wanted, since=0.0)
        self.inputs = TickInputs(at=0.0, expected=expected)

    def ticks(self, seconds, **said):
        """The last decision of so many seconds."""
        self.inputs = replace(self.inputs, **said)
        for _ in range(seconds // 2):
            self.now += 2
            result = tick(self.spec, self.window, self.state, replace(self.inputs, at=self.now), by_hand=1)
            self.window, self.state = result.window, result.state
        return result.decision


def serving(**fields):
    """One pod that takes requests."""
    kv = KvState(capacity_tokens=60_000)
    return (ScaledReplica(uid="a", name="a", reading=RuntimeState(phase="ready", kv=kv, max_sequences=64, **fields)),)


def gateway(**fields):
    return (ServiceDemand(namespace="default", name="service", **fields),)


def told(decision):
    return decision.replicas, decision.signal, decision.limited_by


def test_all_replicas_leave_together_idle_seconds_after_the_last_request():
    one = Service(3)
    one.ticks(60, pods=serving(running=1))
    assert told(one.ticks(298, pods=serving()))[0] >= 1
    assert told(one.ticks(4)) == (0, "idle", "idle")
    assert one.ticks(600, pods=()).message == "0 replicas: no request came within spec.autoscaling.idleSeconds"


def test_a_replica_that_takes_long_to_start_has_all_of_its_idle_seconds():
    one = Service(1)
    assert told(one.ticks(900))[0] == 1
    assert told(one.ticks(298, pods=serving()))[0] == 1
    assert told(one.ticks(4))[0] == 0


@pytest.mark.parametrize("how", ["pod", "gateway", "lost"])
def test_silence_is_no_idleness(how):
    silent = {
        "pod": {"pods": (replace(serving()[0], fresh=False),)},
        "gateway": {"missing_gateways": ("gw",)},
        "lost": {"pods": (*serving(), replace(serving()[0], uid="b", name="b", fresh=False))},
    }[how]
    one = Service(1)
    one.ticks(10, pods=serving())
    assert told(one.ticks(900 if how == "gateway" else 600, **silent))[0] == 1


@pytest.mark.parametrize(
    "request_", [{"held": 1, "held_bytes": 400}, {"last_request_age_s": 0.4}, {"inflight": 1}], ids=str
)
def test_a_request_that_is_held_or_was_refused_starts_one(request_):
    one = Service(0)
    assert told(one.ticks(60))[0] == 0
    decision = one.ticks(2, gateways=gateway(**request_))
    assert decision.replicas == 1
    # The client has given up: the replica has its idle seconds all the same, and then leaves.
    assert one.ticks(100, gateways=()).replicas == 1
    assert told(one.ticks(298, pods=serving()))[0] == 1
    assert told(one.ticks(6))[0] == 0


def test_an_old_request_starts_none_when_the_operator_restarts():
    assert Service(0).ticks(60, gateways=gateway(last_request_age_s=301.0)).replicas == 0


def test_two_hundred_held_requests_are_computed_once():
    """Requests ran for 20 s, so that one of 64 slots serves 3.2 in a second; 200 within 60 s need 1.04, and prompts."""
    one = Service(1)
    busy = RequestTotals(arrivals=300, completions=300, uncached_prompt_tokens=30_000, generation_tokens=90_000)
    one.ticks(2, pods=serving())
    one.ticks(100, pods=serving(running=60, totals=busy))
    assert one.ticks(700, pods=serving(totals=busy)).replicas == 0
    one.ticks(7200, pods=())
    crowd = gateway(held=200, held_bytes=400 * 200)
    counts = [one.ticks(2, gateways=crowd).replicas for _ in range(20)]
    assert set(counts) == {2}
    # The pods are ready, and have all of them: what was held is no stream of new requests.
    many = RequestTotals(arrivals=100)
    pods = tuple(replace(serving(running=64, waiting=36, totals=many)[0], uid=u, name=u) for u in "bc")
    empty = tuple(replace(serving()[0], uid=u, name=u) for u in "bc")
    one.ticks(2, pods=empty)
    assert {one.ticks(2, pods=pods, gateways=()).replicas for _ in range(20)} == {2}


def test_without_knowledge_one_replica_starts():
    crowd = gateway(held=200, held_bytes=80_000)
    one = Service(0, expected=ReplicaCapacity())
    assert told(one.ticks(2, gateways=crowd)) == (1, "activity", "activity")
    assert one.ticks(60).replicas == 1


def test_paused_at_zero_stays_there():
    paused = Autoscaling(mode="Paused", min_replicas=0)
    assert Service(0, paused).ticks(60, gateways=gateway(held=3)).replicas == 0


def test_another_autoscaler_reads_one_while_a_request_keeps_or_starts_a_replica():
    """In mode External the count is by_hand, and raw is what an HPA or KEDA scales by."""
    one = Service(1, Autoscaling(mode="External", min_replicas=0, max_replicas=8, idle_seconds=300))
    assert one.ticks(298, pods=serving()).raw == 1
    assert one.ticks(4).raw == 0
    assert one.ticks(2, gateways=gateway(last_request_age_s=0.4)).raw == 1


@pytest.mark.parametrize(("least", "raw"), [(0, 1), (1, 0), (3, 0)])
def test_a_bound_is_no_demand(least, raw):
    """Only what minReplicas 0 keeps for requests is: a bound limits the count apart."""
    assert Service(3, replace_spec(min_replicas=least)).ticks(60, pods=serving()).raw == raw
