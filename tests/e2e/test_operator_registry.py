"""Models of a registry, and what it and a web server refuse, on everything real but those: one version for all
replicas, a password that appears nowhere, and old replicas that serve while the new spec's model is not to be had.
"""

import hashlib
import json
from typing import Any

import pytest
from openai import AsyncOpenAI

from fakes import file_server
from fakes.life import DEADLINE_S, Life
from kvasir_local import stack
from kvasir_local.control_plane import ControlPlane
from kvasir_local.demo.scenario import MODEL

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
REPOSITORY, RAW = "org/name", "application/octet-stream"


def secret(life: Life, name: str, **values: str) -> None:
    life.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values})


def apply(life: Life, uri: str, secret_name: str) -> None:
    model = {"uri": uri, "secretName": secret_name, "servedName": life.namespace}
    life.apply(model=model, replicas=1, autoscaling=None)


def status(life: Life) -> dict[str, Any]:
    (service,) = life.items("infsvc")
    return service.get("status") or {}


async def answer(life: Life, installed: ControlPlane) -> str:
    address = f"{stack.gateway_url(installed)}/v1"
    async with AsyncOpenAI(base_url=address, api_key="none", max_retries=5, timeout=DEADLINE_S) as client:
        done = await client.completions.create(model=life.namespace, prompt="What is", max_tokens=8, temperature=0)
        return done.choices[0].text


async def refused(life: Life, words: str) -> None:
    def is_told() -> bool:
        stalled = life.condition("Stalled")
        return stalled.get("reason") == "ModelUnavailable" and words in stalled["message"]

    await life.until(is_told, f"the status says {words}")
    assert life.condition("Stalled")["message"].startswith("spec.model.uri: model ")


async def test_a_service_is_served_from_a_registry(bare: Life, installed: ControlPlane):
    life = bare
    with file_server.serving(challenge=True) as found:
        layers = [
            found.layer(REPOSITORY, path.read_bytes(), RAW, org_opencontainers_image_title=path.name)
            for path in sorted(MODEL.iterdir())
        ]
        digest = found.push(REPOSITORY, "v1", {"schemaVersion": 2, "layers": layers})
        host = found.url.removeprefix("http://")
        secret(life, "registry", **{".dockerconfigjson": json.dumps({"auths": {host: {"auth": file_server.USER}}})})
        uri = f"oci://{host}/{REPOSITORY}:v1"
        apply(life, uri, "registry")
        await life.until_ready()
        model = status(life)["model"]
        assert (f"sha256:{model['commit']}", model["architecture"]) == (digest, "LlamaForCausalLM")
        assert model["downloadBytes"] == sum(layer["size"] for layer in layers)
        first, served = await answer(life, installed), life.uids()

        shown = life.kubectl("get", "pods,deployments,controllerrevisions,infsvc,events", "-oyaml")
        logs = "".join(life.kubectl("logs", pod["metadata"]["name"]) for pod in life.pods())
        assert file_server.USER not in shown + logs
        assert file_server.TOKEN not in shown + logs

        apply(life, f"{uri.removesuffix('v1')}v2", "registry")
        await refused(life, "is not fetched from the registry: it has no v2 (404)")
        apply(life, f"https://127.0.0.1:9/tiny.tar#sha256={hashlib.sha256().hexdigest()}", "registry")
        await refused(life, "cannot be reached: ")
        assert life.uids() >= served
        assert await answer(life, installed) == first
