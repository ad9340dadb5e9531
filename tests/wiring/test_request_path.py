"""A traced chat completion passes the functions that docs/architecture.md names, in that order.

The request goes through the real Envoy, the picker of this process, and a real API and engine process.
"""

import asyncio
import re
import sys
import threading
import time
from pathlib import Path

import pytest

from fakes import checkpoints
from fakes.api_process import HERE, ApiProcess, api_process
from fakes.call_trace.sitecustomize import record
from fakes.gateway import gateway, until
from fakes.stub_runtime import StubRuntime

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
HOPS = {"A chat completion": 25, "A changed spec": 12, "A reading": 8}
PACKAGES = {path.name: path for path in (*(ROOT / "operator").glob("kvasir_*"), ROOT / "runtime" / "kvasir_runtime")}
ROW = re.compile(r"^\| \d+ \|.*\| `(\w+)/([\w/]+\.py)` \| `([\w.]+)` \|$", re.MULTILINE)
BESIDE = {"kvasir_gateway/envoy", "kvasir_runtime/guide", "kvasir_runtime/kernels"}
"""Rooms that a request enters and no hop names: the loop that writes Envoy's files runs beside it, the engine drops the
grammar that a request may have had, and the operations of the forward pass differ by device."""
MESSAGES = [{"role": "user", "content": "hello"}]
REAL = (sys.executable, "-m", "kvasir_runtime", "serve")


def hops(heading: str) -> list[tuple[str, str, str]]:
    """Package, file and function of each row of a table of the page, in order."""
    table = PAGE.split(f"\n### {heading}\n")[1].split("\n##")[0]
    found = ROW.findall(table)
    assert len(found) == len(re.findall(r"^\| \d+ \|", table, re.MULTILINE)), "a row names no file or function"
    return found


@pytest.mark.parametrize(("heading", "limit"), HOPS.items())
def test_every_hop_exists_and_there_are_few(heading: str, limit: int):
    found = hops(heading)
    assert 3 <= len(found) <= limit
    for package, file, function in found:
        owner, _, name = function.rpartition(".")
        text = (PACKAGES[package] / file).read_text()
        assert re.search(rf"\bdef {name}\(", text), f"{package}/{file} has no {function}"
        assert not owner or re.search(rf"^class {owner}\b", text, re.MULTILINE), f"{package}/{file} has no {owner}"


def asked(server: ApiProcess, trace: Path) -> list[str]:
    """file:function of every call while one chat completion went through a gateway of this process, in order."""

    async def through_the_gateway() -> None:
        pod = StubRuntime("pod")
        pod.http_port, pod.ops_port = server.http[1], server.ops[1]
        async with gateway() as front:
            front.objects.serve("tiny", pod)

            async def served() -> bool:
                start = time.monotonic_ns()
                status, body, _ = await front.post("tiny", messages=MESSAGES, max_tokens=3, stream=True)
                spans.append((start, time.monotonic_ns()))
                return (status, body.endswith(b"data: [DONE]\n\n")) == (200, True)

            await until(served, "the service is routed")

    spans: list[tuple[int, int]] = []
    record(str(trace))
    try:
        asyncio.run(through_the_gateway())
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    calls = sorted((int(ns), place) for ns, place in (line.split(" ", 1) for line in trace.read_text().splitlines()))
    return [place for ns, place in calls if spans[-1][0] <= ns <= spans[-1][1]]


def test_a_chat_completion_takes_the_path_of_the_page(tmp_path):
    checkpoints.write(tmp_path / "model")
    trace = tmp_path / "trace"
    env = {"PYTHONPATH": f"{HERE / 'call_trace'}:{HERE.parent}", "KVASIR_CALL_TRACE": str(trace)}
    args = ("--kv-cache-tokens", "16384", "--device", "cpu", "--served-model-name", "tiny")
    with api_process(tmp_path / "model", *args, command=REAL, env=env) as server:
        calls = asked(server, trace)

    position = 0
    for package, file, function in hops("A chat completion"):
        hop = f"{package}/{file}:{function}"
        assert hop in calls, f"{hop} was not called"
        assert hop in calls[position:], f"{hop} was called, but before the hop above it"
        position = calls.index(hop, position)
    rooms = {"/".join(place.split("/")[:2]).split(":")[0] for place in calls}
    named = {f"{package}/{file.split('/')[0]}" for package, file, _ in hops("A chat completion")}
    folders = {room for room in rooms if not room.endswith(".py")}
    assert folders - named - BESIDE == set(), "the request enters rooms that the page does not name"
