"""One service's life on everything real: operator and gateway as pods, our engine behind them, streams that go on."""

import asyncio

import pytest
from openai import AsyncOpenAI

from fakes.life import DEADLINE_S, STREAMS, Life, answer, answers
from kvasir_api import names
from kvasir_local import kubectl, stack
from kvasir_local.control_plane import ControlPlane

IDLE_S = 60.0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


async def test_a_service_lives_through_it_all(life: Life, installed: ControlPlane):
    await refused_and_mended(life)
    address = f"{stack.gateway_url(installed)}/v1"
    await idle(life, address)
    await operator_replaced(life)
    await edited_under_streams(life, address)
    await killed_under_streams(life, address)
    life.kubectl("delete", "infsvc", "tiny")
    kinds = "deployments,controllerrevisions,pods,services"
    await life.until(lambda: not life.items(kinds), "everything is collected")


async def test_a_normal_start_leaves_no_warning(life: Life):
    life.apply()
    await life.until_ready()
    found = [(e["reason"], e["message"]) for e in life.items("events") if e["type"] == "Warning"]
    assert found == []


async def refused_and_mended(life: Life) -> None:
    life.apply(uri="pvc://kvasir-tiny/absent")
    stalled = await life.until(lambda: life.condition("Stalled"), "Stalled")
    assert stalled["reason"] == "ModelLoadFailed"
    assert stalled["message"] == "model directory pvc://kvasir-tiny/absent does not exist"
    life.apply(uri="pvc://kvasir-tiny/tiny")
    await life.until_ready()


async def idle(life: Life, address: str) -> None:
    """Some time after its last request nothing is written for a whole minute, though the autoscaler watches."""
    assert life.items("infsvc")[0]["spec"]["autoscaling"]["maxReplicas"] > 1
    async with AsyncOpenAI(base_url=address, api_key="none", max_retries=2, timeout=DEADLINE_S) as client:
        assert await answer(client, life.namespace, 40) == "length"

    def forgotten() -> bool:
        """Whether the last request has left all windows of the autoscaler."""
        scaling = life.items("infsvc")[0]["status"]["autoscaling"]
        return (scaling.get("rawReplicas"), scaling.get("limitedBy")) == (0, "floor")

    await life.until(forgotten, "no demand")
    for _ in range(3):  # a pod that a busy machine keeps from answering is news
        if not (written := await life.writes(IDLE_S)):
            break
    assert written == []


async def operator_replaced(life: Life) -> None:
    system = [*life.cluster.kubectl, f"--namespace={names.SYSTEM_NAMESPACE}"]
    before = life.uids()
    kubectl.run(system, "delete", "pod", "-l", f"{names.LABEL_NAME}={names.OPERATOR}", "--force", "--grace-period=0")
    kubectl.run(system, "rollout", "status", f"deployment/{names.OPERATOR}", "--timeout=60s")
    life.apply(replicas=2, autoscaling=None)
    await life.until_ready()
    assert before < life.uids()


async def edited_under_streams(life: Life, address: str) -> None:
    """A rollout under load breaks no stream."""
    before, stop = life.uids(), asyncio.Event()
    async with AsyncOpenAI(base_url=address, api_key="none", max_retries=2, timeout=DEADLINE_S) as client:
        running = [asyncio.create_task(answers(client, life.namespace, stop)) for _ in range(STREAMS)]
        life.apply(runtime={"kvCacheTokens": 2048, "blockSize": 32})
        await life.until(lambda: not life.uids() & before, "the old pods are gone")
        await life.until_ready()
        stop.set()
        ends = [end for task in running for end in await task]
    assert len(ends) >= STREAMS
    assert set(ends) == {"length"}


async def killed_under_streams(life: Life, address: str) -> None:
    """The pod is replaced, and every client is told: none hangs, none takes a cut answer for a whole one."""
    stop, ends = asyncio.Event(), list[str]()

    async def stream(client: AsyncOpenAI) -> None:
        while not stop.is_set():
            ends.append(await answer(client, life.namespace, 900))

    async with AsyncOpenAI(base_url=address, api_key="none", max_retries=0, timeout=DEADLINE_S) as client:
        running = [asyncio.create_task(stream(client)) for _ in range(STREAMS)]
        while "error" not in ends:  # until a kill comes while a stream is on the victim
            victim = await life.until(life.busiest, "a pod generates")
            await asyncio.to_thread(life.kubectl, "delete", "pod", victim["name"], "--force", "--grace-period=0")
            await life.until(lambda uid=victim["uid"]: uid not in life.uids() and len(life.uids()) == 2, "a new pod")
            await life.until_ready()
        stop.set()
        await asyncio.gather(*running)
    assert set(ends) == {"error", "length"}
