"""F22 on everything real: the engine of a replica stands still, so its pod is not ready, and is started again.

It lasts a minute, since a watchdog is patient: `make test-faults` runs it.
"""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from fakes.life import DEADLINE_S, Life
from kvasir_local import stack
from kvasir_local.control_plane import ControlPlane

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(420),
    pytest.mark.skipif(os.environ.get("KVASIR_FAULTS") != "all", reason="make test-faults"),
]


def engine_of(address: str) -> int:
    """The engine's process of the pod with an address: the child of the server that listens there."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if "serve" in words and address in words:
                children = (path / f"task/{path.name}/children").read_text().split()
                return next(int(child) for child in children if "engine" in Path(f"/proc/{child}/cmdline").read_text())
        except (OSError, StopIteration):
            continue  # it ended meanwhile, or is the parent of the server
    raise AssertionError(f"no engine of {address} runs")


def is_ready(pod: dict) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def restarts(life: Life) -> int:
    return sum(one["restartCount"] for pod in life.pods() for one in pod["status"].get("containerStatuses") or ())


async def test_an_engine_that_stands_still_is_unready_and_started_again(life: Life, installed: ControlPlane):
    life.apply(uri="pvc://kvasir-tiny/tiny", replicas=1, autoscaling=None)
    await life.until_ready()
    (pod,) = life.pods()
    engine = engine_of(pod["status"]["podIP"])
    os.kill(engine, signal.SIGSTOP)
    try:
        await life.until(lambda: not is_ready(life.pods()[0]), "the pod is not ready")
        assert restarts(life) == 0, "it had time to go on"
        await life.until(lambda: restarts(life) == 1, "its container is started again")
    finally:
        if Path(f"/proc/{engine}").exists():
            os.kill(engine, signal.SIGCONT)
    await life.until_ready()
    assert life.uids() == {pod["metadata"]["uid"]}, "the same pod"

    def notes() -> list[str]:
        return [event["message"] for event in life.items("events") if event.get("reason") == "WatchdogRestarted"]

    await life.until(notes, "an event says why")
    assert len(notes()) == 1
    assert "Watchdog: " in notes()[0]
    async with AsyncOpenAI(base_url=f"{stack.gateway_url(installed)}/v1", api_key="none", timeout=DEADLINE_S) as client:
        async with asyncio.timeout(DEADLINE_S):
            answer = await client.completions.create(
                model=life.namespace, prompt="hello", max_tokens=4, extra_body={"ignore_eos": True}
            )
    assert answer.choices[0].finish_reason == "length"
