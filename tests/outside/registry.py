"""Models from a real registry, the CNCF's distribution: what is pushed there is loaded by `oci://`, also by the pods of
a service, and what it refuses is one line: `make test-clients`. The registry is built from its Go module once.
"""

import gzip
import io
import json
import os
import sys
import tarfile

import pytest
from openai import AsyncOpenAI

from fakes import checkpoints, distribution, file_server, source_secret
from fakes.api_process import api_process
from fakes.life import DEADLINE_S
from kvasir_api import names
from kvasir_local import binaries, stack
from kvasir_local.demo.scenario import MODEL
from kvasir_local.errors import MissingToolError
from kvasir_local.progress import SilentProgress
from kvasir_runtime.errors import ModelUnavailableError
from kvasir_runtime.fetch import fetched_model

NAME = "org/name"
RAW = "application/octet-stream"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
FILES = {"config.json": b'{"model_type": "llama"}', "model.safetensors": bytes(range(256)) * 800}
REAL = (sys.executable, "-m", "kvasir_runtime", "serve")
BUILD_S = 3600
"""At most, on a busy machine: the first test of a user builds the registry."""
pytestmark = pytest.mark.timeout(BUILD_S)


@pytest.fixture(scope="session")
def binary():
    """The registry; skips where go is not new enough to build it."""
    try:
        return binaries.provide_registry(progress=SilentProgress())
    except MissingToolError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def secret(tmp_path, monkeypatch):
    return source_secret.mounted(tmp_path, monkeypatch)


@pytest.fixture
def found(binary, secret, tmp_path):
    with distribution.running(binary, tmp_path / "registry") as registry:
        yield registry


def pushed(registry, tag="v1", files=None):
    """Files as ORAS pushes them. Returns the manifest's digest."""
    layers = [registry.blob(NAME, content, RAW, title) for title, content in (files or FILES).items()]
    return registry.image(NAME, tag, layers)


def uri(host, reference=":v1"):
    return f"oci://{host}/{NAME}{reference}"


def fetched(given):
    return fetched_model.fetch(given, sleep=lambda _: None)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name[0] != "."}


def known(secret, host, key):
    (secret / ".dockerconfigjson").write_text(json.dumps({"auths": {host: {"auth": key}}}))


def test_a_server_answers_with_the_model_of_a_tag(found, tmp_path):
    """As with the same files from a directory."""
    model = checkpoints.write(tmp_path / "tiny")
    digest = pushed(found, files={path.name: path.read_bytes() for path in sorted(model.iterdir())})
    asked = {"model": "tiny", "prompt": "The operator watches", "max_tokens": 8, "temperature": 0}
    answers = []
    for given in (model, uri(found.host), uri(found.host, f"@{digest}")):
        options = ("--kv-cache-tokens", "4096", "--device", "cpu", "--served-model-name", "tiny")
        env = {names.ENV_MODEL_CACHE: os.environ[names.ENV_MODEL_CACHE]}
        with api_process(given, *options, command=REAL, env=env) as server:
            answers.append(server.ask("/v1/completions", asked).json["choices"][0]["text"])
    assert answers[0]
    assert answers == [answers[0]] * 3


async def test_a_service_streams_a_chat_with_a_model_of_it(binary, tmp_path, bare, installed):
    """On the local cluster: its pods sign in with the Secret that the service names."""
    auth = {"htpasswd": {"realm": "models", "path": str(tmp_path / "passwords")}}
    with distribution.running(binary, tmp_path / "registry", auth) as found:
        files = {path.name: path.read_bytes() for path in sorted(MODEL.iterdir())}
        digest, key = pushed(found, files=files), found.authorization.removeprefix("Basic ")
        entry = {".dockerconfigjson": json.dumps({"auths": {found.host: {"auth": key}}})}
        kind = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson"}
        bare.put({**kind, "metadata": {"name": "registry"}, "stringData": entry})
        model = {"uri": uri(found.host), "secretName": "registry", "servedName": bare.namespace}
        bare.apply(model=model, replicas=1, autoscaling=None)
        await bare.until_ready()
        (service,) = bare.items("infsvc")
        told = service["status"]["model"]
        assert (f"sha256:{told['commit']}", told["downloadBytes"]) == (digest, sum(map(len, files.values())))
        address = f"{stack.gateway_url(installed)}/v1"
        async with AsyncOpenAI(base_url=address, api_key="none", max_retries=5, timeout=DEADLINE_S) as client:
            ask = {"role": "user", "content": "The operator watches"}
            stream = await client.chat.completions.create(
                model=bare.namespace, messages=[ask], max_tokens=8, temperature=0, stream=True
            )
            chunks = [chunk async for chunk in stream if chunk.choices]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert chunks[-1].choices[0].finish_reason in ("length", "stop")
        shown = bare.kubectl("get", "pods,deployments,controllerrevisions,infsvc,events", "-oyaml")
        logs = "".join(bare.kubectl("logs", pod["metadata"]["name"]) for pod in bare.pods())
        assert key not in shown + logs


