"""Ten downloads that break, by the whole path of the operator, from real servers on loopback: what each condition says,
which one goes on by itself, and that old replicas serve while new ones have no model.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from fakes import file_server, hub
from fakes.life import DEADLINE_S, Life
from kvasir_api import names
from kvasir_local import stack
from kvasir_local.control_plane import ControlPlane
from kvasir_local.demo.scenario import MODEL

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
FILES = {path.name: path.read_bytes() for path in MODEL.iterdir()}
WEIGHTS = f"/v2/org/name/blobs/sha256:{hashlib.sha256(FILES[hub.WEIGHTS]).hexdigest()}"
LAYER = "application/vnd.oci.image.layer.v1.raw"
DIGEST = "0" * 64
TOKEN = "token-not-to-be-shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A service with a model. settings: keys of its Secret. says: pattern of what Stalled says at least. asked: of its
    source, each with its authorization last."""

    name: str
    model: dict[str, str]
    settings: dict[str, str] = field(default_factory=dict)
    says: str = ""
    more: dict[str, Any] = field(default_factory=dict)
    asked: Sequence[tuple[str, ...]] = ()


def of_hub(found: hub.Hub, name: str, says: str, revision: str = "main", **more: Any) -> Download:
    cache = {"cacheClaim": more.pop("claim")} if "claim" in more else {}
    model = {"uri": f"hf://org/name@{revision}", **cache}
    settings = {"endpoint": found.url, "token": TOKEN}
    return Download(name=name, model=model, settings=settings, says=says, asked=found.asked, **more)


def of_registry(found: file_server.FileServer, name: str, says: str = "", tag: str = "v1") -> Download:
    layers = [found.layer("org/name", body, LAYER, org_opencontainers_image_title=n) for n, body in FILES.items()]
    found.push("org/name", "v1", {"schemaVersion": 2, "layers": layers})
    uri = f"oci://{found.url.removeprefix('http://')}/org/name:{tag}"
    return Download(name=name, model={"uri": uri}, says=f"model {re.escape(uri)} {says}")


def broken(servers: ExitStack, folder: Path) -> Iterator[Download]:
    """Nine that do not come, each for a reason of its own."""

    def from_hub(fault: hub.Fault, name: str, says: str, **more: Any) -> Download:
        found = servers.enter_context(hub.serving(fault, FILES, held=fault == "none"))
        return of_hub(found, name, says, **more)

    def from_registry(fault: file_server.Fault, name: str, says: str, **more: Any) -> Download:
        return of_registry(servers.enter_context(file_server.serving(fault=fault)), name, says, **more)

    says = "model org/name comes with another checksum of model.safetensors than was stated, fetched twice"
    yield from_hub("damaged always", "checksum", says)
    says = "model org/name could not be fetched from the hub: .*401.*; put a token that may read it under the key token"
    yield from_hub("unauthorized", "unauthorized", says)
    yield from_hub("no revision", "revision", "model org/name has no revision v9 on the hub", revision="v9")
    yield from_hub("huge", "disk", r"model org/name needs 93132257\.46 GiB of disk in /", claim="cache")
    waits = {"rollout": {"progressDeadlineSeconds": 10}}
    yield from_hub("none", "hangs", "model org/name could not be fetched from the hub: .*timed out", more=waits)
    says = r"is not fetched from the registry: 127\.0\.0\.1:\d+ refuses access \(403\); put a key \.dockerconfigjson"
    yield from_registry("refused", "refused", says)
    yield from_registry("none", "absent", r"is not fetched from the registry: it has no v9 \(404\)", tag="v9")
    says = "could not be fetched: model.safetensors: it is shorter than its manifest states"
    yield from_registry("truncated", "truncated", says)
    web = servers.enter_context(file_server.serving({"/tiny.tar": bytes(file_server.LARGE)}, tls=folder))
    web.fault = "unprotected"
    yield Download(
        name="redirect",
        model={"uri": f"{web.url}/tiny.tar#sha256={DIGEST}"},
        settings={"ca.crt": (folder / "ca.crt").read_text(), "token": TOKEN},
        says=f"model {web.url}/tiny.tar is redirected from {web.url} to http://127.0.0.1:9, where the connection is not"
        " protected; it is not followed",
    )


