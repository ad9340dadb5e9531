"""A watchdog ended a replica's container: one event each time, from whichever of the kubelet's reports comes first."""

import pytest

from fakes.manifests import pod, terminated
from fakes.operator_bench import Bench
from kvasir_api import names
from kvasir_kube.kinds import POD

WORDS = "Watchdog: the engine has been silent for 31 s and announced 0.5 s at most"
ENDED = terminated(names.EXIT_WATCHDOG, f"kvasir: {WORDS}")
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


class WatchdogBench(Bench):
    """One replica that is ready."""

    async def begin(self):
        await self.put_service(replicas=1)
        await self.turn()
        await self.put_pods(1)
        await self.turn()
        self.metadata = self.cluster.stored(POD, "default", "p0")["metadata"]

    async def report(self, **container):
        """What the kubelet reports of the container."""
        made = pod("p0", revision=self.metadata["labels"][names.LABEL_REVISION], container=container)
        made["metadata"] = self.metadata
        await self.cluster.put(POD, made)
        await self.turn()


@pytest.fixture
async def bench():
    made = WatchdogBench()
    await made.begin()
    return made


async def test_each_end_is_one_event(bench):
    await bench.report(restartCount=0, state=ENDED)
    await bench.report(restartCount=0, state=BACK_OFF, lastState=ENDED)
    await bench.report(restartCount=1, state=RUNNING, lastState=ENDED)
    assert bench.events("WatchdogRestarted") == [f"p0: {WORDS}"]
    await bench.report(restartCount=2, state=RUNNING, lastState=ENDED)
    assert bench.events("WatchdogRestarted") == [f"p0: {WORDS}"] * 2
    assert bench.events("DeviceFailed") == []


@pytest.mark.parametrize("ended", [terminated(1, f"kvasir: {WORDS}"), terminated(137, "")])
async def test_another_end_is_none_of_it(bench, ended):
    await bench.report(restartCount=1, state=RUNNING, lastState=ended)
    assert bench.events("WatchdogRestarted") == []