def test_a_digest_stays_where_the_tag_moves(found):
    digest = pushed(found)
    assert f"sha256:{fetched_model.listing(uri(found.host)).version}" == digest
    newer = FILES | {"model.safetensors": FILES["model.safetensors"][::-1]}
    assert pushed(found, files=newer) != digest
    assert content(fetched(uri(found.host))) == newer
    assert content(fetched(uri(found.host, f"@{digest}"))) == FILES


def test_an_index_of_images_is_the_model_in_their_layers(found):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, given in FILES.items():
            entry = tarfile.TarInfo(f"models/{name}")
            entry.size = len(given)
            archive.addfile(entry, io.BytesIO(given))
    layer = found.blob(NAME, gzip.compress(stream.getvalue()), LAYER)
    image = found.image(NAME, "amd64", [layer])
    listed = {"digest": image, "size": found.stored(image).stat().st_size, "mediaType": distribution.MANIFEST}
    entry = listed | {"platform": {"os": "linux", "architecture": "amd64"}}
    index = {"schemaVersion": 2, "mediaType": distribution.INDEX, "manifests": [entry]}
    digest = found.manifest(NAME, "v1", index)
    assert f"sha256:{fetched_model.listing(uri(found.host)).version}" == digest
    assert content(fetched(uri(found.host))) == FILES


@pytest.mark.parametrize(
    ("reference", "says"),
    [(":v2", r"it has no v2 \(404\)"), (f"@sha256:{'0' * 64}", r"it has no sha256:0{64} \(404\)")],
)
def test_what_the_registry_does_not_have_is_named(found, reference, says):
    pushed(found)
    with pytest.raises(ModelUnavailableError, match=says):
        fetched(uri(found.host, reference))


def test_a_blob_that_is_not_of_its_digest_is_refused(found):
    pushed(found)
    weights = found.stored(found.blob(NAME, FILES["model.safetensors"], RAW)["digest"])
    weights.write_bytes(b"\1" + weights.read_bytes()[1:])
    with pytest.raises(ModelUnavailableError, match=r"another checksum of model\.safetensors than was stated, fetched"):
        fetched(uri(found.host))


def test_a_manifest_that_is_not_of_its_digest_is_refused(found):
    digest = pushed(found)
    manifest = found.stored(digest)
    manifest.write_bytes(manifest.read_bytes() + b" ")
    with pytest.raises(ModelUnavailableError, match="is not fetched from the registry: "):
        fetched(uri(found.host, f"@{digest}"))


@pytest.mark.parametrize("fault", ["cut once", "cut always", "damaged once", "busy once"])
def test_a_transfer_from_it_that_breaks_goes_on(found, fault):
    pushed(found)
    with file_server.serving(upstream=found.url, fault=fault) as between:
        assert content(fetched(uri(between.url.removeprefix("http://")))) == FILES
        blob = found.blob(NAME, FILES["model.safetensors"], RAW)["digest"]
        parts = between.parts(f"/v2/{NAME}/blobs/{blob}")
    assert any(part.startswith("bytes=1") for part in parts) == fault.startswith("cut"), parts


def test_a_registry_with_passwords(binary, secret, tmp_path):
    auth = {"htpasswd": {"realm": "models", "path": str(tmp_path / "passwords")}}
    with distribution.running(binary, tmp_path / "registry", auth) as found:
        pushed(found)
        wrong = distribution.basic("docker", "not-to-be-shown")
        for key in ("", wrong):
            known(secret, found.host, key)
            with pytest.raises(ModelUnavailableError, match=r"refuses access \(401\); put a key \.docker") as refused:
                fetched(uri(found.host))
            assert "not-to-be-shown" not in str(refused.value)
        known(secret, found.host, found.authorization.removeprefix("Basic "))
        assert content(fetched(uri(found.host))) == FILES


def test_a_registry_with_tokens(binary, secret, tmp_path):
    reader, stranger, barred = (distribution.basic(name, "x") for name in ("reader", "stranger", "barred"))
    with distribution.tokens(tmp_path) as server:
        server.rights = {reader: {NAME: ["pull"]}, stranger: {"org/other": ["pull"]}, barred: None}
        writes = f"Bearer {server.token({NAME: ['pull', 'push']})}"
        with distribution.running(binary, tmp_path / "registry", server.auth, writes) as found:
            pushed(found)
            for key, status in ((stranger, 401), (barred, 403), (distribution.basic("unknown", "x"), 401)):
                known(secret, found.host, key)
                with pytest.raises(ModelUnavailableError, match=rf"refuses access \({status}\); put a key \.docker"):
                    fetched(uri(found.host))
            known(secret, found.host, reader)
            assert content(fetched(uri(found.host))) == FILES
    assert set(server.asked) == {f"repository:{NAME}:pull"}
