"""What many services cost the operator: `make bench-operator` (BENCH_ARGS="--services 500 1000 --write" keeps the
figures).

The operator is the real one, as a process under its own service account, before a real API server, scheduler and
controllers; nodes and pods are stubs that answer at their ops ports. Times are those of the client that creates the
services, requests those of the API server's audit log, processor time and memory those of the operator's process.
"""

import argparse
import asyncio
import contextlib
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench import marked_page
from fakes.kubelet import FakeKubelet
from fakes.operator_rig import USER, Rig, install, standing
from kvasir_api import names
from kvasir_kube.informer import Informer
from kvasir_kube.kinds import DEPLOYMENT, INFERENCE_SERVICE, NODE, POD, Json, Key
from kvasir_local import audit, binaries
from kvasir_local.component_flags import COMPONENTS
from kvasir_local.control_plane import ControlPlane
from kvasir_local.progress import SilentProgress
from kvasir_operator.status.compose import COUNTERS_S

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "operator.md"
MARKS: Final = ("<!-- measured: written by make bench-operator -->", "<!-- end of measured -->")
PODS_PER_NODE: Final = 100
AT_ONCE: Final = 16
SPEC: Final[Json] = {"resources": {"cpu": "10m", "memory": "16Mi"}}
STARTED_S: Final = 60.0
PER_SERVICE_S: Final = 2.0
INTERVAL_S: Final = 2.0
LATER_S: Final = 1.0
TICK_SERVICES, TICK_PODS = 1000, 4000
TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True, kw_only=True)
class Phase:
    """One part of a run. requests: of the operator, by verb. cpu_s: of its process. rss, peak: bytes at the end, and
    the most so far. others_s: processor seconds of each other process, since all share the machine."""

    name: str
    seconds: float
    requests: dict[str, int]
    cpu_s: float
    rss: int
    peak: int
    others_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds from the creation of each service to its Deployment, its first pod, and Ready."""

    to_deployment: list[float] = field(default_factory=list)
    to_pod: list[float] = field(default_factory=list)
    to_ready: list[float] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Run:
    """All that is measured. at_once: of services that were created together. later: of those that were created one
    after the other beside them."""

    services: int
    at_once: Times = field(default_factory=Times)
    later: Times = field(default_factory=Times)
    phases: list[Phase] = field(default_factory=list)


class Seen:
    """When the Deployment and the first pod of each service, and the service's first Ready, were seen by a client that
    watches."""

    def __init__(self, rig: Rig) -> None:
        self.deployments: dict[str, float] = {}
        self.pods: dict[str, float] = {}
        self.ready: dict[str, float] = {}
        self._deployments = Informer(rig.client, DEPLOYMENT, namespace=rig.namespace, on_change=self._deployment)
        self._pods = Informer(rig.client, POD, namespace=rig.namespace, on_change=self._pod)
        self._services = Informer(rig.client, INFERENCE_SERVICE, namespace=rig.namespace, on_change=self._service)

    @property
    def left(self) -> int:
        """Services and pods that are still there."""
        return len(self._pods.objects) + len(self._services.objects)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._deployments.run())
            group.create_task(self._pods.run())
            group.create_task(self._services.run())

    def _deployment(self, key: Key) -> None:
        self._first(self.deployments, self._deployments.objects.get(key))

    def _pod(self, key: Key) -> None:
        self._first(self.pods, self._pods.objects.get(key))

    @staticmethod
    def _first(times: dict[str, float], child: Json | None) -> None:
        if child is not None:
            times.setdefault(child["metadata"]["labels"][names.LABEL_SERVICE], time.monotonic())

    def _service(self, key: Key) -> None:
        conditions = ((self._services.objects.get(key) or {}).get("status") or {}).get("conditions") or ()
        if any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
            self.ready.setdefault(key[1], time.monotonic())


class Made:
    """Services of one phase, and when each was created."""

    def __init__(self) -> None:
        self._began: dict[str, float] = {}

    async def create(self, rig: Rig, number: int) -> None:
        """As soon as the API server takes it."""
        name = f"s{number:04d}"
        self._began[name] = time.monotonic()
        await rig.apply(name, **SPEC)

    def times(self, seen: Seen) -> Times:
        """When all are ready."""
        each = [
            [at[name] - began for name, began in self._began.items()]
            for at in (seen.deployments, seen.pods, seen.ready)
        ]
        return Times(to_deployment=each[0], to_pod=each[1], to_ready=each[2])


async def measure(
    control: ControlPlane, *, services: int, idle_s: float, later: int, tmp: Path, say: Any = print
) -> Run:
    """Create that many services, wait, create a few more, restart the operator while they exist, delete them."""
    run = Run(services=services)
    async with fleet(control, services + later, tmp) as rig, watching(rig) as seen:
        rig.start("--allow-model-dir=/srv", f"--interval={INTERVAL_S:g}")
        deadline_s = STARTED_S + services * PER_SERVICE_S
        made = Made()
        with phase(run, rig, "create"):
            await each(services, lambda number: made.create(rig, number))
            await rig.until(lambda: reached(seen.ready, services), lambda: f"{len(seen.ready)} ready", s=deadline_s)
        run.at_once = made.times(seen)
        say(f"{services} services ready after {run.phases[-1].seconds:.1f} s")
        await rig.until(lambda: rests(rig), lambda: "a while without a write", s=deadline_s)
        with phase(run, rig, "idle"):
            await pause(idle_s)
        made = Made()
        with phase(run, rig, "later"):
            for number in range(services, services + later):
                await made.create(rig, number)
                await pause(LATER_S)
            await rig.until(
                lambda: reached(seen.ready, services + later), lambda: f"{len(seen.ready)} ready", s=deadline_s
            )
        run.later = made.times(seen)
        await rig.until(lambda: rests(rig), lambda: "a while without a write", s=deadline_s)
        rig.stop()
        rig.start("--allow-model-dir=/srv", f"--interval={INTERVAL_S:g}")
        with phase(run, rig, "restart"):
            await rig.until(lambda: listens(rig), lambda: "the new operator reads its pods", s=deadline_s)
            await pause(idle_s / 2)
        with phase(run, rig, "delete"):
            await each(services + later, lambda number: rig.delete(f"s{number:04d}"))
            await rig.until(lambda: nothing(seen), lambda: f"{seen.left} left", s=deadline_s)
        say("deleted")
    return run


@contextlib.asynccontextmanager
async def fleet(control: ControlPlane, services: int, tmp: Path) -> AsyncGenerator[Rig]:
    """A namespace with as many nodes of stubs as the services need."""
    async with standing(control, tmp) as rig, contextlib.AsyncExitStack() as stack:
        for number in range(1, math.ceil(services / PODS_PER_NODE) + 1):
            node = f"{rig.namespace}-{number}"
            stack.push_async_callback(rig.client.delete, NODE, "", node)  # else pods of others wait there for ever
            await stack.enter_async_context(FakeKubelet(rig.client, node=node))
        yield rig


@contextlib.asynccontextmanager
async def watching(rig: Rig) -> AsyncGenerator[Seen]:
    """What is seen while the context is open."""
    seen = Seen(rig)
    task = asyncio.create_task(seen.run())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.contextmanager
def phase(run: Run, rig: Rig, name: str) -> Iterator[None]:
    """Measure the operator while the context is open."""
    mark, began, before, others = rig.audit_mark(), time.monotonic(), processor_s(rig.pid), beside(rig)
    yield
    seconds, cpu_s = time.monotonic() - began, processor_s(rig.pid) - before
    others_s = {name: spent - others[name] for name, spent in beside(rig).items()}
    found = [r for r in audit.read(rig.control.paths.audit_log, since=mark)[0] if r.user == USER]
    rss, peak = memory(rig.pid)
    requests = dict(Counter(request.verb for request in found))
    run.phases.append(
        Phase(name=name, seconds=seconds, requests=requests, cpu_s=cpu_s, rss=rss, peak=peak, others_s=others_s)
    )


def beside(rig: Rig) -> dict[str, float]:
    """Processor seconds so far of what runs beside the operator: the control plane, and this process with its nodes."""
    found = {name: rig.control.state.process(name) for name in COMPONENTS}
    return {name: processor_s(process.pid) for name, process in found.items() if process} | {
        "client and nodes": time.process_time()
    }


async def each(count: int, act: Any) -> None:
    """act(number) for all numbers, some at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with gate:
            await act(number)

    await asyncio.gather(*map(one, range(count)))


