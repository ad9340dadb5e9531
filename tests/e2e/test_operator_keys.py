"""F17 on everything real: a Secret with the keys of clients is missing, made, rotated under streams, and taken away."""

import asyncio

import httpx
import pytest
from openai import AsyncOpenAI

from fakes.life import DEADLINE_S, STREAMS, Life, answers
from kvasir_api import names
from kvasir_local import stack
from kvasir_local.control_plane import ControlPlane

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
OLD, NEW = "old-4f1c", "new-9b2d"
TOKENS = 900


def put(life: Life, *keys: str) -> None:
    """The Secret with these keys, one per line."""
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"team": "\n".join(keys)}}
    life.put(body)


async def test_keys_are_rotated_without_a_restart_and_without_losing_a_stream(life: Life, installed: ControlPlane):
    address = f"{stack.gateway_url(installed)}/v1"
    life.apply(uri="pvc://kvasir-tiny/tiny", replicas=1, autoscaling=None, auth={"secretName": "keys"})
    await life.until(lambda: life.condition("Stalled").get("reason") == "KeysMissing", "the missing Secret is told")
    assert f"(put an API key into Secret {life.namespace}/keys)" in life.condition("Ready")["message"]
    put(life, OLD)
    await life.until_ready()
    pods = life.uids(), restarts(life)
    async with httpx.AsyncClient(base_url=address, timeout=DEADLINE_S) as web:

        async def status(key: str) -> int:
            body = {"model": life.namespace, "prompt": "hello", "max_tokens": 1}
            headers = {"authorization": f"Bearer {key}"} if key else {}
            return (await web.post("/completions", json=body, headers=headers)).status_code

        async def until(key: str, wanted: int) -> None:
            async with asyncio.timeout(DEADLINE_S):
                while await status(key) != wanted:  # noqa: ASYNC110 - nobody tells us when
                    await asyncio.sleep(0.05)

        assert [await status(key) for key in (OLD, NEW, "")] == [200, 401, 401]
        async with AsyncOpenAI(base_url=address, api_key=OLD, max_retries=0, timeout=DEADLINE_S) as client:
            stop = asyncio.Event()
            running = [asyncio.create_task(answers(client, life.namespace, stop, TOKENS)) for _ in range(STREAMS)]
            await life.until(life.busiest, "the pod generates")
            put(life, OLD, NEW)  # both, for as long as clients need to change
            await until(NEW, 200)
            assert await status(OLD) == 200
            stop.set()  # none begins with the old key behind its end
            put(life, NEW)
            await until(OLD, 401)
            assert {end for task in running for end in await task} == {"length"}
        life.kubectl("delete", "secret", "keys")
        await until(NEW, 401)
        await life.until(lambda: life.condition("Degraded").get("reason") == "KeysMissing", "the loss is told")
        put(life, OLD)
        await until(OLD, 200)
    await life.until(lambda: not life.condition("Degraded"), "the end is told")
    assert (life.uids(), restarts(life)) == pods
    shown = life.kubectl("get", "infsvc,pods,deployments,controllerrevisions,events", "-oyaml")
    shown += life.kubectl("logs", f"-l{names.LABEL_SERVICE}=tiny", "--tail=-1")
    assert OLD not in shown
    assert NEW not in shown


def restarts(life: Life) -> list[int]:
    return [pod["status"]["containerStatuses"][0]["restartCount"] for pod in life.pods()]
