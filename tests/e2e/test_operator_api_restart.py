"""The API server is killed under load and started again, on everything real."""

import asyncio
import os
import signal
import time
from collections import Counter

import pytest
from openai import AsyncOpenAI

from fakes.life import DEADLINE_S, SAMPLE, Life, answer, answers
from kvasir_api import names
from kvasir_kube import kinds
from kvasir_kube.client import Client, configuration
from kvasir_local import audit, binaries, component_flags, install, processes, stack
from kvasir_local.cluster_state import RecordedNode
from kvasir_local.control_plane import ControlPlane
from kvasir_local.demo.scenario import put_model
from kvasir_local.progress import SilentProgress

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
NAMESPACE = "restarted"
NODE = RecordedNode(name="kvasir-0", index=0, fake_gpus=0)
TOKENS = 900
STREAMS = 8
"""Of which the cache of one replica holds three."""


@pytest.fixture
async def own(tmp_path):
    """A cluster that no other test needs, with operator and gateway, and a model in a namespace."""
    programs = await asyncio.to_thread(binaries.provide, progress=SilentProgress())
    with ControlPlane(state_dir=tmp_path / "state", binaries=programs) as cluster:
        await asyncio.to_thread(set_up, cluster)
        async with Client(await configuration(str(cluster.kubeconfig))) as client:
            await client.create(kinds.NAMESPACE, {"metadata": {"name": NAMESPACE}})
            await put_model(client, SAMPLE, namespace=NAMESPACE, deadline_s=DEADLINE_S)
        yield cluster


def set_up(cluster: ControlPlane) -> None:
    overlay = install.find_manifests()
    assert overlay is not None
    cluster.start_node(NODE)
    cluster.await_node(NODE.name)
    address = cluster.state.network.node_address
    install.apply(cluster.kubectl, overlay, node_address=address, progress=SilentProgress())
    install.await_workloads(cluster.kubectl, progress=SilentProgress(), timeout_s=DEADLINE_S)


async def test_streams_scaling_and_replicas_outlive_a_restart_of_the_api_server(own: ControlPlane):
    life, stop = Life(own, NAMESPACE), asyncio.Event()
    address = f"{stack.gateway_url(own)}/v1"
    life.apply(uri="pvc://kvasir-tiny/tiny", autoscaling={"minReplicas": 1, "maxReplicas": 2})
    await life.until_ready()
    before, mark = life.uids(), own.paths.audit_log.stat().st_size
    assert len(before) == 1
    async with AsyncOpenAI(base_url=address, api_key="none", max_retries=0, timeout=DEADLINE_S) as client:
        running = [asyncio.create_task(answers(client, NAMESPACE, stop, TOKENS))]
        await killed(own)
        # Requests are routed and computed without it, and the load begins to need a second replica.
        assert await answer(client, NAMESPACE, 40) == "length"
        running += [asyncio.create_task(answers(client, NAMESPACE, stop, TOKENS)) for _ in range(STREAMS - 1)]
        assert await answer(client, NAMESPACE, 40) == "length"
        await asyncio.to_thread(own.start)
        await life.until(lambda: len(life.uids()) == 2, "a second replica")
        await life.until_ready()
        assert before < life.uids(), "a replica was removed"
        stop.set()
        ends = [end for task in running for end in await task]
    assert len(ends) >= STREAMS
    assert set(ends) == {"length"}
    assert [(c["from"], c["to"]) for c in life.items("infsvc")[0]["status"]["autoscaling"]["decisions"]] == [(1, 2)]
    written = of_workloads(own, mark)
    # An operator that could not renew its Lease ended. The next one takes the fields of a Deployment over before it
    # applies for the first time, which is a write of its own.
    most = {"pods": 1, "deployments": 1 + min(1, operator_restarts(own))}
    assert written
    assert all(times <= most[resource] for (_, resource, *_), times in written.items()), f"written twice: {written}"


async def killed(cluster: ControlPlane) -> None:
    """The API server without a word, as a node that loses power."""
    process = cluster.state.process(component_flags.APISERVER)
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + DEADLINE_S
    while processes.alive(process):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def operator_restarts(cluster: ControlPlane) -> int:
    found = Life(cluster, names.SYSTEM_NAMESPACE).items("pods")
    statuses = [pod["status"] for pod in found if pod["metadata"]["name"].startswith(names.OPERATOR)]
    assert statuses
    return sum(container["restartCount"] for status in statuses for container in status["containerStatuses"])


def of_workloads(cluster: ControlPlane, mark: int) -> Counter[tuple[str, ...]]:
    """Successful writes of the operator to what makes replicas."""
    found = audit.writes(audit.read(cluster.paths.audit_log, since=mark)[0])
    return Counter(
        (w.verb, w.resource, w.subresource, w.name)
        for w in found
        if names.OPERATOR in w.user and w.resource in {"deployments", "pods"} and w.code < 400
    )
