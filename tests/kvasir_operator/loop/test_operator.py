"""The whole operator on a fake cluster and a fake clock: no watch, no process, no waiting."""

import ast
import asyncio
import gc
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import kvasir_operator.loop
from fakes.manifests import gateway_pod, pod
from fakes.operator_bench import KEY, Bench
from kvasir_api import names
from kvasir_api.state import GatewayState, ServiceDemand
from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    INFERENCE_SERVICE,
    NETWORK_POLICY,
    POD,
    SERVICE,
)
from kvasir_operator.loop.event_emitter import STALLED_EVENTS
from kvasir_operator.loop.resync import WATCHED
from kvasir_operator.observed.replica import DRAINED_COST, DRAINING_COST


@pytest.fixture
def bench():
    return Bench()


async def test_first_sight_makes_children_and_status_and_then_rests(bench):
    await bench.put_service(replicas=2)
    await bench.turn()
    assert bench.writes() == [
        ("create", "services"),
        ("create", "networkpolicies"),
        ("apply", "controllerrevisions"),
        ("create", "deployments"),
        ("create", "events"),
        ("apply/status", "inferenceservices"),
    ]
    assert (bench.reason(), bench.replicas()) == ("MinimumNotAvailable", [2])
    await bench.put_pods(2)
    await bench.turn()
    assert bench.reason() == "AllReplicasReady"
    assert ("create", "poddisruptionbudgets") in bench.writes(), "with the first pod, and not before"
    for _ in range(30):
        await bench.turn()
    assert bench.writes() == []


async def test_restarted_operator_writes_nothing(bench):
    await bench.put_service(autoscaling={"maxReplicas": 3})
    await bench.turn()
    await bench.put_pods(1)
    for _ in range(3):
        await bench.turn()
    assert await bench.restarted() == []


@pytest.mark.parametrize("scaling", [{"replicas": 2}, {"autoscaling": {"minReplicas": 2, "maxReplicas": 3}}])
async def test_restarted_operator_gives_pods_time_for_their_first_words(bench, scaling):
    await bench.put_service(**scaling)
    await bench.turn()
    await bench.put_pods(2)
    for _ in range(4):
        await bench.turn()
    bench.writes()
    bench.operator, before = bench.started(), bench.status()
    late = bench.reader.says.pop("http://10.0.0.2:8001")
    await bench.turn()
    await bench.turn()
    bench.reader.says["http://10.0.0.2:8001"] = late
    for _ in range(4):
        await bench.turn()
    assert (bench.writes(), bench.status()) == ([], before)


async def test_restarted_operator_tells_of_a_pod_that_stays_silent(bench):
    await bench.put_service(replicas=2)
    await bench.turn()
    await bench.put_pods(2)
    await bench.turn()
    bench.operator = bench.started()
    del bench.reader.says["http://10.0.0.2:8001"]
    for _ in range(3):
        await bench.turn()
    assert "MetricsStale" not in [c["type"] for c in bench.status()["conditions"]]
    await bench.turn()
    await bench.turn()
    stale = next(c for c in bench.status()["conditions"] if c["type"] == "MetricsStale")
    assert stale["message"] == "no answer from p1"


async def test_restarted_operator_takes_away_none_that_it_has_not_heard(bench):
    await bench.put_service(replicas=2)
    await bench.turn()
    await bench.put_pods(2)
    bench.say(1, running=8, remaining_tokens=9000)
    await bench.turn()
    bench.operator = bench.started()
    busy = bench.reader.says.pop("http://10.0.0.2:8001")
    await bench.put_service(replicas=1)
    await bench.turn()
    bench.reader.says["http://10.0.0.2:8001"] = busy
    await bench.turn()
    assert bench.reader.drains == [("http://10.0.0.1:8001", True)]


