"""What the operator remembers may be old: what it destroys or marks is the very object that it means."""

from contextlib import suppress

import pytest

from fakes.clock import FakeClock
from fakes.cluster import FakeCluster
from fakes.manifests import pod, service
from fakes.operator_bench import FILE, KEY, Bench
from fakes.readings import FakeReader
from kvasir_kube.errors import ConflictError, KubeError
from kvasir_kube.kinds import DEPLOYMENT, INFERENCE_SERVICE, POD
from kvasir_kube.pod_tls import PodTls
from kvasir_operator.diff import Write
from kvasir_operator.loop.node_keys import NodeKeys
from kvasir_operator.loop.ops_calls import OpsCalls
from kvasir_operator.loop.pod_certificates import PodCertificates
from kvasir_operator.loop.pod_secrets import PodSecrets
from kvasir_operator.loop.recorder import Recorder
from kvasir_operator.loop.store import Store
from kvasir_operator.loop.telemetry import Telemetry
from kvasir_operator.loop.workqueue import Workqueue
from kvasir_operator.loop.writer import Writer
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import observed
from kvasir_operator.stages import PodAction

OLD = Replica(name="p0", uid="uid-of-before", phase="ready", ip="10.0.0.1", drain_since=1.0)


@pytest.fixture
def server():
    return FakeCluster()


def writer(server, store=None):
    clock, store = FakeClock(), store or Store()
    recorder = Recorder(server, instance="test", clock=clock)
    calls, queue = OpsCalls(FakeReader()), Workqueue(clock.steady)
    certificates = PodCertificates(server, store, PodTls(), home="kvasir-system", clock=clock)
    made = PodSecrets(certificates, NodeKeys(server, store, clock=clock))
    return Writer(server, store, calls, recorder, Telemetry(), made, workqueue=queue, clock=clock)


def seen():
    return observed(service(), revisions=(), deployments=(), replicas=(), svc=None)


async def test_a_pod_that_was_made_again_under_its_name_is_not_deleted(server):
    await server.put(POD, pod("p0"))
    with suppress(KubeError):
        await writer(server).act(seen(), service(), PodAction(verb="cut", replica=OLD, why="it had its time"))
    assert server.stored(POD, "default", "p0")["metadata"]["uid"] == "uid-p0"


async def test_a_workload_that_was_made_again_under_its_name_is_not_deleted(server):
    await server.put(DEPLOYMENT, {"metadata": {"namespace": "default", "name": "tiny-a", "uid": "uid-of-now"}})
    gone = Write(verb="delete", kind="Deployment", name="tiny-a", uid="uid-of-before", manifest={})
    with suppress(KubeError):
        await writer(server).children(seen(), service(), (gone,))
    assert server.names(DEPLOYMENT) == ["tiny-a"]


async def test_a_status_is_written_of_the_service_that_was_read_and_of_no_other(server):
    """The API server compares versions there and no uids."""
    store = Store()
    writes = writer(server, store)
    gone = await server.put(INFERENCE_SERVICE, service(replicas=2))
    await server.drop(INFERENCE_SERVICE, *KEY)
    there = await server.put(INFERENCE_SERVICE, service())
    store.put(INFERENCE_SERVICE, gone)
    assert not await writes.status(gone, {"observedGeneration": 2})
    assert server.stored(INFERENCE_SERVICE, *KEY) == there
    await server.drop(INFERENCE_SERVICE, *KEY)
    assert not await writes.status(gone, {"observedGeneration": 2})
    assert store.get(INFERENCE_SERVICE, KEY) is None


async def test_a_status_that_is_refused_says_nothing_and_then_everything_once(monkeypatch):
    bench, refusals = Bench(), 3
    await bench.put_service(replicas=1)
    await bench.turn()
    await bench.put_pods(1)
    await bench.turn()
    apply = bench.cluster.apply

    async def refuse(kind, obj, *, manager, subresource=""):
        nonlocal refusals
        if subresource and refusals:
            refusals -= 1
            raise ConflictError("it has been modified", status=409)
        return await apply(kind, obj, manager=manager, subresource=subresource)

    monkeypatch.setattr(bench.cluster, "apply", refuse)
    await bench.put_service(replicas=2)
    for _ in range(6):
        await bench.turn()
    assert (refusals, len(bench.events("ScaledUp"))) == (0, 1)


@pytest.mark.parametrize("verb", ["drain", "finish", "release"])
async def test_marks_of_a_pod_carry_its_uid(server, verb):
    """The API server refuses a patch whose uid is another; here it is seen in what was sent."""
    sent = []

    class Listening(FakeCluster):
        async def merge(self, kind, namespace, name, patch, *, manager, subresource=""):
            sent.append(patch["metadata"]["uid"])
            return patch

    await writer(Listening()).act(seen(), service(), PodAction(verb=verb, replica=OLD, why="so"))
    assert sent == ["uid-of-before"]


@pytest.mark.parametrize("late", [False, True])
async def test_a_service_that_was_made_again_under_its_name_begins_again(late):
    """Deleted and made again before anybody looked, or while somebody still looked at it: what the one before was
    scaled to is not this one's."""
    bench = Bench()
    await bench.put_service(autoscaling={"minReplicas": 3, "maxReplicas": 4})
    await bench.turn()
    assert bench.replicas() == [3]
    before = bench.cluster.stored(INFERENCE_SERVICE, *KEY)
    for objects in bench.cluster.objects.values():
        objects.clear()
    if late:
        await bench.turn()
        await bench.operator.reconciler.reconcile(KEY)
        seen = observed(before, revisions=(), deployments=(), replicas=(), svc=None)
        assert bench.operator.scaler.result(seen).wanted == 3
    again = service(**FILE, autoscaling={"maxReplicas": 4})
    again["metadata"] |= {"uid": "uid-again", "creationTimestamp": "2026-01-01T00:00:09Z"}
    await bench.cluster.put(INFERENCE_SERVICE, again)
    await bench.turn()
    assert bench.replicas() == [1]
    assert bench.status()["autoscaling"].get("decisions", []) == []
