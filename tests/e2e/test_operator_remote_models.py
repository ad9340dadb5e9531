"""Models of a registry and of a bucket, and what they and a web server refuse, on everything real but those: one
version for all replicas, a password that appears nowhere, and old replicas that serve while the new spec's model is not
to be had.
"""

import hashlib
import json

import pytest
from openai import AsyncOpenAI

from fakes import file_server, s3_api
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


async def answer(life: Life, installed: ControlPlane) -> str:
    address = f"{stack.gateway_url(installed)}/v1"
    async with AsyncOpenAI(base_url=address, api_key="none", max_retries=5, timeout=DEADLINE_S) as client:
        done = await client.completions.create(model=life.namespace, prompt="What is", max_tokens=8, temperature=0)
        return done.choices[0].text


async def chat(life: Life, installed: ControlPlane) -> str:
    """A streamed answer, of more than one piece."""
    address = f"{stack.gateway_url(installed)}/v1"
    async with AsyncOpenAI(base_url=address, api_key="none", max_retries=5, timeout=DEADLINE_S) as client:
        stream = await client.chat.completions.create(
            model=life.namespace,
            messages=[{"role": "user", "content": "What is Kvasir?"}],
            max_tokens=8,
            temperature=0,
            stream=True,
        )
        pieces = [text async for chunk in stream if chunk.choices and (text := chunk.choices[0].delta.content)]
    assert len(pieces) > 1
    return "".join(pieces)


def shown(life: Life) -> str:
    """To those who may not read Secrets, in objects and logs."""
    objects = life.kubectl("get", "pods,deployments,controllerrevisions,infsvc,events", "-oyaml")
    return objects + "".join(life.kubectl("logs", pod["metadata"]["name"]) for pod in life.pods())


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
        model = life.status()["model"]
        assert (f"sha256:{model['commit']}", model["architecture"]) == (digest, "LlamaForCausalLM")
        assert model["downloadBytes"] == sum(layer["size"] for layer in layers)
        first, served = await answer(life, installed), life.uids()

        assert file_server.USER not in shown(life)
        assert file_server.TOKEN not in shown(life)

        apply(life, f"{uri.removesuffix('v1')}v2", "registry")
        await refused(life, "is not fetched from the registry: it has no v2 (404)")
        apply(life, f"https://127.0.0.1:9/tiny.tar#sha256={hashlib.sha256().hexdigest()}", "registry")
        await refused(life, "cannot be reached: ")
        assert life.uids() >= served
        assert await answer(life, installed) == first


async def test_a_service_is_served_from_a_bucket(bare: Life, installed: ControlPlane):
    """Whose signatures are checked: of a user who may read, and then with a secret key that is not that user's."""
    life, files = bare, sorted(MODEL.iterdir())
    with s3_api.serving() as url:
        keys, store = s3_api.keys_of_a_reader(url), s3_api.client(url)
        store.create_bucket(Bucket="models")
        for path in files:
            store.put_object(Bucket="models", Key=f"tiny/v1/{path.name}", Body=path.read_bytes())
        with s3_api.keys_checked(url):
            secret(life, "reader", endpoint=url, **keys)
            apply(life, "s3://models/tiny/v1", "reader")
            await life.until_ready()
            listed = [(path.name, path.stat().st_size, hashlib.md5(path.read_bytes()).hexdigest()) for path in files]
            lines = "\n".join(f'{name} {size} "{etag}"' for name, size, etag in listed)
            model = life.status()["model"]
            assert (model["commit"], model["architecture"]) == (
                hashlib.sha256(lines.encode()).hexdigest(),
                "LlamaForCausalLM",
            )
            assert model["downloadBytes"] == sum(size for _, size, _ in listed)
            first, served = await chat(life, installed), life.uids()
            assert keys["AWS_SECRET_ACCESS_KEY"] not in shown(life)

            wrong = "secret-key-not-to-be-shown"
            secret(life, "other", endpoint=url, **{**keys, "AWS_SECRET_ACCESS_KEY": wrong})
            apply(life, "s3://models/tiny/v2", "other")
            await refused(
                life,
                "model s3://models/tiny/v2 is not given: the bucket refuses access (SignatureDoesNotMatch): put"
                " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            )
            assert wrong not in shown(life)
            assert life.uids() >= served
            assert await chat(life, installed) == first
