"""How many requests a service costs: when it is created, when nothing changes, and while something is in its way."""

import asyncio
import copy
from collections import Counter

import pytest

from fakes.calls import calls
from fakes.cluster import FakeCluster
from fakes.operator_bench import KEY, Bench
from kvasir_kube.interceptor import ClusterInterceptor
from kvasir_kube.kinds import DEPLOYMENT, DISRUPTION_BUDGET, INFERENCE_SERVICE, SERVICE
from kvasir_operator.handlers import store_events
from kvasir_operator.loop.operator import Operator
from kvasir_operator.observed.settings import OperatorSettings


class Counted(ClusterInterceptor):
    """Counts requests by verb and kind."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__(cluster)
        self.seen: Counter[str] = Counter()

    async def _send(self, request, *, writes: bool):
        self.seen["write" if writes else "read"] += 1
        return await request()


class CountedBench(Bench):
    """`take` returns what was requested since the last call, without the lists of a turn."""

    def started(self) -> Operator:
        self.counted = Counted(self.cluster)
        return Operator(
            self.counted,
            self.reader,  # type: ignore[arg-type]
            settings=OperatorSettings(model_dirs=("/srv",)),
            instance="test",
            clock=self.clock,
        )

    async def reconciled(self, times: int = 1) -> dict[str, int]:
        """Requests of so many reconciles."""
        self.counted.seen.clear()
        for _ in range(times):
            await self.operator.reconciler.reconcile(KEY)
        return dict(self.counted.seen)

    async def worked(self, ticks: int) -> dict[str, int]:
        """Requests of the workers over so many ticks, each after two seconds of the clock."""
        queue = self.operator.workqueue
        self.counted.seen.clear()
        workers = asyncio.create_task(queue.run(self.operator.reconciler.reconcile))
        try:
            for round_ in range(40 * ticks):
                self.clock.advance(0.05)
                if round_ % 40 == 39:
                    await self.operator.scaler.tick()
                queue._news.set()
                while queue._busy or any(due <= self.clock.steady() for due in queue._due.values()):  # noqa: ASYNC110
                    await asyncio.sleep(0)
        finally:
            workers.cancel()
            await asyncio.gather(workers, return_exceptions=True)
        return dict(self.counted.seen)


@pytest.fixture
def bench() -> CountedBench:
    return CountedBench()


async def listed(bench: CountedBench) -> None:
    await bench.operator.resync.once()
    await bench.operator.scaler.tick()


async def test_a_new_service_costs_six_writes_and_no_read(bench):
    await bench.put_service(replicas=1)
    await listed(bench)
    assert await bench.reconciled() == {"write": 6}, "Service, policy, revision, Deployment, event and status"
    assert await bench.reconciled(20) == {}, "and nothing once it is there"


async def test_what_another_owns_is_read_again_and_never_changed(bench):
    other = {"metadata": {"name": "tiny", "namespace": "default", "uid": "x"}, "spec": {"ports": []}}
    await bench.cluster.put(SERVICE, other)
    before = copy.deepcopy(bench.cluster.stored(SERVICE, *KEY))
    await bench.put_service(replicas=1)
    await listed(bench)
    await bench.reconciled()
    assert bench.reason() == "NameConflict"
    words = "Service/tiny exists and does not belong to this service: delete it, or give the service another name"
    assert bench.events("NameConflict") == [words]
    assert await bench.reconciled(10) == {"read": 10}
    assert bench.events("NameConflict") == [words]
    assert (bench.cluster.stored(SERVICE, *KEY), DEPLOYMENT.plural in bench.cluster.objects) == (before, False)
    await bench.cluster.drop(SERVICE, *KEY)
    await bench.reconciled()
    assert bench.replicas() == [1]


async def test_what_another_owns_is_read_every_five_seconds(bench):
    """It is no object of ours, so no watch reports when it goes."""
    other = {"metadata": {"name": "tiny", "namespace": "default", "uid": "x"}, "spec": {"ports": []}}
    await bench.cluster.put(SERVICE, other)
    await bench.put_service(replicas=1)
    await listed(bench)
    bench.operator.workqueue.mark(KEY, 0.0)
    await bench.worked(2)
    assert await bench.worked(15) == {"read": 6}, "in 30 s"
    await bench.cluster.drop(SERVICE, *KEY)
    await bench.worked(3)
    assert bench.replicas() == [1]


async def test_a_disruption_budget_of_another_is_named(bench):
    await bench.put_service(replicas=1)
    await listed(bench)
    await bench.reconciled()
    other = {"metadata": {"name": "tiny", "namespace": "default", "uid": "x"}, "spec": {"minAvailable": 1}}
    await bench.cluster.put(DISRUPTION_BUDGET, other)
    await bench.put_pods(1)
    await listed(bench)
    await bench.reconciled()
    (note,) = bench.events("NameConflict")
    assert note.startswith("PodDisruptionBudget/tiny exists and does not belong to this service")
    assert "Stalled" in [c["type"] for c in bench.status()["conditions"]]


class SidecarCluster(FakeCluster):
    """An admission webhook adds a container to each Deployment; lists of containers are compared as a whole."""

    async def _store(self, kind, obj):
        if kind is DEPLOYMENT:
            obj = copy.deepcopy(obj)
            containers = obj["spec"]["template"]["spec"]["containers"]
            if all(c["name"] != "proxy" for c in containers):
                containers.append({"name": "proxy", "image": "proxy:1"})
        return await super()._store(kind, obj)


async def test_what_an_admission_webhook_adds_causes_no_work_without_end(bench):
    bench.cluster = SidecarCluster()
    bench.operator = bench.started()
    await bench.put_service(replicas=1)
    await listed(bench)
    bench.operator.workqueue.mark(KEY, 0.0)
    await bench.worked(2)
    with calls() as found:
        assert await bench.worked(5) == {}
    assert found["kvasir_operator.desired.resolve.resolve"] == 0


async def test_a_child_that_another_keeps_changing_is_looked_at_when_it_may_be_restored(bench):
    await bench.put_service(replicas=1)
    await listed(bench)
    bench.operator.workqueue.mark(KEY, 0.0)
    await bench.worked(2)

    async def changed() -> None:
        (workload,) = bench.cluster.objects[DEPLOYMENT.plural].values()
        await bench.cluster.put(DEPLOYMENT, {**workload, "spec": {**workload["spec"], "replicas": 7}})
        await bench.operator.resync.once()
        bench.operator.workqueue.mark(KEY, 0.0)

    for _ in range(5):
        await changed()
        await bench.worked(1)
    assert bench.replicas() == [1]
    await changed()
    with calls() as found:
        assert await bench.worked(5) == {}
    assert (bench.replicas(), found["kvasir_operator.desired.resolve.resolve"]) == ([7], 1)
    await bench.worked(30)
    assert bench.replicas() == [1]


async def test_a_child_that_no_watch_has_brought_yet_is_taken_for_ours(bench):
    """Another operator created it just now."""
    await bench.put_service(replicas=1)
    await bench.turn()
    children = bench.cluster.objects[DEPLOYMENT.plural]
    bench.operator = bench.started()
    await listed(bench)
    (name,) = children
    bench.operator.store.drop(DEPLOYMENT, name)
    await bench.reconciled()
    assert (bench.replicas(), bench.reason()) == ([1], "MinimumNotAvailable")


async def test_a_service_that_a_quota_leaves_without_pods_waits_for_a_change_or_its_deadline(bench):
    await bench.put_service(replicas=1, rollout={"progressDeadlineSeconds": 600})
    await listed(bench)
    await bench.reconciled(3)
    bench.operator.workqueue._due.clear()
    for _ in range(20):
        bench.clock.advance(2.0)
        await bench.operator.scaler.tick()
    assert KEY not in bench.operator.scaler.attention
    assert bench.operator.workqueue._due == {}
    await bench.put_pods(1, ready=False)
    await listed(bench)
    await bench.reconciled()
    assert KEY in bench.operator.scaler.attention, "a pod that starts has a clock"


async def test_what_the_operator_wrote_itself_is_no_news_when_a_watch_brings_it(bench):
    await bench.put_service(replicas=1)
    await listed(bench)
    await bench.reconciled()
    seen = store_events(bench.operator.store, bench.operator.workqueue, bench.operator.resync)
    bench.operator.workqueue._due.clear()
    for kind in (SERVICE, DEPLOYMENT, INFERENCE_SERVICE):
        for obj in bench.cluster.objects[kind.plural].values():
            seen(kind, "ADDED", copy.deepcopy(obj))
    assert bench.operator.workqueue._due == {}
    (workload,) = bench.cluster.objects[DEPLOYMENT.plural].values()
    seen(DEPLOYMENT, "MODIFIED", await bench.cluster.put(DEPLOYMENT, {**workload, "status": {"replicas": 1}}))
    assert list(bench.operator.workqueue._due) == [KEY]
