"""What many services cost the operator: `make bench-operator` (BENCH_ARGS="--services 500 --write" keeps the figures).

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
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from fakes.kubelet import FakeKubelet
from fakes.operator_rig import USER, Rig, install, standing
from kvasir_api import names
from kvasir_kube.informer import Informer
from kvasir_kube.kinds import INFERENCE_SERVICE, POD, Json, Key
from kvasir_local import audit, binaries
from kvasir_local.control_plane import ControlPlane
from kvasir_local.progress import SilentProgress

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "operator.md"
MARKS: Final = ("<!-- measured: written by make bench-operator -->", "<!-- end of measured -->")
PODS_PER_NODE: Final = 100
AT_ONCE: Final = 16
SPEC: Final[Json] = {"resources": {"cpu": "10m", "memory": "16Mi"}}
STARTED_S: Final = 60.0
PER_SERVICE_S: Final = 2.0
TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True, kw_only=True)
class Phase:
    """One part of a run. requests: of the operator, by verb. cpu_s: of its process. rss, peak: bytes at the end, and
    the most so far."""

    name: str
    seconds: float
    requests: dict[str, int]
    cpu_s: float
    rss: int
    peak: int


@dataclass(slots=True, kw_only=True)
class Run:
    """All that is measured. to_pod, to_ready: seconds from each service's creation."""

    services: int
    to_pod: list[float] = field(default_factory=list)
    to_ready: list[float] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)


class Seen:
    """When the first pod of each service and the service's first Ready were seen by a client that watches."""

    def __init__(self, rig: Rig) -> None:
        self.pods: dict[str, float] = {}
        self.ready: dict[str, float] = {}
        self._pods = Informer(rig.client, POD, namespace=rig.namespace, on_change=self._pod)
        self._services = Informer(rig.client, INFERENCE_SERVICE, namespace=rig.namespace, on_change=self._service)

    @property
    def left(self) -> int:
        """Services and pods that are still there."""
        return len(self._pods.objects) + len(self._services.objects)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pods.run())
            group.create_task(self._services.run())

    def _pod(self, key: Key) -> None:
        pod = self._pods.objects.get(key)
        if pod is not None:
            self.pods.setdefault(pod["metadata"]["labels"][names.LABEL_SERVICE], time.monotonic())

    def _service(self, key: Key) -> None:
        conditions = ((self._services.objects.get(key) or {}).get("status") or {}).get("conditions") or ()
        if any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
            self.ready.setdefault(key[1], time.monotonic())


async def measure(control: ControlPlane, *, services: int, idle_s: float, tmp: Path, say: Any = print) -> Run:
    """Create that many services, let them be, restart the operator beside them, delete them."""
    run = Run(services=services)
    async with fleet(control, services, tmp) as rig, watching(rig) as seen:
        rig.start("--allow-model-dir=/srv", "--interval=2")
        made: dict[str, float] = {}
        deadline_s = STARTED_S + services * PER_SERVICE_S
        with phase(run, rig, "create"):
            await create(rig, services, made)
            await rig.until(lambda: reached(seen.ready, services), lambda: f"{len(seen.ready)} ready", s=deadline_s)
        run.to_pod = [seen.pods[name] - began for name, began in made.items()]
        run.to_ready = [seen.ready[name] - began for name, began in made.items()]
        say(f"{services} services ready after {run.phases[-1].seconds:.1f} s")
        with phase(run, rig, "idle"):
            await pause(idle_s)
        rig.stop()
        rig.start("--allow-model-dir=/srv", "--interval=2")
        with phase(run, rig, "restart"):
            await rig.until(lambda: listens(rig), lambda: "the new operator reads its pods", s=deadline_s)
            await pause(idle_s / 2)
        with phase(run, rig, "delete"):
            await each(services, lambda number: rig.delete(f"s{number:04d}"))
            await rig.until(lambda: nothing(seen), lambda: f"{seen.left} left", s=deadline_s)
        say("deleted")
    return run


