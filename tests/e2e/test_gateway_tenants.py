"""A tenant on everything real: its right is bound, its keys open its service at the gateway, and one is replaced."""

import asyncio

import httpx
import pytest
import yaml
from openai import AsyncOpenAI

from fakes.life import DEADLINE_S, Life
from fakes.operator_rig import ROOT
from kvasir_api import names
from kvasir_local import stack
from kvasir_local.control_plane import ControlPlane

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
OLD, NEW = "old-4f1c", "new-9b2d"
LIMIT = 1000


def put_keys(life: Life, key: str) -> None:
    """The Secret of the tenant with this key alone."""
    metadata = {"name": "team-a", "labels": {names.LABEL_TENANT_KEYS: "true"}}
    life.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"keys": key}})


async def test_a_tenants_keys_open_its_service_at_the_gateway(life: Life, installed: ControlPlane):
    life.apply(uri="pvc://kvasir-tiny/tiny", replicas=1, autoscaling=None)
    tenant, binding = yaml.safe_load_all((ROOT / "manifests" / "samples" / "tenant.yaml").read_text())
    tenant["spec"] |= {"services": [], "graceSeconds": 0, "limits": {"requestsPerMinute": LIMIT}}
    put_keys(life, OLD)
    life.put(tenant)
    await life.until(lambda: condition(life).get("reason") == "KeysUnread", "the right is not bound")
    await life.until_ready()
    address = f"{stack.gateway_url(installed)}/v1"
    async with httpx.AsyncClient(base_url=address, timeout=DEADLINE_S) as web:

        async def ask(key: str) -> httpx.Response:
            body = {"model": life.namespace, "prompt": "hello", "max_tokens": 1}
            return await web.post("/completions", json=body, headers={"authorization": f"Bearer {key}"} if key else {})

        async def until(key: str, wanted: int) -> None:
            async with asyncio.timeout(DEADLINE_S):
                while (await ask(key)).status_code != wanted:  # noqa: ASYNC110 - nobody tells us when
                    await asyncio.sleep(0.05)

        assert (await ask("")).status_code == 200, "unbound, the service is open as its replicas are"
        life.put(binding)
        await until("", 401)
        answer = await ask(OLD)
        assert (answer.status_code, answer.headers["x-ratelimit-limit-requests"]) == (200, str(LIMIT))
        assert condition(life)["status"] == "True"
        async with AsyncOpenAI(base_url=address, api_key=OLD, max_retries=0, timeout=DEADLINE_S) as client:
            assert life.namespace in [model.id async for model in client.models.list()]
        assert life.namespace not in (await web.get("/models")).text
        put_keys(life, NEW)
        await until(NEW, 200)
        await until(OLD, 401)
    shown = life.kubectl("get", "tenants,events", "-oyaml")
    shown += life.kubectl("get", "secret", names.GATEWAY_KEYS_SECRET, f"--namespace={names.SYSTEM_NAMESPACE}", "-oyaml")
    assert OLD not in shown
    assert NEW not in shown


def condition(life: Life) -> dict[str, str]:
    """Ready of the tenant; empty before there is one."""
    (tenant,) = life.items("tenants")
    return ((tenant.get("status") or {}).get("conditions") or [{}])[0]
