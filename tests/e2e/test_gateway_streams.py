"""The whole thread under the gateway: two services of the demo's model, many streams, clients that leave."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml
from openai import AsyncOpenAI, NotFoundError

from kvasir_api import names, state
from kvasir_kube.client import Client, configuration
from kvasir_local import kubectl, stack
from kvasir_local.control_plane import ControlPlane
from kvasir_local.demo.scenario import put_model

SAMPLE = Path(__file__).parents[2] / "manifests" / "samples" / "tiny.yaml"
DEADLINE_S = 90.0
pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]


class Thread:
    """Two services in one namespace, behind the installed gateway."""

    def __init__(self, cluster: ControlPlane, namespace: str) -> None:
        self.namespace = namespace
        self.models = [f"{namespace}/one", f"{namespace}/two"]
        self.client = AsyncOpenAI(
            base_url=f"{stack.gateway_url(cluster)}/v1", api_key="none", max_retries=0, timeout=DEADLINE_S
        )
        self._program = [*cluster.kubectl, f"--namespace={namespace}"]

    async def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return await asyncio.to_thread(kubectl.run, self._program, *arguments, stdin=stdin)

    async def start(self) -> None:
        sample = next(item for item in yaml.safe_load_all(SAMPLE.read_text()) if item["kind"] == names.KIND)
        del sample["spec"]["autoscaling"]
        written = []
        for model in self.models:
            name = model.rpartition("/")[2]
            spec = {**sample["spec"], "model": {**sample["spec"]["model"], "servedName": model}}
            written.append({**sample, "metadata": {"name": name}, "spec": spec})
        await self.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(written))
        for model in self.models:
            await until(lambda model=model: self.serves(model), f"{model} is served")

    async def serves(self, model: str) -> bool:
        """Whether a first token comes."""
        try:
            await self.chat(model, max_tokens=1)
        except Exception:  # noqa: BLE001 - whatever is not there yet; the deadline tells
            return False
        return True

    async def chat(self, model: str, **fields: Any) -> str:
        found = await self.client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "What is Kvasir?"}], temperature=0.0, **fields
        )
        return found.choices[0].message.content or ""

    async def state_url(self, service: str) -> str:
        selector = f"{names.LABEL_SERVICE}={service}"
        pods = json.loads(await self.kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]
        return f"http://{pods[0]['status']['podIP']}:{names.PORT_OPS}{names.PATH_STATE}"


async def until(found: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if await found():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"not within {DEADLINE_S:g} s: {what}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def thread(installed: ControlPlane) -> AsyncIterator[Thread]:
    namespace = f"streams-{time.time_ns() % 10**9}"
    await asyncio.to_thread(kubectl.run, installed.kubectl, "create", "namespace", namespace)
    async with Client(await configuration(str(installed.kubeconfig))) as client:
        await put_model(client, SAMPLE, namespace=namespace, deadline_s=DEADLINE_S)
    found = Thread(installed, namespace)
    await found.start()
    yield found
    await found.client.close()
    await asyncio.to_thread(kubectl.run, installed.kubectl, "delete", "namespace", namespace, "--wait=false")


async def test_two_services_answer_behind_one_address(thread: Thread):
    listed = [card.id async for card in thread.client.models.list()]
    assert set(thread.models) <= set(listed)
    one, two = [await thread.chat(model, max_tokens=24) for model in thread.models]
    assert one == two != ""
    with pytest.raises(NotFoundError) as refused:
        await thread.chat(f"{thread.namespace}/three")
    assert refused.value.code == "model_not_found"


async def stream(thread: Thread, seed: int, max_tokens: int) -> tuple[str, str | None, int]:
    """Text, finish reason and counted tokens of one stream."""
    chunks = await thread.client.completions.create(
        model=thread.models[0],
        prompt=f"Question {seed}: what is a block?",
        max_tokens=max_tokens,
        seed=seed,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    text, finish, tokens = "", None, 0
    async for chunk in chunks:
        for choice in chunk.choices:
            text += choice.text
            finish = choice.finish_reason or finish
        tokens = chunk.usage.completion_tokens if chunk.usage else tokens
    return text, finish, tokens


async def test_32_streams_at_once_are_whole(thread: Thread):
    found = await asyncio.gather(*(stream(thread, seed, 48) for seed in range(32)))
    assert [(finish, tokens) for _, finish, tokens in found] == [("length", 48)] * 32
    assert all(text for text, _, _ in found)


async def state_when(
    session: aiohttp.ClientSession, url: str, wanted: Callable[[state.RuntimeState], bool]
) -> state.RuntimeState:
    """The first document that is as wanted, asked for without a pause so that few steps pass in between."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        async with session.get(url) as response:
            said = state.decode(await response.read())
        if wanted(said):
            return said
    raise AssertionError(f"not within {DEADLINE_S:g} s; last: {said}")


async def left(
    thread: Thread, session: aiohttp.ClientSession, url: str
) -> tuple[state.RuntimeState, state.RuntimeState]:
    """What a replica says while it streams to four clients, and once it is idle after they have left."""

    async def streams(seed: int) -> None:
        while True:
            await stream(thread, seed, 400)

    tasks = [asyncio.create_task(streams(seed)) for seed in range(4)]
    before = await state_when(session, url, lambda said: said.running == 4)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return before, await state_when(session, url, lambda said: (said.running, said.kv.pinned_tokens) == (0, 0))


async def test_blocks_of_a_client_that_leaves_are_free_soon(thread: Thread):
    url, deadline = await thread.state_url("one"), time.monotonic() + DEADLINE_S
    async with aiohttp.ClientSession() as session:
        while True:  # until they leave before an answer has ended, which takes less than a second
            assert time.monotonic() < deadline, "answers end although their clients have left"
            before, after = await left(thread, session, url)
            aborted = after.totals.aborts - before.totals.aborts
            arrived = after.totals.arrivals - before.totals.arrivals
            assert aborted + after.totals.completions - before.totals.completions == 4 + arrived
            if (aborted, arrived) == (4, 0):
                break
    # The engine still makes a few tokens for them, more on a busy machine.
    assert after.totals.generation_tokens - before.totals.generation_tokens < before.remaining_tokens
    assert after.waiting == 0