def put(life: Life, one: Download) -> None:
    """The service with its Secret."""
    where = {"name": one.name}
    life.put({"apiVersion": "v1", "kind": "Secret", "metadata": where, "stringData": one.settings})
    model = {**one.model, "secretName": one.name, "servedName": f"{life.namespace}-{one.name}"}
    runtime, resources = {"kvCacheTokens": 2048}, {"cpu": "50m", "memory": "512Mi"}
    spec = {"model": model, "replicas": 1, "runtime": runtime, "resources": resources, **one.more}
    life.put({"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": where, "spec": spec})


def condition(life: Life, name: str, kind: str) -> dict[str, Any]:
    """Of the present generation, empty without one."""
    service = next(item for item in life.items("infsvc") if item["metadata"]["name"] == name)
    found = [c for c in (service.get("status") or {}).get("conditions") or () if c["type"] == kind]
    return found[0] if found and found[0]["observedGeneration"] == service["metadata"]["generation"] else {}


def is_told(life: Life, one: Download) -> bool:
    said = condition(life, one.name, "Stalled")
    waits = r"no progress for 10 s \(spec\.rollout\.progressDeadlineSeconds\): .* downloads the model, \d+ % of"
    told = f"{said.get('reason')}: {said.get('message')}"
    late = one.name == "hangs" and re.match(f"ProgressDeadlineExceeded: {waits}", told)
    return bool(late or re.match(f"ModelUnavailable: spec.model.uri: {one.says}", told))


async def answered(life: Life, installed: ControlPlane, name: str) -> str:
    address = f"{stack.gateway_url(installed)}/v1"
    async with AsyncOpenAI(base_url=address, api_key="none", max_retries=5, timeout=DEADLINE_S) as client:
        found = await client.completions.create(
            model=f"{life.namespace}-{name}", prompt="What is", max_tokens=8, temperature=0
        )
        return found.choices[0].text


def pods_of(life: Life, name: str) -> set[str]:
    """The uids of a service's replicas that are not on their way out."""
    return {pod["metadata"]["uid"] for pod in life.pods() if pod["metadata"]["labels"].get(names.LABEL_SERVICE) == name}


def shown(life: Life) -> str:
    """What a namespace shows to those who may not read its Secrets."""
    return life.kubectl("get", "pods,deployments,controllerrevisions,infsvc,events", "-oyaml")


def written(life: Life, name: str) -> str:
    """By the replicas of a service that are there, and by the pod that reads its model's config."""
    return life.kubectl("logs", f"-l{names.LABEL_INSTANCE}={name}", "--tail=-1", "--ignore-errors")


def says_refusal(log: str) -> str:
    """The log, once it has the reason; empty while its pod starts again."""
    return log if "model org/name comes with another checksum" in log else ""


async def test_each_download_that_breaks_is_told_and_old_replicas_serve(bare: Life, installed: ControlPlane, tmp_path):
    life = bare
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}}}
    life.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "cache"}, "spec": claim})
    with ExitStack() as servers:
        registry = servers.enter_context(file_server.serving(fault="cut once"))
        registry.times = 2  # of which the first is for the header
        resumed = of_registry(registry, "resumed")
        put(life, resumed)
        nine = list(broken(servers, tmp_path))
        for one in nine:
            put(life, one)
        await life.until(lambda: condition(life, "resumed", "Ready").get("status") == "True", "resumed is ready")
        parts = ["", "", f"bytes={len(FILES[hub.WEIGHTS]) // 2}-"]
        assert registry.parts(WEIGHTS) == parts, "it went on in the middle"
        first, served = await answered(life, installed, "resumed"), pods_of(life, "resumed")
        for one in nine:
            await life.until(lambda one=one: is_told(life, one), f"{one.name}: {one.says}")
            assert TOKEN not in shown(life) + written(life, one.name), one.name
            life.kubectl("delete", "infsvc", one.name, "--wait=false")
        with_token = {one.name for one in nine if any(TOKEN in request[-1] for request in one.asked)}
        assert with_token == {"checksum", "unauthorized", "revision", "disk", "hangs"}

        changed = replace(nine[0], name="resumed")
        put(life, changed)
        await life.until(lambda: is_told(life, changed), "the new model does not come")
        assert pods_of(life, "resumed") >= served
        assert await answered(life, installed, "resumed") == first
        said = await life.until(lambda: says_refusal(written(life, "resumed")), "its replica writes why")
        assert TOKEN not in shown(life) + said
