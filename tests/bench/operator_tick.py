"""What one tick of the operator costs: it reads every pod and decides for every service. Run by `operator_scale`, or

    PYTHONPATH=tests .venv/bin/python -m bench.operator_tick --services 1000 --pods 4000

The operator is the real one but for the API server, in this process, with services and ready pods in its store; the
pods' ops ports are those of another process. Ticks follow one another at once, with a clock that is two seconds later
each time, so that windows of ten minutes are full at the end. Processor time is that of this process alone.
"""

import argparse
import asyncio
import contextlib
import cProfile
import itertools
import json
import os
import pstats
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from fakes import manifests
from fakes.clock import FakeClock
from fakes.cluster import FakeCluster
from kvasir_api import names
from kvasir_kube import process
from kvasir_kube.kinds import INFERENCE_SERVICE, POD, Json, Key
from kvasir_kube.state_reader import StateReader
from kvasir_operator.loop.operator import Operator
from kvasir_operator.observed.settings import OperatorSettings

INTERVAL_S: Final = 2.0
WARM_TICKS: Final = 3
"""They open the connections and parse what never changes."""
SETTLED_S: Final = 0.02
"""For the queue to be worked off; not counted."""
TESTS: Final = Path(__file__).resolve().parents[1]
AUTOSCALING: Final[Json] = {"minReplicas": 1, "maxReplicas": 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class TickCost:
    """cpu_s: of each tick. due: services to be reconciled after a tick, on the mean. unread: pods that did not answer
    at the end. rss: bytes of the process at the end."""

    services: int
    pods: int
    idle: bool
    cpu_s: list[float]
    due: float
    unread: int
    rss: int


async def measure(
    services: int, pods: int, *, ticks: int, idle: bool = False, profiler: cProfile.Profile | None = None
) -> TickCost:
    """So many ticks, after a few that count for nothing. idle: no pod has requests."""
    clock, due, cpu_s = FakeClock(), 0, []

    async def reconcile(_: Key) -> None:
        nonlocal due
        due += 1

    async with StateReader() as reader, serving(pods, idle=idle) as ports:
        operator = Operator(FakeCluster(), reader, settings=OperatorSettings(), instance="bench", clock=clock)
        fill(operator, services, ports)
        process.collect_rarely()
        queue = asyncio.create_task(operator.workqueue.run(reconcile))
        for number in range(WARM_TICKS + ticks):
            if number == WARM_TICKS:
                due = 0
                if profiler:
                    profiler.enable()
            clock.advance(INTERVAL_S)
            before = time.process_time()
            await operator.scaler.tick()
            cpu_s.append(time.process_time() - before)
            await asyncio.sleep(SETTLED_S)
        if profiler:
            profiler.disable()
        queue.cancel()
        answers = await reader.states({port: base(port) for port in ports}, deadline_s=10.0)
    del cpu_s[:WARM_TICKS]
    unread = pods - len(answers)
    return TickCost(services=services, pods=pods, idle=idle, cpu_s=cpu_s, due=due / ticks, unread=unread, rss=rss())


@contextlib.asynccontextmanager
async def serving(pods: int, *, idle: bool) -> AsyncGenerator[list[int]]:
    """The ops ports of so many pods, in a process of their own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fakes.state_ports", str(pods), *(["idle"] if idle else [])),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 20,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield [int(port) for port in (await process.stdout.readline()).split()]
    finally:
        process.stdin.close()
        await process.wait()


def fill(operator: Operator, services: int, ports: list[int]) -> None:
    """Services with autoscaling, and as many ready pods as there are ports, dealt to them in turn."""
    version = itertools.count(1)
    for number in range(services):
        found = manifests.service(f"s{number:04d}", autoscaling=AUTOSCALING)
        found["metadata"]["resourceVersion"] = str(next(version))
        operator.store.put(INFERENCE_SERVICE, found)
    for number, port in enumerate(ports):
        pod = manifests.pod(f"p{number:05d}", ready=True, ip="127.0.0.1")
        pod["metadata"]["resourceVersion"] = str(next(version))
        pod["metadata"]["labels"][names.LABEL_SERVICE] = f"s{number % services:04d}"
        pod["spec"]["containers"][0]["ports"] = [{"name": names.PORT_OPS_NAME, "containerPort": port}]
        operator.store.put(POD, pod)


def base(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def rss() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def sentence(cost: TickCost) -> str:
    """For the page."""
    low, middle, high = (1000 * f(cost.cpu_s) for f in (min, statistics.median, max))
    how = "idle" if cost.idle else "under load"
    unread = f"; {cost.unread} pods did not answer" if cost.unread else ""
    return (
        f"One tick with {cost.services:,} services and {cost.pods:,} pods {how}: {low:.0f} / {middle:.0f} / "
        f"{high:.0f} ms of processor time (smallest / median / largest of {len(cost.cpu_s)} ticks, on the mean "
        f"{1000 * statistics.fmean(cost.cpu_s):.0f}), of which "
        f"{cost.due:.0f} services are to be reconciled on the mean; {cost.rss >> 20} MiB for that process{unread}."
    )


def main() -> int:
    """Measure; print, and where the time went if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=4000)
    parser.add_argument("--ticks", type=int, default=60)
    parser.add_argument("--idle", action="store_true", help="pods without requests")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--profile", action="store_true", help="print the functions that took the most time")
    given = parser.parse_args()
    profiler = cProfile.Profile() if given.profile else None
    cost = asyncio.run(measure(given.services, given.pods, ticks=given.ticks, idle=given.idle, profiler=profiler))
    print(json.dumps(asdict(cost)) if given.json else sentence(cost))
    if profiler:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(40)
    return 0


if __name__ == "__main__":
    sys.exit(main())
