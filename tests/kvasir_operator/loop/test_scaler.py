"""What status and events tell of the autoscaler: the message is about now, the decisions are about the changes."""

import json

import pytest

from fakes.clock import FakeClock
from fakes.cluster import FakeCluster
from fakes.manifests import gateway_pod, pod, service
from fakes.operator_bench import Bench
from fakes.readings import FakeReader
from kvasir_api.state import GatewayState, RequestTotals, RuntimeState, ServiceDemand
from kvasir_kube.kinds import INFERENCE_SERVICE, POD
from kvasir_operator.loop.introducer import Introducer
from kvasir_operator.loop.ops_calls import OpsCalls
from kvasir_operator.loop.recorder import Recorder
from kvasir_operator.loop.scaler import Scaler
from kvasir_operator.loop.scraper import Scraper
from kvasir_operator.loop.store import Store
from kvasir_operator.loop.workqueue import Workqueue
from kvasir_operator.observed.settings import OperatorSettings

ELASTIC = {"maxReplicas": 3, "scaleDown": {"windowSeconds": 60}}


@pytest.fixture
def bench():
    return Bench()


async def test_the_message_is_about_now_and_not_about_the_last_change(bench):
    await bench.put_service(autoscaling=ELASTIC)
    await bench.turn()
    await bench.put_pods(1)
    bench.say(0, pinned=950)
    for _ in range(6):
        await bench.turn()
    told = bench.status()["autoscaling"]
    assert (told["desiredReplicas"], told["message"]) == (2, "2 replicas: KV cache determines the count")
    await bench.put_pods(2, pinned=0)
    for _ in range(6):
        await bench.turn()
    told = bench.status()["autoscaling"]
    assert told["message"] == (
        "2 replicas: the largest demand of the last 60 s determines the count; KV cache requires 0"
    )
    assert told["decisions"][0]["reason"].startswith("KV cache needs 1.2 replicas at 85 % (kv 1.24, slots 0.00, ")


async def test_an_event_that_scales_names_its_cause(bench):
    await bench.put_service(replicas=1)
    await bench.turn()
    await bench.put_service(replicas=3)
    await bench.turn()
    await bench.put_service(autoscaling={"minReplicas": 4, "maxReplicas": 6})
    await bench.turn()
    await bench.put_service(replicas=1)
    await bench.turn()
    assert bench.events("ScaledUp") == [
        "1 → 3 replicas: spec.replicas is 3",
        "3 → 4 replicas: no replica has reported its capacity yet; spec.autoscaling.minReplicas determines the count",
    ]
    assert bench.events("ScaledDown") == ["4 → 1 replica: spec.autoscaling was removed, spec.replicas is 1"]


@pytest.mark.parametrize("mode", ["Active", "Advisory", "Paused", "External"])
async def test_a_number_of_400_digits_stops_no_tick(bench, mode):
    await bench.put_service(autoscaling={**ELASTIC, "mode": mode})
    await bench.turn()
    await bench.put_pods(1, running=10**400)
    for _ in range(3):
        await bench.turn()
    stale = next(c for c in bench.status()["conditions"] if c["type"] == "MetricsStale")
    assert stale["message"] == "p0 reports running is above 2^53: its readings are not used"


@pytest.mark.parametrize("running", [-1, None])
async def test_an_inactive_autoscaler_says_that_no_reading_can_be_used(bench, running):
    """Whether the pod is silent, or answers what cannot be."""
    await bench.put_service(autoscaling=ELASTIC)
    await bench.turn()
    await bench.put_pods(1, running=running or 0)
    if running is None:
        bench.reader.says.clear()
    for _ in range(5):
        await bench.turn()
    inactive = next(c for c in bench.status()["conditions"] if c["type"] == "ScalingActive")
    assert inactive["message"] == "no ready replica has a usable reading, so that the count stays as it is"


class FailingTelemetry:
    """Cannot tell of one service; knows of which it was told."""

    def __init__(self, failing):
        self.failing, self.told = failing, []

    def imbalance(self, name, fraction):
        """It can tell of all."""

    def decided(self, name, decision):
        if name == self.failing:
            raise OverflowError("int too large to convert to float")
        self.told.append(name)


def scaler_of(clock, telemetry, *, reader=None, services=(), pods=(), **settings):
    """A scaler alone, of what the API server is said to have."""
    store = Store()
    for kind, found in [*((INFERENCE_SERVICE, s) for s in services), *((POD, p) for p in pods)]:
        store.put(kind, {**found, "metadata": {**found["metadata"], "resourceVersion": "1"}})
    recorder = Recorder(FakeCluster(), instance="test", clock=clock)
    reader = reader or FakeReader()
    scraper, introducer = Scraper(store, reader, clock=clock), Introducer(OpsCalls(reader))
    queue, settings = Workqueue(clock.steady), OperatorSettings(**settings)
    return Scaler(store, scraper, introducer, queue, recorder, telemetry, settings=settings, clock=clock)