async def test_drained_victim_is_marked_then_counted_down(bench):
    await bench.put_service(replicas=2)
    await bench.turn()
    await bench.put_pods(2)
    bench.say(0, running=3, remaining_tokens=900)
    bench.say(1, running=1, remaining_tokens=10)
    await bench.turn()
    await bench.put_service(replicas=1)
    await bench.turn()
    notes = bench.cluster.stored(POD, "default", "p1")["metadata"]["annotations"]
    assert notes[names.ANNOTATION_DELETION_COST] == str(DRAINING_COST)
    assert (bench.reader.drains, bench.replicas()) == ([("http://10.0.0.2:8001", True)], [2])
    bench.say(1, phase="draining", running=1)
    await bench.turn(60)
    assert bench.replicas() == [2]
    bench.say(1, phase="draining")
    await bench.turn()
    notes = bench.cluster.stored(POD, "default", "p1")["metadata"]["annotations"]
    assert (notes[names.ANNOTATION_DELETION_COST], bench.replicas()) == (str(DRAINED_COST), [2])
    await bench.turn()
    assert bench.replicas() == [1]
    assert [n.split(":")[0] for n in bench.events("DrainStarted") + bench.events("Drained")] == ["p1", "p1"]


async def test_operator_killed_in_mid_drain_finishes_it(bench):
    await bench.put_service(replicas=2)
    await bench.turn()
    await bench.put_pods(2)
    await bench.turn()
    await bench.put_service(replicas=1)
    await bench.turn()
    (victim,) = [p for p in ("p0", "p1") if bench.cluster.stored(POD, "default", p)["metadata"]["annotations"]]
    bench.operator = bench.started()
    bench.say(int(victim[1]), phase="draining")
    for _ in range(4):
        await bench.turn()
    assert bench.replicas() == [1]


async def test_counters_are_written_rarely_and_decisions_at_once(bench):
    await bench.put_service(autoscaling={"maxReplicas": 3})
    await bench.turn()
    await bench.put_pods(1)
    for _ in range(4):
        await bench.turn()
    bench.writes()
    for second in range(10):
        bench.say(0, pinned=100, running=1, kernels=f"k{second}")
        await bench.turn(1)
    assert bench.writes().count(("apply/status", "inferenceservices")) in (2, 3)
    bench.say(0, pinned=950)
    for _ in range(6):
        await bench.turn()
    assert ("apply", "deployments") in bench.writes()
    assert bench.status()["autoscaling"]["decisions"][0]["signal"] == "kv"


async def test_a_window_that_passes_is_no_news_where_none_may_leave(bench):
    await bench.put_service(autoscaling={"minReplicas": 2, "maxReplicas": 3})
    await bench.turn()
    await bench.put_pods(2)
    for _ in range(6):
        await bench.turn()
    assert bench.status()["autoscaling"]["limitedBy"] == "floor"
    bench.writes()
    for _ in range(40):
        await bench.turn(20)
    assert bench.writes() == []


async def test_autoscaling_that_is_switched_on_watches_a_whole_window_first(bench):
    await bench.put_service(replicas=3)
    await bench.turn()
    await bench.put_pods(3)
    for _ in range(200):
        await bench.turn()
    await bench.put_service(replicas=3, autoscaling={"maxReplicas": 3, "scaleDown": {"windowSeconds": 60}})
    for _ in range(10):
        await bench.turn()
    scaling = bench.status()["autoscaling"]
    assert (scaling["desiredReplicas"], scaling["limitedBy"]) == (3, "window")
    for _ in range(30):
        await bench.turn()
    assert bench.status()["desiredReplicas"] == 2


async def test_pods_that_get_ready_one_by_one_write_a_status_every_few_seconds(bench):
    await bench.put_service(replicas=20)
    await bench.turn()
    bench.writes()
    for ready in range(1, 20):
        await bench.put_pods(ready)
        for _ in range(5):
            await bench.turn(0.1)
    assert 4 <= bench.writes().count(("apply/status", "inferenceservices")) <= 6
    assert bench.status()["readyReplicas"] >= 15
    await bench.put_pods(20)
    await bench.turn(0.1)
    assert (bench.reason(), bench.status()["readyReplicas"]) == ("AllReplicasReady", 20)


