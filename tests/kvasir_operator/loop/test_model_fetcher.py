"""Models that pods fetch into caches of nodes, through the whole operator on a fake cluster."""

import pytest

from fakes.clock import FakeClock
from fakes.cluster import FakeCluster
from fakes.manifests import service
from fakes.readings import FakeReader
from kvasir_api import names
from kvasir_api.state import RuntimeState
from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import DEPLOYMENT, INFERENCE_SERVICE, NODE, POD
from kvasir_operator.desired.template import pod_labels
from kvasir_operator.loop.operator import Operator
from kvasir_operator.observed.settings import OperatorSettings

READY = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
KEY = ("default", "tiny")
URI = "hf://org/name@" + "c" * 40


class Bench:
    """An operator with a cache on each node; pods start and end by the test."""

    def __init__(self, ahead=0):
        self.cluster, self.clock, self.reader = FakeCluster(), FakeClock(), FakeReader()
        settings = OperatorSettings(model_cache_dir="/cache", model_prefetch_nodes=ahead)
        self.operator = Operator(self.cluster, self.reader, settings=settings, instance="test", clock=self.clock)

    async def put(self, **spec):
        given = {"model": {"uri": URI, "inspect": "Never"}, **spec}
        old = self.cluster.objects.get(INFERENCE_SERVICE.plural, {}).get(KEY, {})
        await self.cluster.put(INFERENCE_SERVICE, {**old, **service(**given)})
        await self.turn()

    async def turn(self, seconds=2.0):
        self.clock.advance(seconds)
        await self.operator.resync.once()
        await self.operator.scaler.tick()
        await self.operator.reconciler.reconcile(KEY)

    async def replica(self, name="replica", node="n0", **status):
        (workload,) = self.cluster.names(DEPLOYMENT)
        metadata = {"name": name, "namespace": "default", "labels": pod_labels("tiny", workload.removeprefix("tiny-"))}
        self.reader.says["http://10.0.0.1:8001"] = RuntimeState(phase="ready" if status else "starting")
        pod = {"metadata": metadata, "spec": {"nodeName": node}, "status": {"podIP": "10.0.0.1", **status}}
        await self.cluster.put(POD, pod)
        await self.turn()

    @property
    def fetches(self):
        return [p for p in self.cluster.objects.get(POD.plural, {}).values() if fetches(p)]

    async def ends(self, phase, **container):
        (pod,) = self.fetches
        status = {"phase": phase, "containerStatuses": [{"name": "fetch", **container}]}
        await self.cluster.put(POD, {**pod, "status": status})
        await self.turn()

    @property
    def condition(self):
        status = self.cluster.stored(INFERENCE_SERVICE, *KEY)["status"]
        return next(c for c in status["conditions"] if c["type"] == "Ready")


def fetches(pod):
    return names.LABEL_FETCHES in pod["metadata"]["labels"]


@pytest.fixture
def bench():
    return Bench()


async def test_a_pod_fetches_the_model_while_a_replica_waits_and_goes_when_it_is_ready(bench):
    await bench.put()
    assert bench.fetches == [], "no replica has a node yet"
    await bench.replica()
    (pod,) = bench.fetches
    assert pod["spec"]["nodeName"] == "n0"
    await bench.turn()
    assert bench.cluster.writes.count(("create", "pods", ("default", pod["metadata"]["name"]))) == 1
    await bench.replica(conditions=READY)
    assert bench.fetches == []


async def test_a_fetch_that_fails_is_a_condition_until_it_goes_on(bench):
    await bench.put()
    await bench.replica()
    words = {"exitCode": 1, "message": "Error: model org/name is gated: accept its terms"}
    waits = {"waiting": {"reason": "CrashLoopBackOff"}}
    await bench.ends("Running", state=waits, lastState={"terminated": words})
    assert bench.condition["reason"] == "ModelUnavailable"
    assert bench.condition["message"].startswith(
        "spec.model.uri: model org/name is gated: accept its terms (tiny-fetch-"
    )
    assert bench.condition["message"].endswith(" on n0)")
    assert len(bench.fetches) == 1, "the kubelet starts it again"
    await bench.ends(
        "Running", state={"running": {"startedAt": "1970-01-01T00:00:00Z"}}, lastState={"terminated": words}
    )
    await bench.turn(600.0)
    assert bench.condition["reason"] != "ModelUnavailable"


async def test_a_fetch_that_its_node_does_not_take_is_replaced(bench):
    await bench.put()
    await bench.replica()
    (first,) = bench.fetches
    await bench.cluster.put(POD, {**first, "status": {"phase": "Failed", "message": "Node has too few cpu"}})
    await bench.turn()
    assert "Node has too few cpu" in bench.condition["message"]
    await bench.turn(60.0)
    await bench.turn()
    (second,) = bench.fetches
    assert second["metadata"]["uid"] != first["metadata"]["uid"]


async def test_a_refused_pod_is_told_and_tried_again(bench):
    await bench.put()
    bench.cluster.errors["create"] = [KubeError("exceeded quota: pods", status=403)] * 2
    with pytest.raises(KubeError, match="exceeded quota"):
        await bench.replica()
    assert bench.fetches == []
    assert "exceeded quota: pods" in bench.condition["message"]
    bench.cluster.errors["create"].clear()
    await bench.turn()
    assert len(bench.fetches) == 1


async def test_a_refused_pod_is_no_outage_of_a_service_that_serves(bench):
    await bench.put(replicas=2)
    await bench.replica(conditions=READY)
    before = bench.condition
    bench.cluster.errors["create"] = [KubeError("exceeded quota: pods", status=403)] * 2
    await bench.replica("more", "n1")
    assert bench.fetches == []
    assert (bench.condition["status"], bench.condition["reason"]) == (before["status"], before["reason"])
    bench.cluster.errors["create"].clear()
    await bench.turn(60.0)
    assert [pod["spec"]["nodeName"] for pod in bench.fetches] == ["n1"]


async def test_replicas_of_the_spec_before_get_theirs_while_the_new_one_is_broken(bench):
    await bench.put()
    await bench.replica("first", "n0")
    await bench.put(model={"uri": "file:///not/allowed"})
    await bench.replica("moved", "n1")
    assert {pod["spec"]["nodeName"] for pod in bench.fetches} == {"n0", "n1"}


async def test_nodes_are_listed_only_where_models_are_fetched_ahead():
    for ahead, want in ((0, []), (1, ["n1"])):
        bench = Bench(ahead)
        for name in ("n0", "n1"):
            await bench.cluster.put(NODE, {"metadata": {"name": name}, "spec": {}, "status": {"conditions": READY}})
        await bench.put(autoscaling={"maxReplicas": 3})
        await bench.replica(conditions=READY)
        await bench.turn()
        assert [pod["spec"]["nodeName"] for pod in bench.fetches] == want
