"""A replica of two ranks on everything real: it applies, streams, loses a rank, and starts again with the reason."""

import os
import signal
from typing import Any

import pytest
from openai import AsyncOpenAI

from fakes.life import DEADLINE_S, Life, answer, processes_of
from kvasir_local import stack
from kvasir_local.control_plane import ControlPlane

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


async def test_a_replica_of_two_ranks_streams_and_starts_again_when_one_is_lost(
    life: Life, installed: ControlPlane
) -> None:
    life.apply(replicas=1, autoscaling=None, runtime={"kvCacheTokens": 2048, "tensorParallelSize": 2})
    await life.until_ready()
    (pod,) = life.pods()
    (rank,) = processes_of(pod, "rank_worker")
    name = pod["metadata"]["name"]

    def all_alive() -> bool:
        """Whether the status has both ranks of the pod, alive."""
        alive = [f"{name} rank {rank}: alive, stage 0, shard {rank}, node 0 ({name} on " for rank in range(2)]
        lines = life.ranks()
        return len(lines) == 2 and all(map(str.startswith, lines, alive))

    await life.until(all_alive, "both ranks in the status")
    address = f"{stack.gateway_url(installed)}/v1"
    async with AsyncOpenAI(base_url=address, api_key="none", max_retries=2, timeout=DEADLINE_S) as client:
        assert await answer(client, life.namespace, 40) == "length"
        os.kill(rank, signal.SIGKILL)

        def restarted() -> dict[str, Any] | None:
            (now,) = life.pods()
            (container,) = now["status"]["containerStatuses"]
            ended: dict[str, Any] | None = container["lastState"].get("terminated")
            return ended if container["ready"] and container["restartCount"] == 1 else None

        ended = await life.until(restarted, "the container is ready again")
        assert "rank 1 was killed by SIGKILL" in ended["message"]
        assert ended["exitCode"] == 1
        assert life.uids() == {pod["metadata"]["uid"]}
        await life.until_ready()
        await life.until(all_alive, "both ranks in the status again")
        assert await answer(client, life.namespace, 40) == "length"
