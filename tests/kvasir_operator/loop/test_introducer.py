"""Which replicas get the addresses of which peers, and how often."""

import asyncio
from contextlib import asynccontextmanager

from fakes.manifests import pod, service
from fakes.operator_bench import Bench
from fakes.readings import FakeReader
from kvasir_api.state import RuntimeState
from kvasir_kube.kinds import INFERENCE_SERVICE, POD
from kvasir_kube.state_reader import unsigned
from kvasir_operator.loop.introducer import Introducer, introductions
from kvasir_operator.loop.ops_calls import OpsCalls
from kvasir_operator.observed.replica import Replica


def one(name, phase, *, reused=0, **fields):
    reading = RuntimeState(instance=f"i-{name}", reused_tokens=reused)
    number = name[1:]
    return Replica(**{"name": name, "ip": f"10.0.0.{number}", "phase": phase, "reading": reading, **fields})


def url(number):
    return f"http://10.0.0.{number}:8001"


def test_those_that_start_are_told_of_the_ready_ones_with_most_in_their_caches():
    ready = [one(f"r{n}", "ready", reused=100 * n) for n in (1, 2, 3, 4)]
    others = [one("r5", "loading"), one("r6", "draining"), one("r7", "failed"), one("r8", "starting", reading=None)]
    assert introductions([*ready, *others]) == {"i-r5": (url(5), (url(4), url(3), url(2)))}
    assert introductions([one("r5", "loading")]) == {}
    assert introductions([*ready, one("r5", "loading", ip="")]) == {}
    assert introductions([*ready, one("r5", "loading", terminating=True)]) == {}


class WaitingReader(FakeReader):
    """Each introduction waits until `answers` says that the pods answer; `told` wakes the test."""

    def __init__(self) -> None:
        super().__init__()
        self.answers, self.told = asyncio.Event(), asyncio.Event()

    async def introduce(self, base, peers, *, sign=unsigned, deadline_s=1.0):
        confirmed = await super().introduce(base, peers, sign=sign, deadline_s=deadline_s)
        self.told.set()
        await self.answers.wait()
        return confirmed


@asynccontextmanager
async def running(introducer):
    task = asyncio.create_task(introducer.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def turned():
    """Let the introducer's task go on as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_each_process_is_told_once_and_one_that_did_not_hear_again():
    reader = FakeReader()
    introducer = Introducer(OpsCalls(reader))
    replicas = [one("r1", "ready"), one("r2", "loading"), one("r3", "loading")]
    reader.deaf = {url(3)}
    async with running(introducer):
        for _ in range(3):
            introducer.found([replicas, [one("r9", "ready")]])
            await turned()
        assert [base for base, _ in reader.introduced] == [url(2), url(3), url(3), url(3)]
        assert {peers for _, peers in reader.introduced} == {(url(1),)}
        reader.introduced.clear()
        reader.deaf.clear()
        restarted = one("r2", "loading", reading=RuntimeState(instance="another"))
        introducer.found([[replicas[0], restarted]])
        await turned()
        assert reader.introduced == [(url(2), (url(1),))]


async def test_one_that_does_not_answer_holds_up_no_tick_and_is_told_by_one_at_a_time():
    reader = WaitingReader()
    introducer = Introducer(OpsCalls(reader))
    replicas = [one("r1", "ready"), one("r2", "loading")]
    async with running(introducer):
        introducer.found([replicas])
        await turned()
        for _ in range(3):
            introducer.found([[*replicas, one("r3", "loading")]])
            await turned()
        assert [base for base, _ in reader.introduced] == [url(2)]
        reader.answers.set()
        await turned()
        assert [base for base, _ in reader.introduced] == [url(2), url(3)], "of what was found meanwhile the last"


async def test_an_operator_ticks_while_a_replica_that_starts_does_not_answer():
    bench = Bench()
    bench.reader = reader = WaitingReader()
    bench.operator = bench.started()
    await bench.cluster.put(INFERENCE_SERVICE, service(model={"uri": "file:///srv/tiny", "inspect": "Never"}))
    for number, ready in enumerate((True, False)):
        ip = f"10.0.0.{number + 1}"
        await bench.cluster.put(POD, pod(f"p{number}", revision="r", ready=ready, ip=ip))
        bench.say(number, phase="ready" if ready else "warming", instance=f"i{number}")
    task = asyncio.create_task(bench.operator.run())
    try:
        async with asyncio.timeout(60):
            await bench.operator.resync.once()
            await reader.told.wait()
            before = bench.operator.scaler.ticked_at
            bench.clock.advance(2.0)
            await bench.operator.scaler.tick()
        assert bench.operator.scaler.ticked_at == before + 2.0
        assert reader.introduced == [(url(2), (url(1),))]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert len(asyncio.all_tasks()) == 1, "it ended with the operator"
