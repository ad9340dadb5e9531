"""Streams whose only replica vanishes on everything real: they wait for the next one and go on there."""

import asyncio

import pytest
from openai import AsyncOpenAI

from fakes.life import DEADLINE_S, Life
from kvasir_api import names
from kvasir_local import stack
from kvasir_local.control_plane import ControlPlane

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
TOKENS = 600
STREAMS = 6
"""More than the replica computes at a time, so that some run when it vanishes."""
Answer = tuple[str, list[int]]
"""Text and counted tokens."""
ASKED = {"prompt": "What is Kvasir?", "max_tokens": TOKENS, "temperature": 0, "extra_body": {"ignore_eos": True}}


async def read_all(client: AsyncOpenAI, model: str, first: asyncio.Event, stop: asyncio.Event) -> list[Answer]:
    """One stream after the other until it is stopped."""
    found = []
    while not stop.is_set():
        found.append(await read(client, model, first))
    return found


async def read(client: AsyncOpenAI, model: str, first: asyncio.Event) -> Answer:
    """A stream that may be resumed."""
    text, counts = "", []
    async for chunk in await client.completions.create(
        model=model,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers={names.HEADER_RESUME: "1"},
        **ASKED,
    ):
        first.set()
        text += "".join(choice.text for choice in chunk.choices)
        counts += [chunk.usage.completion_tokens] if chunk.usage else []
    return text, counts


async def test_streams_outlive_their_only_replica(life: Life, installed: ControlPlane):
    life.apply(replicas=1, autoscaling=None, runtime={"kvCacheTokens": 2048, "dtype": "float32", "prefixCache": False})
    await life.until_ready()
    address, first, stop = f"{stack.gateway_url(installed)}/v1", asyncio.Event(), asyncio.Event()
    async with AsyncOpenAI(base_url=address, api_key="none", max_retries=0, timeout=DEADLINE_S) as client:
        await life.until(lambda: life.state_of(life.pods()[0]).continuation_keys, "the operator has sent the keys")
        whole = await client.completions.create(model=life.namespace, **ASKED)
        streams = [asyncio.create_task(read_all(client, life.namespace, first, stop)) for _ in range(STREAMS)]
        await first.wait()
        gone = life.pods()[0]["metadata"]["name"]
        await asyncio.to_thread(life.kubectl, "delete", "pod", gone, "--grace-period=0", "--force")
        await life.until(lambda: arrivals(life, gone), "the next one has a part in it")
        stop.set()
        answers = [answer for found in await asyncio.gather(*streams) for answer in found]
    assert len(answers) >= STREAMS
    assert answers == [(whole.choices[0].text, [TOKENS])] * len(answers)


def arrivals(life: Life, gone: str) -> int:
    """At the replica that took the place of one; 0 before there is one that answers."""
    pods = [pod for pod in life.pods() if pod["metadata"]["name"] != gone and pod["status"].get("podIP")]
    try:
        return life.state_of(pods[0]).totals.arrivals if pods else 0
    except OSError:  # it does not listen yet
        return 0