async def pause(seconds: float) -> None:
    """Let time pass."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()


async def reached(found: Mapping[str, float], count: int) -> bool:
    return len(found) >= count


async def nothing(seen: Seen) -> bool:
    return seen.left == 0


async def rests(rig: Rig) -> bool:
    """Whether nothing was written for longer than counters of a status wait to be: the next operator would write them
    at once."""
    mark = rig.audit_mark()
    await pause(COUNTERS_S + 1.0)
    return not rig.writes_since(mark)


async def listens(rig: Rig) -> bool:
    """Whether the operator has read every pod since it began."""
    return rig.running and "health on" in rig.tail()


def processor_s(pid: int) -> float:
    """Processor seconds of a process so far, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory(pid: int) -> tuple[int, int]:
    """Resident bytes of a process now, and the most that it had."""
    found = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return tuple(int(found[name].split()[0]) << 10 for name in ("VmRSS", "VmHWM"))  # type: ignore[return-value]


def table(run: Run) -> str:
    """Markdown of a run."""
    lines = ["| from creating a service to | p50 | p99 | longest |", "|---|---|---|---|"]
    for how, times in ((f"all {run.services} at once", run.at_once), ("one after the other beside them", run.later)):
        stages = (("its Deployment", times.to_deployment), ("its first pod", times.to_pod), ("Ready", times.to_ready))
        for what, seconds in stages if times.to_pod else ():
            row = f"{at(seconds, 50):.2f} s | {at(seconds, 99):.2f} s | {max(seconds):.2f} s"
            lines.append(f"| {what}, {how} | {row} |")
    verbs = sorted({verb for found in run.phases for verb in found.requests})
    lines += ["", "| phase | seconds | requests a second | " + " | ".join(verbs) + " | processor | memory (peak) |"]
    lines.append("|---|" + "---|" * (len(verbs) + 4))
    for found in run.phases:
        counts = " | ".join(str(found.requests.get(verb, 0)) for verb in verbs)
        rate = sum(found.requests.values()) / found.seconds
        share = 100 * found.cpu_s / found.seconds
        lines.append(
            f"| {found.name} | {found.seconds:.1f} | {rate:.1f} | {counts} | {found.cpu_s:.1f} s, {share:.1f} % | "
            f"{found.rss >> 20} MiB ({found.peak >> 20}) |"
        )
    if others := [(found.name, found.others_s) for found in run.phases if found.others_s]:
        lines += ["", "| processor seconds beside the operator | " + " | ".join(others[0][1]) + " |"]
        lines.append("|---|" + "---|" * len(others[0][1]))
        lines += [
            f"| {name} | " + " | ".join(f"{spent:.1f}" for spent in each.values()) + " |" for name, each in others
        ]
    return "\n".join(lines)