@pytest.mark.parametrize("failing", ["a", "b", "c"])
async def test_the_trouble_of_one_service_is_not_that_of_the_others(failing, caplog):
    clock, telemetry = FakeClock(), FailingTelemetry(("default", failing))
    scaler = scaler_of(clock, telemetry, services=[service(name, autoscaling=ELASTIC) for name in "abc"])
    clock.advance(2)
    await scaler.tick()
    assert {name for _, name in telemetry.told} == set("abc") - {failing}
    assert scaler.ticked_at == clock.steady()  # or the operator would be restarted
    assert f"a tick of default/{failing} failed" in caplog.text


async def test_only_a_replica_with_a_reading_tells_how_long_a_start_takes(tmp_path):
    """Another may have been unready for hours after its start."""
    clock, reader = FakeClock(), FakeReader()
    silent = pod("p1", ready=True, ip="10.0.0.2")
    silent["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-01T02:00:00Z"
    reader.says["http://10.0.0.1:8001"] = RuntimeState(phase="ready")
    scaler = scaler_of(
        clock,
        FailingTelemetry(None),
        reader=reader,
        services=[service(autoscaling=ELASTIC)],
        pods=[pod("p0", ready=True), silent],
        readings_dir=str(tmp_path),
    )
    for _ in range(5):
        clock.advance(2)
        await scaler.tick()
    line = (tmp_path / "default.tiny.readings.jsonl").read_text().splitlines()[-1]
    assert json.loads(line)["coldStartsS"] == [10.0]


async def test_a_new_service_that_is_paused_has_the_replicas_of_its_spec(bench):
    await bench.put_service(replicas=2, autoscaling={**ELASTIC, "mode": "Paused"})
    for _ in range(3):
        await bench.turn()
    assert bench.replicas() == [2]
    await bench.restarted()
    assert bench.replicas() == [2]


@pytest.mark.parametrize("mode", ["Advisory", "External"])
@pytest.mark.parametrize("restart", [False, True])
async def test_pausing_leaves_the_count_that_was_set_by_hand(bench, mode, restart):
    await bench.put_service(replicas=6, autoscaling={**ELASTIC, "mode": mode})
    await bench.turn()
    await bench.put_pods(6)
    for _ in range(40):
        await bench.turn()
    assert bench.replicas() == [6]
    await bench.put_service(replicas=6, autoscaling={**ELASTIC, "mode": "Paused"})
    if restart:
        bench.operator = bench.started()
    for _ in range(40):
        await bench.turn()
        assert bench.replicas() == [6]
    assert bench.status()["autoscaling"]["desiredReplicas"] == 6


async def test_advice_that_is_put_into_force_is_followed_step_by_step(bench):
    rules = {"maxReplicas": 8, "scaleDown": {"windowSeconds": 60}}
    await bench.put_service(replicas=6, autoscaling={**rules, "mode": "Advisory"})
    await bench.turn()
    await bench.put_pods(6)
    for _ in range(300):
        await bench.turn()
    assert (bench.replicas(), bench.status()["autoscaling"]["desiredReplicas"]) == ([6], 1)
    await bench.put_service(replicas=6, autoscaling=rules)
    await bench.operator.resync.once()
    await bench.operator.reconciler.reconcile(("default", "tiny"))  # before a tick
    assert bench.replicas() == [6]
    await bench.turn()
    assert (bench.status()["desiredReplicas"], bench.events("ScaledDown")) == (
        5,
        ["6 → 5 replicas: KV cache needs 0.0 replicas at 70 %; the rate of change is limited"],
    )


async def test_decisions_are_counted_where_they_are_taken_and_forgotten_with_autoscaling(bench):
    """In mode External another autoscaler decides: what ours would do differs from it in every tick."""

    def counted():
        lines = bench.operator.telemetry.text().decode().splitlines()
        return [float(line.split()[-1]) for line in lines if line.startswith("kvasir_service_decisions_total{")]

    await bench.put_service(autoscaling={**ELASTIC, "mode": "External"}, replicas=1)
    await bench.turn()
    await bench.put_pods(1)
    bench.say(0, pinned=950)
    for _ in range(6):
        await bench.turn()
    assert bench.status()["autoscaling"]["rawReplicas"] == 2
    assert counted() == []
    await bench.put_service(autoscaling=ELASTIC)
    for _ in range(6):
        await bench.turn()
    assert counted() == [1.0]
    await bench.put_service(autoscaling=None)
    await bench.turn()
    assert "kvasir_service_demand_replicas{" not in bench.operator.telemetry.text().decode()


async def test_a_bound_of_a_schedule_is_named_as_what_it_is(bench):
    all_day = {"start": "00:00", "durationMinutes": 1440, "maxReplicas": 2}
    await bench.put_service(autoscaling={**ELASTIC, "schedules": [{**all_day, "maxReplicas": 1}, all_day]})
    await bench.turn()
    await bench.put_pods(2)
    for number in range(2):
        bench.say(number, pinned=1000)
    for _ in range(8):
        await bench.turn()
    assert bench.status()["autoscaling"]["message"].startswith(
        "2 replicas: spec.autoscaling.schedules[1].maxReplicas limits the count"
    )
    (full,) = (c["message"] for c in bench.status()["conditions"] if c["type"] == "ScalingAtMax")
    assert full.startswith("the load requires more than spec.autoscaling.schedules[1].maxReplicas 2:")


TO_ZERO = {"minReplicas": 0, "maxReplicas": 4, "idleSeconds": 60}


async def put_gateway(bench, **demand):
    """A ready gateway that reports this of the service."""
    await bench.cluster.put(POD, gateway_pod("gw", ip="10.9.9.9"))
    services = (ServiceDemand(namespace="default", name="tiny", **demand),)
    bench.reader.gateways["http://10.9.9.9:8081"] = GatewayState(services=services)


async def test_a_new_service_starts_one_goes_to_zero_and_comes_back(bench):
    await bench.put_service(autoscaling=TO_ZERO)
    await bench.turn()
    assert bench.replicas() == [1]
    await bench.put_pods(1)
    for _ in range(40):
        await bench.turn()
    await bench.cluster.delete(POD, "default", "p0")
    bench.reader.says.clear()
    for _ in range(60):
        await bench.turn()
    assert (bench.replicas(), bench.reason()) == ([0], "ScaledToZero")
    assert bench.events("ScaledDown") == ["1 → 0 replicas: no request came within spec.autoscaling.idleSeconds"]
    assert bench.status()["autoscaling"]["limitedBy"] == "idle"
    await put_gateway(bench, last_request_age_s=0.5)
    await bench.turn()
    assert bench.replicas() == [1]
    assert bench.events("ScaledUp") == ["0 → 1 replica: a request came within spec.autoscaling.idleSeconds"]


async def test_zero_survives_the_operators_restart(bench):
    await bench.put_service(autoscaling={**TO_ZERO, "idleSeconds": 2})
    await bench.turn()
    await bench.put_pods(1)
    for _ in range(10):
        await bench.turn()
    await bench.cluster.delete(POD, "default", "p0")
    bench.reader.says.clear()
    for _ in range(5):
        await bench.turn()
    assert (bench.replicas(), bench.status()["capacity"]["kvTokens"]) == ([0], 1000)
    bench.operator = bench.started()
    for _ in range(10):
        await bench.turn()
    assert bench.replicas() == [0]
    await put_gateway(bench, held=1, held_bytes=400)
    await bench.turn()
    assert bench.replicas() == [1]


async def test_a_service_that_never_ran_waits_for_its_first_start_also_over_a_restart(bench):
    """It was taken for one at zero, which no request had come to."""
    await bench.put_service(autoscaling=TO_ZERO)
    await bench.turn()
    bench.operator = bench.started()
    for _ in range(100):
        await bench.turn()
    assert bench.replicas() == [1]


async def test_sequences_that_lose_their_cache_and_an_uneven_load_reach_status_and_metrics(bench):
    await bench.put_service(replicas=2)
    await bench.turn()
    await bench.put_pods(2)
    for tick in range(40):
        bench.say(0, pinned=950, running=5, totals=RequestTotals(arrivals=tick, preemptions=tick))
        bench.say(1, pinned=50)
        await bench.turn()
    there = {c["type"]: c["message"] for c in bench.status()["conditions"]}
    assert there["KvCacheExhausted"].endswith("set spec.runtime.kvCacheDtype to fewer bits")
    assert there["Imbalanced"].startswith("p0 has been much fuller than the other replicas")
    told = bench.operator.telemetry.text().decode()
    (uneven,) = (line for line in told.splitlines() if line.startswith("kvasir_service_imbalance_fraction{"))
    assert float(uneven.split()[-1]) == pytest.approx(0.9)
    for _ in range(40):
        bench.say(0, pinned=500, running=5, totals=RequestTotals(arrivals=40, preemptions=39))
        bench.say(1, pinned=450)
        await bench.turn()
    assert {c["type"] for c in bench.status()["conditions"]} == {"Ready"}


async def test_an_idle_service_is_decided_for_rarely_and_at_once_when_something_happens(bench, tmp_path):
    """Its recorded readings are those of ticks."""
    bench.operator = bench.started(readings_dir=str(tmp_path))
    await bench.put_service(autoscaling={"minReplicas": 1, "maxReplicas": 4})
    await bench.turn()
    await bench.put_pods(1)

    def ticks():
        return len((tmp_path / "default.tiny.readings.jsonl").read_text().splitlines())

    for _ in range(10):
        await bench.turn()
    settled = ticks()
    for number in range(60):
        bench.say(0, sequence_number=number, heartbeat_age_s=0.1 * (number % 5))
        await bench.turn()
    assert ticks() - settled <= 60 * 2 / 20 + 1
    bench.say(0, pinned=950, running=8)
    for _ in range(2):
        await bench.turn()
    assert bench.replicas() == [2]