@contextlib.asynccontextmanager
async def fleet(control: ControlPlane, services: int, tmp: Path) -> AsyncGenerator[Rig]:
    """A namespace with as many nodes of stubs as the services need."""
    async with standing(control, tmp) as rig, contextlib.AsyncExitStack() as stack:
        for number in range(1, math.ceil(services / PODS_PER_NODE) + 1):
            await stack.enter_async_context(FakeKubelet(rig.client, node=f"{rig.namespace}-{number}"))
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
    mark, began, before = rig.audit_mark(), time.monotonic(), processor_s(rig.pid)
    yield
    seconds, cpu_s = time.monotonic() - began, processor_s(rig.pid) - before
    found = [r for r in audit.read(rig.control.paths.audit_log, since=mark)[0] if r.user == USER]
    rss, peak = memory(rig.pid)
    requests = dict(Counter(request.verb for request in found))
    run.phases.append(Phase(name=name, seconds=seconds, requests=requests, cpu_s=cpu_s, rss=rss, peak=peak))


async def create(rig: Rig, services: int, made: dict[str, float]) -> None:
    """All of them, as fast as the API server takes them."""

    async def one(number: int) -> None:
        name = f"s{number:04d}"
        made[name] = time.monotonic()
        await rig.apply(name, **SPEC)

    await each(services, one)


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
    for what, times in (("its first pod", run.to_pod), ("Ready", run.to_ready)):
        lines.append(f"| {what} | {at(times, 50):.2f} s | {at(times, 99):.2f} s | {max(times):.2f} s |")
    verbs = sorted({verb for found in run.phases for verb in found.requests})
    lines += ["", "| phase | seconds | requests a second | " + " | ".join(verbs) + " | processor | memory (peak) |"]
    lines.append("|---|" + "---|" * (len(verbs) + 4))
    for found in run.phases:
        counts = " | ".join(str(found.requests.get(verb, 0)) for verb in verbs)
        rate = sum(found.requests.values()) / found.seconds
        share = 100 * found.cpu_s / found.seconds
        lines.append(
            f"| {found.name} | {found.seconds:.1f} | {rate:.1f} | {counts} | {found.cpu_s:.1f} s, {share:.0f} % | "
            f"{found.rss >> 20} MiB ({found.peak >> 20}) |"
        )
    return "\n".join(lines)


def at(times: list[float], percent: int) -> float:
    """That percentile; of few values the nearest that was seen."""
    return times[0] if len(times) == 1 else statistics.quantiles(times, n=100, method="inclusive")[percent - 1]


def write(page: Path, run: Run, command: str) -> None:
    """Replace the figures of the page. Raises ValueError when it lacks the marks."""
    text = page.read_text()
    if any(text.count(mark) != 1 for mark in MARKS):
        raise ValueError(f"{page} must hold {MARKS[0]!r} and {MARKS[1]!r} once each")
    before, after = text.split(MARKS[0])[0], text.split(MARKS[1])[1]
    load = os.getloadavg()[2]
    said = (
        f"{run.services} services, measured {datetime.now(UTC):%Y-%m-%d} by `{command}` on {processor()}, "
        f"{os.cpu_count()} threads for operator, API server, controllers and stubs together; the machine's load of the "
        f"last 15 minutes was {load:.1f}."
    )
    page.write_text(f"{before}{MARKS[0]}\n{said}\n\n{table(run)}\n{MARKS[1]}{after}")


def processor() -> str:
    """What /proc calls the processor."""
    lines = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return lines[0].partition(":")[2].strip() if lines else platform.processor()


def main() -> int:
    """Measure on a control plane of its own; print, and keep if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--services", type=int, default=500)
    parser.add_argument("--idle", type=float, default=60.0, help="seconds of the idle phase")
    parser.add_argument("--write", action="store_true", help="keep the figures in docs/benchmarks/operator.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        where = Path(tmp)
        with ControlPlane(state_dir=where / "control", binaries=binaries.provide(progress=SilentProgress())) as control:
            install(control)
            run = asyncio.run(measure(control, services=given.services, idle_s=given.idle, tmp=where))
    print(table(run))
    if given.write:
        arguments = [f"--services {given.services}", f"--idle {given.idle:g}"]
        write(PAGE, run, f'make bench-operator BENCH_ARGS="{" ".join(arguments)} --write"')
    return 0


if __name__ == "__main__":
    sys.exit(main())
