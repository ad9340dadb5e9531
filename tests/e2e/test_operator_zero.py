"""minReplicas 0 on everything real: to zero without requests, and back by requests that the gateway holds meanwhile."""

import asyncio
import json

import pytest
from openai import AsyncOpenAI

from fakes.life import DEADLINE_S, Life
from kvasir_api import names
from kvasir_gateway.held_places import WAIT_PHASES
from kvasir_local import stack
from kvasir_local.control_plane import ControlPlane

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
CROWD = 20
HELD = f": {names.COMMENT_HELD} "


async def asleep(life: Life) -> None:
    """No replica, no pod, and nothing that a tool would take for a fault."""
    await life.until(
        lambda: life.condition("Ready").get("reason") == "ScaledToZero" and not life.items("pods"), "zero replicas"
    )
    assert life.condition("Ready")["status"] == "True"
    assert life.condition("Ready")["message"] == "0 replicas: no request came within spec.autoscaling.idleSeconds"
    assert not life.condition("Reconciling")


async def test_a_service_goes_to_zero_and_the_next_requests_start_it_again(life: Life, installed: ControlPlane):
    address = f"{stack.gateway_url(installed)}/v1"
    life.apply(autoscaling={"minReplicas": 1, "maxReplicas": 2})
    await life.until_ready()
    # Only now, since it is ready for no longer than that.
    life.apply(autoscaling={"minReplicas": 0, "maxReplicas": 2, "idleSeconds": 5})
    await asleep(life)
    async with AsyncOpenAI(base_url=address, api_key="none", max_retries=0, timeout=DEADLINE_S) as client:

        async def ask() -> int:
            done = await client.completions.create(
                model=life.namespace, prompt="once", max_tokens=4, extra_body={"ignore_eos": True}
            )
            assert done.usage is not None
            return done.usage.completion_tokens

        async def stream() -> list[str]:
            async with client.completions.with_streaming_response.create(
                model=life.namespace, prompt="once", max_tokens=4, stream=True, extra_body={"ignore_eos": True}
            ) as response:
                return [line async for line in response.iter_lines() if line]

        lines, *counts = await asyncio.gather(stream(), *(ask() for _ in range(CROWD)))
    assert counts == [4] * CROWD
    held = [json.loads(line.removeprefix(HELD)) for line in lines if line.startswith(HELD)]
    assert 1 <= held[0]["place"] <= held[0]["of"] <= CROWD + 1
    phases = [WAIT_PHASES.index(one["phase"]) for one in held]
    assert phases == sorted(phases)  # the first comment comes after a second, when the pod may exist
    assert held[-1]["phase"] != "scale"
    assert all(one["eta_s"] is None or one["eta_s"] > 0 for one in held)
    assert lines[-1] == "data: [DONE]"
    await asleep(life)
    changes = life.items("infsvc")[0]["status"]["autoscaling"]["decisions"]
    assert [(c["from"], c["to"], c["signal"]) for c in changes] == [(1, 0, "idle"), (0, 1, "activity"), (1, 0, "idle")]
