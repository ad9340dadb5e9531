"""A model by its name on a hub, on everything real but the hub: one commit for all replicas, bytes while they come, a
token that appears nowhere, and old replicas that serve while the hub refuses what the spec names next.
"""

import pytest
from openai import AsyncOpenAI

from fakes import hub
from fakes.life import DEADLINE_S, Life
from kvasir_local import stack
from kvasir_local.control_plane import ControlPlane
from kvasir_local.demo.scenario import MODEL

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
TOKEN = "hf_not_to_be_shown"
FILES = {path.name: path.read_bytes() for path in MODEL.iterdir()}
LATER = "d" * 40


def apply(life: Life, uri: str, replicas: int, **more: str) -> None:
    model = {"uri": uri, "secretName": "hub", "servedName": life.namespace, **more}
    life.apply(model=model, replicas=replicas, autoscaling=None)


async def streamed(life: Life, installed: ControlPlane) -> str:
    address = f"{stack.gateway_url(installed)}/v1"
    async with AsyncOpenAI(base_url=address, api_key="none", max_retries=5, timeout=DEADLINE_S) as client:
        stream = await client.completions.create(
            model=life.namespace, prompt="What is", max_tokens=8, temperature=0, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])


async def test_a_service_is_served_from_a_hub(bare: Life, installed: ControlPlane):
    life = bare
    with hub.serving("trickles", FILES, held=True) as found:
        data = {"token": TOKEN, "endpoint": found.url}
        life.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}, "stringData": data})
        apply(life, "hf://org/name", 1)
        await life.until(lambda: life.condition("Ready").get("reason") == "ModelDownloading", "it downloads")
        await life.until(lambda: (life.status().get("counts") or {}).get("downloadedBytes"), "bytes are told")
        found.commit = LATER  # main moves on while the first replica starts
        found.open.set()
        await life.until_ready()
        model = life.status()["model"]
        assert (model["commit"], model["architecture"]) == (hub.COMMIT, "LlamaForCausalLM")
        assert model["downloadBytes"] == sum(map(len, FILES.values()))
        first = await streamed(life, installed)

        fetched = found.of("GET").count(f"/org/name/resolve/{hub.COMMIT}/{hub.WEIGHTS}")
        assert fetched == 2, "for its header, and for all of it"
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}}}
        kind = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "cache"}}
        life.put({**kind, "spec": claim})
        apply(life, "hf://org/name", 2, cacheClaim="cache")
        await life.until_ready()
        assert life.status()["model"]["commit"] == hub.COMMIT
        fetched = found.of("GET").count(f"/org/name/resolve/{hub.COMMIT}/{hub.WEIGHTS}")
        assert fetched <= 2 + 3, "all of it once for the pod alone, and once for all that share the claim"
        revisions = {path.split("/resolve/")[1].split("/")[0] for path in found.of("GET") if "/resolve/" in path}
        assert revisions == {hub.COMMIT}

        assert {key for _, _, key in found.asked} == {f"Bearer {TOKEN}"}
        shown = life.kubectl("get", "pods,deployments,controllerrevisions,infsvc,events", "-oyaml")
        logs = "".join(life.kubectl("logs", pod["metadata"]["name"]) for pod in life.pods())
        assert TOKEN not in shown + logs

        found.fault = "gated"
        await life.until(lambda: len(life.uids()) == 2, "the first revision's pod has left")
        served = life.uids()
        apply(life, "hf://org/name@v2", 2, cacheClaim="cache")
        await life.until(
            lambda: life.condition("Stalled").get("reason") == "ModelUnavailable",
            "the status says that the model is gated",
        )
        told = life.condition("Stalled")["message"]
        assert told.startswith("spec.model.uri: model org/name is gated: accept its terms on the hub")
        assert life.uids() >= served
        assert await streamed(life, installed) == first
