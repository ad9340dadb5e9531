"""Services that a quota refuses: their requests are counted while nothing changes, and all come when there is room."""

import collections
import contextlib

from fakes import virtual_loop
from fakes.cluster import FakeCluster
from fakes.manifests import pod, service
from fakes.operator_bench import FILE, LoopBench
from fakes.virtual_loop import elapse
from kvasir_api import names
from kvasir_api.state import RuntimeState
from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import DEPLOYMENT, INFERENCE_SERVICE, POD
from kvasir_operator.loop.quota_waiters import QuotaWaiters

SERVICES, ROOM = 12, 3
WAIT_S = 300.0


def test_the_first_of_each_namespace_is_tried_again():
    waiters = QuotaWaiters()
    a, b, c = ("one", "a"), ("one", "b"), ("two", "c")
    assert [waiters.refused(key) for key in (a, b, c, b, a)] == [True, False, True, False, True]
    assert waiters.passed(a) == b
    assert waiters.refused(a) is False
    assert waiters.passed(a) == b
    assert waiters.passed(b) is None
    assert waiters.passed(b) is None
    assert waiters.refused(a) is True
    assert waiters.passed(("three", "d")) is None


class Limited(FakeCluster):
    """A namespace with a quota of Deployments. creations: of Deployments that were tried; asked: every other request
    but lists."""

    def __init__(self):
        super().__init__()
        self.room, self.creations, self.asked = ROOM, [], []

    def _raise(self, verb):
        self.asked += [verb] if verb not in ("list", "create", "write") else []
        super()._raise(verb)

    async def create(self, kind, obj, *, manager=""):
        if kind is DEPLOYMENT:
            self.creations.append(obj["metadata"]["name"])
            if len(self.names(DEPLOYMENT)) >= self.room:
                words = f"exceeded quota: few, requested: count/deployments.apps=1, limited: {self.room}"
                raise KubeError(f"{obj['metadata']['name']} is forbidden: {words}", status=403, reason="Forbidden")
        return await super().create(kind, obj, manager=manager)


def reasons(bench):
    found = bench.cluster.objects[INFERENCE_SERVICE.plural].values()
    conditions = [c for obj in found for c in obj["status"]["conditions"] if c["type"] == "Ready"]
    return [condition["reason"] for condition in conditions]


@contextlib.asynccontextmanager
async def refused():
    """All but a few services have no Deployment, and nothing changes any more."""
    bench = LoopBench(Limited())
    for number in range(SERVICES):
        await bench.cluster.put(INFERENCE_SERVICE, service(f"s{number:02d}", **FILE))
    async with bench.running():
        await elapse(WAIT_S)
        assert len(bench.cluster.names(DEPLOYMENT)) == ROOM
        assert reasons(bench).count("QuotaExceeded") == SERVICES - ROOM
        bench.cluster.creations, bench.cluster.asked = [], []
        yield bench


def test_services_that_a_quota_refuses_wait_for_one_of_them_two_minutes_each():
    async def story():
        async with refused() as bench:
            await elapse(WAIT_S)
            tried = collections.Counter(bench.cluster.creations)
            (_, first), *others = tried.most_common()
            assert 3 <= first <= WAIT_S / 40
            assert len(others) == SERVICES - ROOM - 1
            assert all(2 <= count <= 3 for _, count in others)
            assert bench.cluster.asked == []

    virtual_loop.run(story())


def test_a_quota_that_is_raised_lets_all_in_and_one_that_is_raised_a_little_some():
    async def story():
        async with refused() as bench:
            bench.cluster.room += 5
            await elapse(90)
            assert len(bench.cluster.names(DEPLOYMENT)) == ROOM + 5
            # A minute's first tries of the next one are closer together, and each of the others may try once.
            assert len(bench.cluster.creations) <= 5 + 10 + SERVICES - ROOM - 5
            bench.cluster.room = SERVICES
            await elapse(90)
            assert len(bench.cluster.names(DEPLOYMENT)) == SERVICES
            assert "QuotaExceeded" not in reasons(bench)

    virtual_loop.run(story())


def test_a_service_that_waits_and_goes_hands_its_turn_on():
    async def story():
        async with refused() as bench:
            await elapse(WAIT_S)
            ((name, _),) = collections.Counter(bench.cluster.creations).most_common(1)
            first = next(key for key in bench.cluster.objects[INFERENCE_SERVICE.plural] if name.startswith(key[1]))
            await bench.cluster.drop(INFERENCE_SERVICE, *first)
            bench.cluster.room += 1
            await bench.operator.resync.once()
            await elapse(10)  # the next service has the turn, else none would be tried within half a minute
            assert len(bench.cluster.names(DEPLOYMENT)) == ROOM + 1

    virtual_loop.run(story())


async def put_pod_of(bench, workload, ip):
    """A ready pod that answers."""
    labels = workload["metadata"]["labels"]
    made = pod(f"{workload['metadata']['name']}-0", revision=labels[names.LABEL_REVISION], ready=True, ip=ip)
    made["metadata"]["labels"][names.LABEL_SERVICE] = labels[names.LABEL_SERVICE]
    await bench.cluster.put(POD, made)
    bench.reader.says[f"http://{ip}:8001"] = RuntimeState(phase="ready")


def test_services_with_pods_wait_too_while_a_quota_refuses_their_new_revision():
    """They are reconciled at every tick otherwise, since a rollout may be moved by time."""

    async def story():
        bench = LoopBench(Limited())
        for number in range(ROOM):
            await bench.cluster.put(INFERENCE_SERVICE, service(f"s{number}", **FILE))
        async with bench.running():
            await elapse(10)
            for number, workload in enumerate(list(bench.cluster.objects[DEPLOYMENT.plural].values())):
                await put_pod_of(bench, workload, f"10.0.0.{number + 1}")
            await bench.operator.resync.once()
            await elapse(60)
            assert reasons(bench) == ["AllReplicasReady"] * ROOM
            for name, old in list(bench.cluster.objects[INFERENCE_SERVICE.plural].items()):
                spec = {**old["spec"], "model": {"uri": f"file:///srv/{name[1]}"}}
                await bench.cluster.put(INFERENCE_SERVICE, {**old, "spec": spec})
            await bench.operator.resync.once()
            await elapse(WAIT_S)
            bench.cluster.creations = []
            await elapse(WAIT_S)
            tried = collections.Counter(bench.cluster.creations)
            assert len(tried) == ROOM
            assert max(tried.values()) <= 1 + WAIT_S / 40
            bench.cluster.room = 2 * ROOM
            await elapse(150)
            assert len(bench.cluster.names(DEPLOYMENT)) == 2 * ROOM

    virtual_loop.run(story())