async def test_silent_pod_and_silent_gateway_make_metrics_stale(bench):
    await bench.put_service(autoscaling={"maxReplicas": 3})
    await bench.cluster.put(POD, gateway_pod("gw", ip="10.9.9.9"))
    demand = ServiceDemand(namespace="default", name="tiny", held=2)
    bench.reader.gateways["http://10.9.9.9:8081"] = GatewayState(services=(demand,))
    await bench.turn()
    await bench.put_pods(1)
    await bench.turn()
    assert "MetricsStale" not in [c["type"] for c in bench.status()["conditions"]]
    bench.reader.says.clear()
    bench.reader.gateways.clear()
    for _ in range(4):
        await bench.turn()
    stale = next(c for c in bench.status()["conditions"] if c["type"] == "MetricsStale")
    assert stale["message"] == "no answer from p0, gw"


async def test_a_jumping_wall_clock_scales_nothing(bench):
    await bench.put_service(autoscaling={"maxReplicas": 3, "scaleDown": {"windowSeconds": 60}})
    await bench.turn()
    await bench.put_pods(1)
    bench.say(0, pinned=950)
    for _ in range(6):
        await bench.turn()
    assert bench.status()["desiredReplicas"] == 2
    bench.say(0, pinned=0)
    bench.clock.jump(86_400)
    for _ in range(3):
        await bench.turn()
    assert bench.status()["desiredReplicas"] == 2


async def test_deleted_service_is_forgotten(bench):
    await bench.put_service(autoscaling={"maxReplicas": 2})
    await bench.turn()
    await bench.put_pods(1)
    await bench.turn()
    for _ in range(7):  # somebody else keeps changing a child
        workload = next(iter(bench.cluster.objects[DEPLOYMENT.plural].values()))
        await bench.cluster.put(DEPLOYMENT, {**workload, "spec": {**workload["spec"], "replicas": 7}})
        await bench.turn()
    await bench.cluster.put(POD, pod("p0", container={"restartCount": 9, "lastState": {"terminated": {"exitCode": 3}}}))
    await bench.turn()
    assert "tiny" in " ".join(words(bench.operator, bench.cluster))
    for kind in (INFERENCE_SERVICE, *(kind for kind, _ in WATCHED)):
        for name in list(bench.cluster.objects.get(kind.plural, {})):
            await bench.cluster.drop(kind, *name)
    bench.writes()
    await bench.turn()
    await bench.operator.reconciler.reconcile(KEY)
    assert bench.writes() == []
    assert b'service="tiny"' not in bench.operator.telemetry.text()
    # The watches owe what only lists have told, until they begin again; a dirty name is forgotten at its turn.
    bench.operator.resync.began()
    assert [word for word in words(bench.operator, bench.cluster, bench.operator.workqueue) if "tiny" in word] == []


def words(root, *others):
    """Every string that can be reached from root, but not through the others, classes, modules or functions."""
    seen, heap, found = {id(other) for other in others}, [root], []
    while heap:
        obj = heap.pop()
        if id(obj) in seen or isinstance(obj, type | ModuleType | FunctionType):
            continue
        seen.add(id(obj))
        if isinstance(obj, str):
            found.append(obj)
        heap += gc.get_referents(obj)
    return found


async def test_metrics_show_wanted_and_ready(bench):
    await bench.put_service(replicas=2)
    await bench.turn()
    await bench.put_pods(2)
    await bench.turn()
    text = bench.operator.telemetry.text().decode()
    assert 'kvasir_service_wanted_replicas{namespace="default",service="tiny"} 2.0' in text
    assert 'kvasir_service_ready_replicas{namespace="default",service="tiny"} 2.0' in text
    assert 'kvasir_operator_writes_total{kind="Deployment"} 1.0' in text


