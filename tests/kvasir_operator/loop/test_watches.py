"""The supervisor of the watches: what is started again, what is waited for, and what ends the process."""

import asyncio
import threading

import pytest

from fakes.clock import FakeClock
from fakes.cluster import FakeCluster
from fakes.manifests import pod, service
from kvasir_api import names
from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import INFERENCE_SERVICE, POD
from kvasir_operator.loop import watches as rooms
from kvasir_operator.loop.resync import STALE_WATCH_S, Resync
from kvasir_operator.loop.store import Store
from kvasir_operator.loop.telemetry import Telemetry
from kvasir_operator.loop.watches import MOST_FAILURES, Watches
from kvasir_operator.loop.workqueue import Workqueue


class Runs:
    """Watches that end as they are told: an error is raised, None goes on until stopped."""

    def __init__(self, *ends):
        self.ends, self.stops = list(ends), []

    def start(self, stop: threading.Event) -> None:
        self.stops.append(stop)
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        if end is not None:
            raise end
        stop.wait(60)


class Bench:
    def __init__(self, *ends):
        self.cluster, self.clock, self.store = FakeCluster(), FakeClock(), Store()
        self.workqueue = Workqueue(self.clock.steady)
        self.resync = Resync(self.cluster, self.store, self.workqueue, clock=self.clock)
        self.runs, self.telemetry = Runs(*ends), Telemetry()
        self.pauses = []
        self.watches = Watches(
            self.runs.start, self.resync, self.telemetry, clock=self.clock, sleep=self.sleep, look_s=0.01
        )

    async def sleep(self, seconds):
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    def failures(self, why):
        return self.telemetry.registry.get_sample_value("kvasir_operator_watch_failures_total", {"why": why}) or 0

    async def until(self, look):
        async with asyncio.timeout(60):
            while not look():  # noqa: ASYNC110 - a look at plain data
                await asyncio.sleep(0.005)


async def test_a_watch_that_keeps_failing_ends_the_process():
    bench = Bench(KubeError("watcher for pods ended: error in the stream"))
    with pytest.raises(KubeError, match=f"failed {MOST_FAILURES + 1} times in a row: watcher for pods ended"):
        await bench.watches.run()
    assert len(bench.runs.stops) == MOST_FAILURES + 1
    for number, pause in enumerate(bench.pauses):
        assert 0.8 * min(60, 2**number) <= pause <= 1.2 * min(60, 2**number)


@pytest.mark.parametrize(("status", "why"), [(403, "forbidden"), (404, "missing"), (503, "failed")])
async def test_what_a_restart_cannot_cure_is_waited_for(status, why):
    refused = KubeError("pods is forbidden", status=status)
    bench = Bench(*[refused] * (2 * MOST_FAILURES), None)
    running = asyncio.create_task(bench.watches.run())
    await bench.until(lambda: len(bench.runs.stops) == 2 * MOST_FAILURES + 1)
    assert not running.done()
    assert max(bench.pauses) <= 72
    assert bench.failures(why) == 2 * MOST_FAILURES
    await ended(running)
    assert bench.runs.stops[-1].is_set()


async def test_watches_that_were_well_for_long_fail_for_the_first_time_again():
    bench = Bench(*[KubeError("x")] * 4, None)
    running = asyncio.create_task(bench.watches.run())
    await bench.until(lambda: len(bench.runs.stops) == 5)
    bench.clock.advance(rooms.WELL_S + 1)
    bench.runs.ends = [None]
    bench.runs.stops[-1].set()  # it ends by itself
    await bench.until(lambda: len(bench.runs.stops) == 6)
    assert bench.pauses[-1] <= 1.2
    await ended(running)


async def test_a_stale_watch_is_started_again_and_not_before_its_time():
    bench = Bench(None)
    await bench.resync.once()
    running = asyncio.create_task(bench.watches.run())
    await bench.until(lambda: len(bench.runs.stops) == 1)
    await bench.cluster.put(POD, pod("p0", revision="r"))
    bench.clock.advance(STALE_WATCH_S + 1)
    await bench.resync.once()  # the list knows a pod that no watch brought
    await asyncio.sleep(0.03)
    assert len(bench.runs.stops) == 1
    bench.clock.advance(STALE_WATCH_S + 1)
    await bench.until(lambda: len(bench.runs.stops) == 2)
    assert bench.runs.stops[0].is_set()
    assert bench.failures("stale") == 1
    await asyncio.sleep(0.03)  # the new one gets as much time to tell
    assert len(bench.runs.stops) == 2
    await ended(running)


async def test_a_thread_that_does_not_stop_ends_the_process():
    def hangs(_stop):
        hold.wait(60)

    bench, hold = Bench(None), threading.Event()
    bench.watches = Watches(
        hangs, bench.resync, bench.telemetry, clock=bench.clock, sleep=bench.sleep, look_s=0.01, stop_s=0.03
    )
    await bench.resync.once()
    running = asyncio.create_task(bench.watches.run())
    await bench.cluster.put(POD, pod("p0", revision="r"))
    await asyncio.sleep(0.02)
    await bench.resync.once()
    bench.clock.advance(STALE_WATCH_S + 1)
    with pytest.raises(KubeError, match="does not end"):
        await asyncio.wait_for(running, 60)
    hold.set()


async def ended(task):
    task.cancel()
    await asyncio.wait({task})


@pytest.mark.parametrize("told", [True, False])
async def test_a_deletion_that_no_watch_told_is_owed(told):
    bench = Bench(None)
    await bench.cluster.put(POD, pod("p0", revision="r"))
    await bench.resync.once()
    gone = bench.cluster.stored(POD, "default", "p0")
    await bench.cluster.drop(POD, "default", "p0")
    await bench.resync.once()
    assert bench.store.get(POD, ("default", "p0")) is None
    if told:
        gone["metadata"]["resourceVersion"] = "999"
        bench.resync.delivered(POD, gone)
    bench.clock.advance(STALE_WATCH_S + 1)
    assert bench.resync.stale_watches() == ("" if told else "pods default/p0")
    bench.resync.began()
    assert bench.resync.stale_watches() == ""


async def test_a_kind_that_cannot_be_listed_does_not_hide_the_others():
    bench = Bench(None)
    await bench.cluster.put(INFERENCE_SERVICE, service())
    await bench.cluster.put(POD, pod("p0", revision="r"))
    bench.cluster.errors["list"] = [KubeError("forbidden", status=403)]
    with pytest.raises(KubeError, match="inferenceservices: forbidden"):
        await bench.resync.once()
    assert not bench.resync.synced
    assert bench.store.get(POD, ("default", "p0")) is not None
    bench.clock.advance(9)
    assert bench.resync.age_s() == 9
    await bench.resync.once()
    assert (bench.resync.synced, bench.resync.age_s()) == (True, 0)
    assert bench.store.get(INFERENCE_SERVICE, ("default", "tiny"))["kind"] == names.KIND
