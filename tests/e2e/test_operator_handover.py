"""A service with a replica for prompts on everything real: it streams, hands prompts over, and answers are equal."""

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI

from fakes.life import DEADLINE_S, STREAMS, Life, answers
from kvasir_api import names
from kvasir_local import stack
from kvasir_local.control_plane import ControlPlane

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
ROLES = {"prefill": {"minReplicas": 1, "maxReplicas": 1}}
WORDS = "the operator watches the services and the engine reads a plan and answers with tokens " * 50
"""As many tokens as one replica computes in tenths of a second."""


def by_role(life: Life) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The pod that answers and the one that computes prompts, once there are both."""
    found: dict[bool, dict[str, Any]] = {}
    for pod in life.pods():
        role = (pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_SERVING_ROLE)
        found[role == names.SERVING_ROLE_PREFILL] = pod
    return (found[False], found[True]) if len(found) == 2 else None


async def completed(client: AsyncOpenAI, model: str, number: int) -> str:
    """An answer to a prompt of its own, streamed."""
    prompt = f"question {number}: {WORDS}"
    chunks = await client.completions.create(model=model, prompt=prompt, max_tokens=12, temperature=0, stream=True)
    return "".join([chunk.choices[0].text async for chunk in chunks if chunk.choices])


async def test_prompts_are_handed_over_and_answers_are_equal(life: Life, installed: ControlPlane) -> None:
    life.apply(replicas=2, autoscaling=None, runtime={"kvCacheTokens": 16_384, "kvHostBytes": 100_000_000}, roles=ROLES)
    await life.until_ready()
    decode, prefill = await life.until(lambda: by_role(life), "one of two replicas is for prompts")
    address, told = f"{stack.gateway_url(installed)}/v1", dict[int, str]()
    async with AsyncOpenAI(base_url=address, api_key="none", max_retries=2, timeout=DEADLINE_S) as client:
        stop = asyncio.Event()
        streams = [asyncio.create_task(answers(client, life.namespace, stop)) for _ in range(3 * STREAMS)]

        def handed_over() -> int:
            return life.state_of(decode).kv_host.handed_over_prompts

        try:
            async with asyncio.timeout(DEADLINE_S):
                # What prompts cost running answers is measured by the first ones.
                while len(told) < 4 or not await asyncio.to_thread(handed_over):
                    told[len(told)] = await completed(client, life.namespace, len(told))
        finally:
            stop.set()
            ends = await asyncio.gather(*streams)
        assert {end for stream in ends for end in stream} == {"length"}
    host = life.state_of(prefill)
    assert host.kv_host.peer_prompts == host.totals.arrivals > 0, "it got prompts of the other one alone"
    alone = f"http://{prefill['status']['podIP']}:{names.PORT_HTTP}/v1"
    async with AsyncOpenAI(base_url=alone, api_key="none", max_retries=2, timeout=DEADLINE_S) as client:
        assert {number: await completed(client, life.namespace, number) for number in told} == told

    def successor() -> tuple[dict[str, Any], dict[str, Any]] | None:
        found = by_role(life)
        return found if found and found[1]["metadata"]["uid"] != prefill["metadata"]["uid"] else None

    life.kubectl("delete", "pod", prefill["metadata"]["name"], "--wait=false")
    await life.until(successor, "another replica is for prompts")
