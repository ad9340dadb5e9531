"""An API server that is away for five minutes, under all loops of the operator and a clock that passes as they wait."""

import asyncio
import contextlib

import pytest

from fakes import virtual_loop
from fakes.cluster import FakeCluster
from fakes.operator_bench import KEY, LoopBench
from fakes.virtual_loop import LoopClock, elapse
from kvasir_api.state import KvState, RuntimeState
from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import DEPLOYMENT, INFERENCE_SERVICE, POD

AWAY_S = 300.0


class Distant(FakeCluster):
    """A cluster that may be away, and the seconds at which it was asked."""

    def __init__(self):
        super().__init__()
        self.clock, self.away, self.asked = LoopClock(asyncio.get_running_loop()), False, []

    def _raise(self, verb):
        self.asked.append((self.clock.steady(), verb))
        if self.away:
            raise KubeError("no answer from the API server")
        super()._raise(verb)


def workload(bench):
    (name,) = bench.cluster.names(DEPLOYMENT)
    return name


def most_within(asked, seconds):
    """The largest number of requests in a stretch so long."""
    times = [at for at, _ in asked]
    return max((sum(begin <= at < begin + seconds for at in times) for begin in times), default=0)


@contextlib.asynccontextmanager
async def serving(**spec):
    """An operator that runs, and a service of two replicas that is at rest."""
    bench = LoopBench(Distant())
    await bench.put_service(**spec)
    async with bench.running():
        await elapse(5)
        await bench.put_pods(2, running=1, pinned=500)
        bench.watch()
        await elapse(120)
        assert bench.reason() == "AllReplicasReady"
        yield bench


async def absent(bench):
    """The five minutes, in which the process must stay well."""
    before = {kind.plural: dict(bench.cluster.objects[kind.plural]) for kind in (POD, DEPLOYMENT)}
    bench.cluster.away, bench.cluster.asked = True, []
    for _ in range(int(AWAY_S / 10)):
        await elapse(10)
        assert bench.operator.live() == "", "a restart would cure nothing"
    assert {plural: bench.cluster.objects[plural] for plural in before} == before
    return bench.cluster.asked


async def returned(bench):
    """It is back, and the watches begin anew a minute later at worst."""
    bench.cluster.away, bench.cluster.asked, bench.cluster.writes = False, [], []
    await elapse(60)
    bench.watch()
    await elapse(60)
    return bench.cluster.asked


ELASTIC = {"autoscaling": {"minReplicas": 2, "maxReplicas": 4}}


@pytest.mark.parametrize("spec", [{"replicas": 2}, ELASTIC])
def test_five_minutes_away_change_nothing_and_end_without_a_storm(spec):
    async def story():
        async with serving(**spec) as bench:
            asked = await absent(bench)
            assert 10 <= len(asked) <= AWAY_S / 2, "it asks now and then"
            assert most_within(asked, 1.0) <= 10, "one list of everything at most"
            asked = await returned(bench)
            assert most_within(asked, 1.0) <= 12
            assert [verb for _, verb in asked if verb not in ("list", "get")] == []
            assert (bench.reason(), bench.replicas()) == ("AllReplicasReady", [2])

    virtual_loop.run(story())


def test_what_was_asked_meanwhile_is_done_once_afterwards():
    async def story():
        async with serving(replicas=2) as bench:
            bench.cluster.away = True
            stored = bench.cluster.objects[INFERENCE_SERVICE.plural][KEY]
            await bench.cluster.put(INFERENCE_SERVICE, {**stored, "spec": {**stored["spec"], "replicas": 3}})
            bench.operator.workqueue.mark(KEY)
            await absent(bench)
            asked = await returned(bench)
            assert bench.replicas() == [3]
            assert len([verb for _, verb in asked if verb == "apply"]) <= 4
            assert bench.cluster.writes.count(("apply", "deployments", ("default", workload(bench)))) == 1

    virtual_loop.run(story())


def test_load_that_rose_meanwhile_is_answered_only_afterwards():
    async def story():
        async with serving(**ELASTIC) as bench:
            for number in range(2):
                full = KvState(capacity_tokens=1000, pinned_tokens=990)
                bench.reader.says[f"http://10.0.0.{number + 1}:8001"] = RuntimeState(phase="ready", kv=full, running=9)
            asked = await absent(bench)
            assert bench.replicas() == [2]
            assert len(asked) <= AWAY_S, "under one a second, whatever is wished for"
            await returned(bench)
            assert bench.replicas()[0] > 2
            assert bench.cluster.writes.count(("apply", "deployments", ("default", workload(bench)))) <= 2

    virtual_loop.run(story())