def at(times: list[float], percent: int) -> float:
    """That percentile; of few values the nearest that was seen."""
    return times[0] if len(times) == 1 else statistics.quantiles(times, n=100, method="inclusive")[percent - 1]


def write(page: Path, runs: Sequence[Run], tick: str, command: str) -> None:
    """Replace the figures of the page. tick: a sentence about one tick. Raises ValueError when it lacks the marks."""
    load = os.getloadavg()[2]
    said = (
        f"Measured {datetime.now(UTC):%Y-%m-%d} by `{command}` on {processor()}, "
        f"{os.cpu_count()} threads for operator, API server, controllers and stubs together; the machine's load of the "
        f"last 15 minutes was {load:.1f}."
    )
    tables = [f"### {run.services} services\n\n{table(run)}" for run in runs]
    page.write_text(marked_page.replaced(page.read_text(), MARKS, "\n\n".join([said, tick, *tables])))


def processor() -> str:
    """What /proc calls the processor."""
    lines = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return lines[0].partition(":")[2].strip() if lines else platform.processor()


def measured(services: int, given: argparse.Namespace) -> Run:
    """One run on a control plane of its own."""
    with tempfile.TemporaryDirectory() as tmp:
        where = Path(tmp)
        with ControlPlane(state_dir=where / "control", binaries=binaries.provide(progress=SilentProgress())) as control:
            install(control)
            run = asyncio.run(measure(control, services=services, idle_s=given.idle, later=given.later, tmp=where))
    print(table(run), flush=True)
    return run


def tick(services: int, pods: int) -> str:
    """What one tick costs, measured in a process of its own, whose memory is nothing else's."""
    command = [sys.executable, "-m", "bench.operator_tick", f"--services={services}", f"--pods={pods}"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    print(said, flush=True)
    return said


def main() -> int:
    """Measure; print, and keep if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--services", type=int, nargs="+", default=[500])
    parser.add_argument("--idle", type=float, default=60.0, help="seconds of the idle phase")
    parser.add_argument("--later", type=int, default=30, help="services that are created afterwards, one a second")
    parser.add_argument("--write", action="store_true", help="keep the figures in docs/benchmarks/operator.md")
    given = parser.parse_args()
    said = tick(TICK_SERVICES, TICK_PODS)
    runs = [measured(services, given) for services in given.services]
    if given.write:
        numbers = " ".join(map(str, given.services))
        arguments = f"--services {numbers} --idle {given.idle:g} --later {given.later} --write"
        write(PAGE, runs, said, f'make bench-operator BENCH_ARGS="{arguments}"')
    return 0


if __name__ == "__main__":
    sys.exit(main())
