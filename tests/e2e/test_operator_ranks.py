"""A replica of two ranks on everything real: it applies, streams, loses a rank, and starts again with the reason."""

import asyncio
import os
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from openai import AsyncOpenAI

from fakes import checkpoints
from fakes.life import DEADLINE_S, Life, answer, processes_of
from kvasir_local import stack
from kvasir_local.control_plane import ControlPlane

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        pytest.param("qwen3", {"tensorParallelSize": 2}, id="of each layer"),
        pytest.param("qwen3_moe", {"dataParallelSize": 2}, id="with requests of their own"),
        pytest.param("deepseek_v2", {"dataParallelSize": 2, "enableExpertParallel": True}, id="and whole experts"),
    ],
)
async def test_a_replica_of_two_ranks_streams_and_starts_again_when_one_is_lost(
    life: Life, installed: ControlPlane, family: str, sizes: dict[str, Any]
) -> None:
    checkpoints.write(life.volume() / family, checkpoints.Shape(family=family))
    runtime = {"kvCacheTokens": 2048, **sizes}
    life.apply(uri=f"pvc://kvasir-tiny/{family}", replicas=1, autoscaling=None, runtime=runtime)
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
        assert await streams(client, life.namespace) == ["length"] * 4
        killed = datetime.now(UTC)
        os.kill(rank, signal.SIGKILL)

        def restarted() -> dict[str, Any] | None:
            (now,) = life.pods()
            (container,) = now["status"]["containerStatuses"]
            ended: dict[str, Any] | None = container["lastState"].get("terminated")
            return ended if container["ready"] and container["restartCount"] == 1 else None

        ended = await life.until(restarted, "the container is ready again")
        assert "rank 1 was killed by SIGKILL" in ended["message"]
        assert ended["exitCode"] == 1
        assert datetime.fromisoformat(ended["finishedAt"]) - killed < timedelta(seconds=10)
        assert life.uids() == {pod["metadata"]["uid"]}
        await life.until_ready()
        await life.until(all_alive, "both ranks in the status again")
        assert await streams(client, life.namespace) == ["length"] * 4


async def streams(client: AsyncOpenAI, model: str) -> list[str]:
    """How four at once end, which ranks with requests of their own share."""
    return await asyncio.gather(*(answer(client, model, 40) for _ in range(4)))
