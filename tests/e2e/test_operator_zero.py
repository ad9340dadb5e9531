"""minReplicas 0 on everything real: to zero without requests, and back by a request that the gateway cannot route."""

import pytest
from openai import AsyncOpenAI

from fakes.life import DEADLINE_S, Life
from kvasir_local import stack
from kvasir_local.control_plane import ControlPlane

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
RETRIES = 40
"""The client waits for Retry-After, two seconds, between them."""


async def asleep(life: Life) -> None:
    """No replica, no pod, and nothing that a tool would take for a fault."""
    await life.until(
        lambda: life.condition("Ready").get("reason") == "ScaledToZero" and not life.items("pods"), "zero replicas"
    )
    assert life.condition("Ready")["status"] == "True"
    assert life.condition("Ready")["message"] == "0 replicas: no request came within spec.autoscaling.idleSeconds"
    assert not life.condition("Reconciling")


async def test_a_service_goes_to_zero_and_the_next_request_starts_it_again(life: Life, installed: ControlPlane):
    address = f"{stack.gateway_url(installed)}/v1"
    life.apply(autoscaling={"minReplicas": 0, "maxReplicas": 2, "idleSeconds": 5})
    await life.until_ready()
    await asleep(life)
    async with AsyncOpenAI(base_url=address, api_key="none", max_retries=RETRIES, timeout=DEADLINE_S) as client:
        done = await client.completions.create(
            model=life.namespace, prompt="once", max_tokens=4, extra_body={"ignore_eos": True}
        )
    assert done.usage is not None
    assert done.usage.completion_tokens == 4
    assert len(life.pods()) == 1
    await asleep(life)
    changes = life.items("infsvc")[0]["status"]["autoscaling"]["decisions"]
    assert [(c["from"], c["to"], c["signal"]) for c in changes] == [(1, 0, "idle"), (0, 1, "activity"), (1, 0, "idle")]
