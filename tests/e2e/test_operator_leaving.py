"""Pods that somebody else takes away while they stream, by eviction and by `kubectl drain`: every stream ends whole."""

import asyncio
import json

import pytest
from openai import AsyncOpenAI

from fakes.life import DEADLINE_S, STREAMS, Life, answers
from kvasir_api import names
from kvasir_local import kubectl, stack
from kvasir_local.control_plane import ControlPlane

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
TOKENS = 900


async def test_no_client_notices_that_pods_are_removed(life: Life, installed: ControlPlane):
    address = f"{stack.gateway_url(installed)}/v1"
    life.apply(uri="pvc://kvasir-tiny/tiny", replicas=2, autoscaling=None)
    await life.until_ready()
    await evicted_under_streams(life, address)
    await node_drained_under_a_stream(life, address)


async def evicted_under_streams(life: Life, address: str) -> None:
    """Whoever empties nodes takes a pod that streams: it finishes, and nobody notices."""
    stop = asyncio.Event()
    async with AsyncOpenAI(base_url=address, api_key="none", max_retries=0, timeout=DEADLINE_S) as client:
        running = [asyncio.create_task(answers(client, life.namespace, stop, TOKENS)) for _ in range(STREAMS)]
        victim = await life.until(life.busiest, "a pod generates")
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": victim["name"], "namespace": life.namespace},
        }
        path = f"/api/v1/namespaces/{life.namespace}/pods/{victim['name']}/eviction"
        kubectl.run(life.cluster.kubectl, "create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
        await life.until(lambda: victim["uid"] not in life.uids() and len(life.uids()) == 2, "a new pod")
        await life.until_ready()
        stop.set()
        ends = [end for task in running for end in await task]
    assert set(ends) == {"length"}


async def node_drained_under_a_stream(life: Life, address: str) -> None:
    """`kubectl drain` waits for the stream of the only replica, which ends whole; uncordoned, the service is back."""
    life.apply(replicas=1)
    await life.until(lambda: len(life.items("pods")) == 1, "one pod")
    node = life.items("pods")[0]["spec"]["nodeName"]
    selector = f"--pod-selector={names.LABEL_SERVICE}=tiny"
    stop = asyncio.Event()
    async with AsyncOpenAI(base_url=address, api_key="none", max_retries=0, timeout=DEADLINE_S) as client:
        running = [asyncio.create_task(answers(client, life.namespace, stop, TOKENS)) for _ in range(STREAMS)]
        victim = await life.until(life.busiest, "the pod generates")
        stop.set()  # none begins where no replica is
        drain = ["drain", node, selector, "--delete-emptydir-data", f"--timeout={DEADLINE_S:g}s"]
        try:
            await asyncio.to_thread(kubectl.run, life.cluster.kubectl, *drain)
            assert victim["uid"] not in {pod["metadata"]["uid"] for pod in life.items("pods")}
            assert {end for task in running for end in await task} == {"length"}
        finally:
            kubectl.run(life.cluster.kubectl, "uncordon", node)
    await life.until_ready()
