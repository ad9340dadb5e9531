"""A replica of two pods on everything real: it streams, loses a rank, loses a pod, is replaced and scaled, as one."""

import asyncio
import contextlib
import os
import signal
from typing import Any

import pytest
from openai import AsyncOpenAI

from fakes.life import DEADLINE_S, Life, answer, answers, processes_of
from kvasir_api import names
from kvasir_local import stack
from kvasir_local.control_plane import ControlPlane

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

GROUP = {"kvCacheTokens": 2048, "tensorParallelSize": 2, "nnodes": 2}


class Group:
    """The pods of a service by their part in its replicas."""

    def __init__(self, life: Life) -> None:
        self.life = life

    def of(self, role: str) -> list[dict[str, Any]]:
        """Pods of a role that are not on their way out."""
        return [pod for pod in self.life.pods() if pod["metadata"]["labels"].get(names.LABEL_ROLE) == role]

    def uids(self) -> tuple[set[str], set[str]]:
        """Of the pods that are node 0, and of the others."""
        leaders, nodes = (
            {pod["metadata"]["uid"] for pod in self.of(role)} for role in (names.ROLE_SERVE, names.ROLE_NODE)
        )
        return leaders, nodes

    def whole(self, replicas: int) -> bool:
        """Whether there are so many replicas, each of two ready pods."""
        parts = [self.of(role) for role in (names.ROLE_SERVE, names.ROLE_NODE)]
        ready = [[is_ready(pod) for pod in pods] for pods in parts]
        return ready == [[True] * replicas] * 2

    async def until_whole(self, replicas: int) -> None:
        await self.life.until(lambda: self.whole(replicas), f"{replicas} replicas of two ready pods")
        await self.life.until_ready()


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


async def test_a_replica_of_two_pods_lives_as_one(life: Life, installed: ControlPlane) -> None:
    group = Group(life)
    # So small that the local node has room for three replicas during the rollout.
    life.apply(replicas=1, autoscaling=None, runtime=GROUP, resources={"cpu": "100m", "memory": "1Gi"})
    await group.until_whole(1)
    address = f"{stack.gateway_url(installed)}/v1"
    async with AsyncOpenAI(base_url=address, api_key="none", max_retries=4, timeout=DEADLINE_S) as client:
        assert await answer(client, life.namespace, 40) == "length"
        await shows_a_rank_that_is_missing(group)
        await loses_a_rank(group)
        assert await answer(client, life.namespace, 40) == "length"

        stop = asyncio.Event()
        streams = [asyncio.create_task(answers(client, life.namespace, stop)) for _ in range(2)]
        await loses_a_pod(group)
        await is_replaced_and_scaled(group)
        stop.set()
        ends = [end for found in await asyncio.gather(*streams) for end in found]
        assert ends
        assert set(ends) == {"length"}, "a stream was broken"


async def shows_a_rank_that_is_missing(group: Group) -> None:
    """Node 1 is frozen, so that node 0 starts again and waits for it: the status names its rank first, with its pod.

    It joins again once it goes on.
    """
    (leader,), (node,) = group.of(names.ROLE_SERVE), group.of(names.ROLE_NODE)
    replica, pods = leader["metadata"]["name"], (leader["metadata"]["name"], node["metadata"]["name"])

    def is_shown(*ranks: tuple[int, str]) -> bool:
        """Whether the status has a line for each of these ranks, in this order."""
        lines = group.life.ranks()
        begins = [
            f"{replica} rank {rank}: {said}, stage 0, shard {rank}, node {rank} ({pods[rank]} on "
            for rank, said in ranks
        ]
        return len(lines) == len(begins) and all(map(str.startswith, lines, begins))

    await group.life.until(lambda: is_shown((0, "alive"), (1, "alive")), "both ranks in the status")
    frozen = processes_of(node, "kvasir_runtime")
    assert frozen
    for process in frozen:
        os.kill(process, signal.SIGSTOP)
    try:
        await group.life.until(lambda: is_shown((1, "missing"), (0, "alive")), "the rank of the frozen pod is missing")
    finally:
        for process in frozen:
            with contextlib.suppress(ProcessLookupError):  # its node has ended it since
                os.kill(process, signal.SIGCONT)
    await group.life.until(lambda: group.whole(1) and is_shown((0, "alive"), (1, "alive")), "both ranks alive again")


async def loses_a_rank(group: Group) -> None:
    """Both containers start again and join again; the message says which rank it was."""
    before = group.uids()
    (leader,), (node,) = group.of(names.ROLE_SERVE), group.of(names.ROLE_NODE)
    assert node["metadata"]["labels"][names.LABEL_LEADER] == leader["metadata"]["name"]
    (engine,) = processes_of(node, "engine_main")
    os.kill(engine, signal.SIGKILL)

    def restarted() -> list[dict[str, Any]]:
        found = [pod["status"]["containerStatuses"][0] for pod in group.life.pods()]
        ended = [status["lastState"].get("terminated") for status in found]
        return [one for one in ended if one] if all(ended) and group.whole(1) else []

    ended = await group.life.until(restarted, "both containers are ready again")
    assert any("node 1" in one["message"] for one in ended), ended
    assert group.uids() == before


async def loses_a_pod(group: Group) -> None:
    """The pod of a node is deleted, as an eviction does: its node 0 drains first, and other pods take their places."""
    leaders, nodes = group.uids()
    (node,) = group.of(names.ROLE_NODE)
    group.life.kubectl("delete", "pod", node["metadata"]["name"], "--wait=false")

    def replaced() -> bool:
        now = group.uids()
        return not (now[0] & leaders or now[1] & nodes) and group.whole(1)

    await group.life.until(replaced, "other pods are ready")
    await group.life.until_ready()
    events = [event for event in group.life.items("events") if event["reason"] == "ReplicaRegrouped"]
    assert node["metadata"]["name"] in events[0]["message"]


async def is_replaced_and_scaled(group: Group) -> None:
    leaders, nodes = group.uids()
    group.life.apply(replicas=2, runtime={**GROUP, "kvCacheTokens": 2064})
    await group.until_whole(2)
    now = group.uids()
    assert (now[0] & leaders, now[1] & nodes) == (set(), set())
    group.life.kubectl("scale", "infsvc/tiny", "--replicas=1")
    await group.until_whole(1)
    (service,) = group.life.items("infsvc")
    assert (service["status"]["replicas"], service["status"]["readyReplicas"]) == (1, 1)
    await group.life.until(lambda: len(group.life.items("statefulsets")) == 1, "the set of the other replica is gone")