async def test_a_watch_that_owes_something_is_stale(bench):
    await bench.put_service()
    await bench.operator.resync.once()
    assert bench.operator.live() == ""
    await bench.put_service(replicas=2)
    await bench.operator.resync.once()
    bench.clock.advance(61)
    await bench.operator.scaler.tick()
    assert bench.operator.live() == ""  # the watches are started again first
    bench.clock.advance(120)
    await bench.operator.scaler.tick()
    assert bench.operator.live() == "stale watch: it has not delivered inferenceservices default/tiny"
    bench.operator.resync.delivered(INFERENCE_SERVICE, bench.cluster.stored(INFERENCE_SERVICE, *KEY))
    assert bench.operator.live() == ""


async def test_a_tick_that_never_comes_is_not_alive(bench):
    assert bench.operator.ready() == "the first list is not complete"
    await bench.operator.fill()
    assert (bench.operator.ready(), bench.operator.live()) == ("", "")
    bench.clock.advance(61)
    assert bench.operator.live() == "the last reading of all pods ended 61 s ago"
    bench.clock.advance(240)
    assert bench.operator.ready() == "not everything could be listed for 301 s"


async def test_a_first_list_that_is_refused_is_waited_for(bench):
    bench.cluster.errors["list"] = [KubeError("pods is forbidden", status=403)]
    async with asyncio.timeout(60):
        await bench.operator.fill()
    assert bench.operator.resync.synced


@pytest.mark.parametrize("step", range(1, 9))
async def test_killed_at_any_write_it_still_arrives(step):
    """The operator dies at its n-th apply; another one goes on from what is there."""
    bench = Bench()
    await bench.put_service(replicas=2)
    # the writes of a first life: Service, NetworkPolicy, ControllerRevision, Deployment, status; then budget and status
    bench.cluster.errors["write"] = [None] * (step - 1) + [KubeError("killed here")]
    died = False
    for _ in range(8):
        try:
            await bench.turn()
        except KubeError:
            died = True
            bench.operator = bench.started()
        if DEPLOYMENT.plural in bench.cluster.objects:
            await bench.put_pods(2)
    assert died == (step <= 7)
    assert bench.reason() == "AllReplicasReady"
    assert [len(bench.cluster.objects[k.plural]) for k in (DEPLOYMENT, CONTROLLER_REVISION, SERVICE)] == [1, 1, 1]
    assert [len(bench.cluster.objects[k.plural]) for k in (DISRUPTION_BUDGET, NETWORK_POLICY)] == [1, 1]


async def test_what_others_wrote_into_the_status_is_removed_and_not_again_and_again(bench):
    await bench.put_service(replicas=1)
    await bench.turn()
    await bench.put_pods(1)
    await bench.turn()
    true = bench.status()
    lie = {"autoscaling": {"desiredReplicas": 9}, "rollout": {"rolledBackRevision": true["rollout"]["currentRevision"]}}
    bench.cluster.owned_by_others[INFERENCE_SERVICE.plural] = lie
    obj = bench.cluster.stored(INFERENCE_SERVICE, *KEY)
    rollout = {**true["rollout"], **lie["rollout"]}
    await bench.cluster.put(INFERENCE_SERVICE, {**obj, "status": {**true, **lie, "rollout": rollout}})
    bench.writes()
    await bench.turn()
    assert bench.status() == true
    assert bench.writes() == [("apply/status", "inferenceservices"), ("merge/status", "inferenceservices")]
    for _ in range(3):
        await bench.turn()
    assert bench.writes() == []


def test_everything_that_is_watched_but_services_is_watched_by_label():
    assert [kind.plural for kind, selector in WATCHED if not selector] == [
        "inferenceservices",
        "acceleratorclasses",
    ]


def said_in_the_code():
    """Reasons of events by which the loops call the recorder, as they are written there, and all other such words."""
    called, words = set(), set()
    for path in Path(kvasir_operator.loop.__path__[0]).glob("*.py"):
        tree = ast.parse(path.read_text())
        words |= {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)):
            if call.func.attr in ("say", "_say"):
                called |= {a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    return called | set(STALLED_EVENTS.values()), words


def test_the_public_list_of_events_is_what_the_code_says():
    called, words = said_in_the_code()
    assert called - set(names.EVENTS) == set()
    assert set(names.EVENTS) - words == set()
