"""One service's life on everything real: operator and gateway as pods, our engine behind them, streams that go on."""

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import APIError, APITimeoutError, AsyncOpenAI

from kvasir_api import names, state
from kvasir_kube.client import Client, configuration
from kvasir_local import audit, kubectl, stack
from kvasir_local.control_plane import ControlPlane
from kvasir_local.demo.walk import put_model

SAMPLE = Path(__file__).parents[2] / "manifests" / "samples" / "tiny.yaml"
DEADLINE_S = 90.0
HANG_S = 60.0
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
        self._spec: dict[str, Any] = dict(sample["spec"])
        self._spec["model"] = {**self._spec["model"], "servedName": namespace}

    def kubectl(self, *arguments: str) -> str:
        return kubectl.run(self._program, *arguments)

    def items(self, kind: str, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, "-ojson", *arguments))["items"]
        return found

    def apply(self, *, uri: str = "", **spec: Any) -> None:
        if uri:
            self._spec["model"] = {**self._spec["model"], "uri": uri}
        self._spec = {k: v for k, v in (self._spec | spec).items() if v is not None}
        manifest = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "tiny"}}
        kubectl.apply(self._program, yaml.safe_dump({**manifest, "spec": self._spec}))

    def condition(self, kind: str) -> dict[str, Any]:
        """A condition of the present generation, empty when there is none."""
        (service,) = self.items("infsvc")
        conditions = (service.get("status") or {}).get("conditions") or ()
        found = [c for c in conditions if c["type"] == kind]
        return found[0] if found and found[0]["observedGeneration"] == service["metadata"]["generation"] else {}

    def pods(self) -> list[dict[str, Any]]:
        """Those that are not on their way out."""
        return [pod for pod in self.items("pods") if not pod["metadata"].get("deletionTimestamp")]

    def uids(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.pods()}

    async def until(self, found: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if answer := await asyncio.to_thread(found):
                return answer
            await asyncio.sleep(0.05)
        raise AssertionError(f"not within {DEADLINE_S:g} s: {what}\n{self.kubectl('get', 'infsvc,pods', '-oyaml')}")

    async def until_ready(self) -> None:
        await self.until(lambda: self.condition("Ready").get("status") == "True", "Ready")

    async def writes(self, seconds: float) -> list[audit.Request]:
        """What operator, gateway and node write anywhere within that time, but for leases and the node's heartbeat."""
        log = self.cluster.layout.audit_log
        mark = log.stat().st_size
        for _ in range(round(seconds / 0.05)):
            await asyncio.sleep(0.05)
        found, _ = audit.read(log, since=mark)
        return [w for w in audit.writes(found) if "kvasir" in w.user and w.resource not in {"leases", "nodes"}]

    def busiest(self) -> dict[str, Any] | None:
        """Metadata of the pod with most streams, once it has half of them."""
        running: list[tuple[int, dict[str, Any]]] = []
        for pod in self.pods():
            url = f"http://{pod['status']['podIP']}:{names.PORT_OPS}{names.PATH_STATE}"
            with urllib.request.urlopen(url, timeout=SETTLE_S) as response:
                running.append((state.decode(response.read()).running, pod["metadata"]))
        count, metadata = max(running, key=lambda found: found[0])
        return metadata if count >= STREAMS / 2 else None


async def answer(client: AsyncOpenAI, model: str, max_tokens: int) -> str:
    """How one stream ended: its finish reason, `error`, or `silence` when it just stopped. TimeoutError when it hangs.

    Any exception that is not an answer of the API is raised, and so is a timeout of the client.
    """
    last = "silence"
    try:
        async with asyncio.timeout(HANG_S):
            async for chunk in await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": "What is Kvasir?"}],
                max_tokens=max_tokens,
                stream=True,
                extra_body={"ignore_eos": True},
            ):
                last = (chunk.choices and chunk.choices[0].finish_reason) or last
    except APITimeoutError:
        raise
    except APIError:
        return "error"
    return last


async def answers(client: AsyncOpenAI, model: str, stop: asyncio.Event, max_tokens: int = 200) -> list[str]:
    """Stream one answer after the other until told to stop; how each one ended."""
    ends = []
    while not stop.is_set():
        ends.append(await answer(client, model, max_tokens))
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
    address = f"{stack.gateway_url(installed)}/v1"
    await idle(life, address)
    await operator_replaced(life)
    await edited_under_streams(life, address)
    await killed_under_streams(life, address)
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
    for _ in range(6):
        if not await life.writes(SETTLE_S):
            break
    assert await life.writes(IDLE_S) == []


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
    stop = asyncio.Event()
    async with AsyncOpenAI(base_url=address, api_key="none", max_retries=0, timeout=DEADLINE_S) as client:
        # So long that those on the victim have not ended when the kill arrives.
        running = [asyncio.create_task(answers(client, life.namespace, stop, 900)) for _ in range(STREAMS)]
        victim = await life.until(life.busiest, "a pod generates")
        life.kubectl("delete", "pod", victim["name"], "--force", "--grace-period=0")
        await life.until(lambda: victim["uid"] not in life.uids() and len(life.uids()) == 2, "a new pod")
        await life.until_ready()
        stop.set()
        ends = [end for task in running for end in await task]
    assert set(ends) == {"error", "length"}
