"""One service's life on everything real: operator and gateway as pods, our engine behind them, streams that go on."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import AsyncOpenAI

from kvasir_api import names
from kvasir_kube.client import Client, configuration
from kvasir_local import audit, kubectl, stack
from kvasir_local.control_plane import ControlPlane
from kvasir_local.demo.walk import put_model

SAMPLE = Path(__file__).parents[2] / "manifests" / "samples" / "tiny.yaml"
OPERATOR_USER = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{names.OPERATOR}"
DEADLINE_S = 90.0
SETTLE_S = 10.0
IDLE_S = 60.0
STREAMS = 4

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


class Life:
    """One service in one namespace, by kubectl and by the openai client."""

    def __init__(self, cluster: ControlPlane, namespace: str) -> None:
        self.namespace, self.cluster = namespace, cluster
        self._program = [*cluster.kubectl, f"--namespace={namespace}"]
        sample = next(item for item in yaml.safe_load_all(SAMPLE.read_text()) if item["kind"] == names.KIND)
        self._spec: dict[str, Any] = {k: v for k, v in sample["spec"].items() if k != "autoscaling"}
        self._spec["model"] = {**self._spec["model"], "servedName": namespace}

    def kubectl(self, *arguments: str) -> str:
        return kubectl.run(self._program, *arguments)

    def items(self, kind: str, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, "-ojson", *arguments))["items"]
        return found

    def apply(self, *, uri: str = "", **spec: Any) -> None:
        if uri:
            self._spec["model"] = {**self._spec["model"], "uri": uri}
        self._spec.update(spec)
        manifest = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "tiny"}}
        kubectl.apply(self._program, yaml.safe_dump({**manifest, "spec": self._spec}))

    def condition(self, kind: str) -> dict[str, Any]:
        """A condition of the present generation, empty when there is none."""
        (service,) = self.items("infsvc")
        conditions = (service.get("status") or {}).get("conditions") or ()
        found = [c for c in conditions if c["type"] == kind]
        return found[0] if found and found[0]["observedGeneration"] == service["metadata"]["generation"] else {}

    def uids(self) -> set[str]:
        return {p["metadata"]["uid"] for p in self.items("pods") if not p["metadata"].get("deletionTimestamp")}

    async def until(self, found: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if answer := await asyncio.to_thread(found):
                return answer
            await asyncio.sleep(0.05)
        raise AssertionError(f"not within {DEADLINE_S:g} s: {what}\n{self.kubectl('get', 'infsvc,pods', '-oyaml')}")

    async def until_ready(self) -> None:
        await self.until(lambda: self.condition("Ready").get("status") == "True", "Ready")

    async def writes(self, seconds: float) -> int:
        """How often the operator writes in this namespace within that time."""
        log = self.cluster.layout.audit_log
        mark = log.stat().st_size
        for _ in range(round(seconds / 0.05)):
            await asyncio.sleep(0.05)
        found, _ = audit.read(log, since=mark)
        return sum(w.user == OPERATOR_USER and w.namespace == self.namespace for w in found)


async def stream(client: AsyncOpenAI, model: str, stop: asyncio.Event) -> list[str]:
    """Stream one answer after the other until told to stop; how each one ended."""
    ends = []
    while not stop.is_set():
        last = "broken"
        async for chunk in await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "What is Kvasir?"}], max_tokens=200, stream=True
        ):
            last = (chunk.choices and chunk.choices[0].finish_reason) or last
        ends.append(last)
    return ends


@pytest.fixture
async def life(installed: ControlPlane):
    namespace = f"life-{time.time_ns() % 10**9}"
    kubectl.run(installed.kubectl, "create", "namespace", namespace)
    async with Client(await configuration(str(installed.kubeconfig))) as client:
        await put_model(client, SAMPLE, namespace=namespace, deadline_s=DEADLINE_S)
    yield Life(installed, namespace)
    kubectl.run(installed.kubectl, "delete", "namespace", namespace, "--wait=false")


async def test_a_service_lives_through_it_all(life: Life, installed: ControlPlane):
    await refused_and_mended(life)
    await idle(life)
    await operator_replaced(life)
    await edited_under_streams(life, f"{stack.gateway_url(installed)}/v1")
    await killed(life)
    life.kubectl("delete", "infsvc", "tiny")
    kinds = "deployments,controllerrevisions,pods,services"
    await life.until(lambda: not life.items(kinds), "everything is collected")


async def refused_and_mended(life: Life) -> None:
    life.apply(uri="pvc://kvasir-tiny/absent")
    stalled = await life.until(lambda: life.condition("Stalled"), "Stalled")
    assert stalled["reason"] == "ModelLoadFailed"
    assert stalled["message"] == "model directory /models/absent does not exist"
    life.apply(uri="pvc://kvasir-tiny/tiny")
    await life.until_ready()


async def idle(life: Life) -> None:
    """Soon after it is ready the service is left alone, and then for a whole minute nothing is written."""
    for _ in range(6):
        if await life.writes(SETTLE_S) == 0:
            break
    assert await life.writes(IDLE_S) == 0


async def operator_replaced(life: Life) -> None:
    system = [*life.cluster.kubectl, f"--namespace={names.SYSTEM_NAMESPACE}"]
    before = life.uids()
    kubectl.run(system, "delete", "pod", "-l", f"{names.LABEL_NAME}={names.OPERATOR}", "--force", "--grace-period=0")
    kubectl.run(system, "rollout", "status", f"deployment/{names.OPERATOR}", "--timeout=60s")
    life.apply(replicas=2)
    await life.until_ready()
    assert before < life.uids()


async def edited_under_streams(life: Life, address: str) -> None:
    """A rollout under load breaks no stream."""
    before, stop = life.uids(), asyncio.Event()
    async with AsyncOpenAI(base_url=address, api_key="none", max_retries=2, timeout=DEADLINE_S) as client:
        running = [asyncio.create_task(stream(client, life.namespace, stop)) for _ in range(STREAMS)]
        life.apply(runtime={"kvCacheTokens": 2048, "blockSize": 32})
        await life.until(lambda: not life.uids() & before, "the old pods are gone")
        await life.until_ready()
        stop.set()
        ends = [end for task in running for end in await task]
    assert len(ends) >= STREAMS
    assert "broken" not in ends


async def killed(life: Life) -> None:
    victim = life.items("pods")[0]["metadata"]
    life.kubectl("delete", "pod", victim["name"], "--force", "--grace-period=0")
    await life.until(lambda: victim["uid"] not in life.uids() and len(life.uids()) == 2, "a new pod")
    await life.until_ready()
