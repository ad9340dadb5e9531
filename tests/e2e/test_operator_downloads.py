"""Twelve downloads that break, by the whole path of the operator, from real servers on loopback: what each condition
says, which ones go on by themselves, where no token travels, and that old replicas serve while new ones have no model.
"""

import hashlib
import io
import os
import re
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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
    source, each with its authorization last; led: of the server to which it redirects."""

    name: str
    model: dict[str, str]
    settings: dict[str, str] = field(default_factory=dict)
    says: str = ""
    more: dict[str, Any] = field(default_factory=dict)
    asked: Sequence[tuple[str, ...]] = ()
    led: Sequence[tuple[str, ...]] = ()


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
    """Ten that do not come, each for a reason of its own."""

    def from_hub(fault: hub.Fault, name: str, says: str, **more: Any) -> Download:
        found = servers.enter_context(hub.serving(fault, FILES, held=fault == "none"))
        return of_hub(found, name, says, **more)

    def from_registry(fault: file_server.Fault, name: str, says: str, **more: Any) -> Download:
        return of_registry(servers.enter_context(file_server.serving(fault=fault)), name, says, **more)

    says = "model org/name comes with another checksum of model.safetensors than was stated, fetched twice"
    yield from_hub("damaged always", "checksum", says)
    says = "model org/name could not be fetched from the hub: .*401.*; put a token that may read it under the key token"
    yield from_hub("unauthorized", "unauthorized", says)
    says = "model org/name has no revision v9 on the hub"
    yield from_hub("no revision", "revision", f"{says}; name a branch, a tag or a", revision="v9")
    says = (
        r"model org/name needs 93132257\.46 GiB of disk in /.* are free; free some there, or give its cache more room"
    )
    yield from_hub("huge", "disk", says, claim="cache")
    waits = {"rollout": {"progressDeadlineSeconds": 10}}
    says = "model org/name could not be fetched from the hub: .*timed out; it is tried again; check the network"
    yield from_hub("none", "hangs", says, more=waits)
    says = r"is not fetched from the registry: 127\.0\.0\.1:\d+ refuses access \(403\); put a key \.dockerconfigjson"
    yield from_registry("refused", "refused", says)
    says = r"is not fetched from the registry: it has no v9 \(404\); name a tag or a digest that it has"
    yield from_registry("none", "absent", says, tag="v9")
    says = "could not be fetched: model.safetensors: it is shorter than its manifest states; push the model again"
    yield from_registry("truncated", "truncated", says)
    web = servers.enter_context(file_server.serving({"/tiny.tar": bytes(file_server.LARGE)}, tls=folder))
    web.fault = "unprotected"
    yield Download(
        name="redirect",
        model={"uri": f"{web.url}/tiny.tar#sha256={DIGEST}"},
        settings={"ca.crt": (folder / "ca.crt").read_text(), "token": TOKEN},
        says=f"model {web.url}/tiny.tar is redirected from {web.url} to http://127.0.0.1:9, where the connection is not"
        " protected; it is not followed: use an https:// address that has the file",
    )
    yield elsewhere(servers, folder, {"/tiny.tar": bytes(file_server.LARGE)}, DIGEST, fault="unauthorized")


def elsewhere(
    servers: ExitStack, folder: Path, files: dict[str, bytes], digest: str, fault: file_server.Fault = "none"
) -> Download:
    """A file of a server that redirects to another one. fault: of that."""
    homes = [folder / name for name in ("first", "store")]
    for home in homes:
        home.mkdir()
    store = servers.enter_context(file_server.serving(files, tls=homes[1], fault=fault))
    web = servers.enter_context(file_server.serving(files, tls=homes[0], fault="elsewhere", elsewhere=store.url))
    (path,) = files
    return Download(
        name="elsewhere",
        model={"uri": f"{web.url}{path}#sha256={digest}"},
        settings={"ca.crt": "".join((home / "ca.crt").read_text() for home in homes), "token": TOKEN},
        says=f"model {web.url}{path} could not be fetched: {store.url.removeprefix('https://')}, to which it redirects,"
        r" refuses access \(401\); credentials are not sent there: name an address that takes them, or needs none",
        asked=web.asked,
        led=store.asked,
    )


@contextmanager
def small_disk(folder: Path, num_bytes: int) -> Iterator[Path]:
    """A file system of its own."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "small-disk", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(file: Path) -> None:
    """Write a file until the disk is full."""
    free = os.statvfs(file.parent)
    file.write_bytes(bytes(free.f_bavail * free.f_frsize))


def bind(life: Life, disk: Path, name: str) -> None:
    """A claim whose volume is a disk."""
    size, modes = {"storage": "64Mi"}, ["ReadWriteOnce"]
    volume, claim = f"{life.namespace}-{name}", {"namespace": life.namespace, "name": name}
    held = {"capacity": size, "hostPath": {"path": str(disk)}, "claimRef": claim, "accessModes": modes}
    spec = {"volumeName": volume, "resources": {"requests": size}, "accessModes": modes}
    for kind, where, own in (
        ("PersistentVolume", {"name": volume}, held),
        ("PersistentVolumeClaim", {"name": name}, spec),
    ):
        life.put({"apiVersion": "v1", "kind": kind, "metadata": where, "spec": own | {"storageClassName": ""}})


def packed(files: Mapping[str, bytes]) -> bytes:
    """As an archive."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=1) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"tiny/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


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


def is_ready(life: Life, name: str) -> bool:
    """With nothing that goes on."""
    return condition(life, name, "Ready").get("reason") == "AllReplicasReady"


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
        ten = list(broken(servers, tmp_path))
        for one in ten:
            put(life, one)
        await life.until(lambda: condition(life, "resumed", "Ready").get("status") == "True", "resumed is ready")
        parts = ["", "", f"bytes={len(FILES[hub.WEIGHTS]) // 2}-"]
        assert registry.parts(WEIGHTS) == parts, "it went on in the middle"
        first, served = await answered(life, installed, "resumed"), pods_of(life, "resumed")
        for one in ten:
            await life.until(lambda one=one: is_told(life, one), f"{one.name}: {one.says}")
            assert TOKEN not in shown(life) + written(life, one.name), one.name
            life.kubectl("delete", "infsvc", one.name, "--wait=false")
        with_token = {one.name for one in ten if any(TOKEN in request[-1] for request in one.asked)}
        assert with_token == {"checksum", "unauthorized", "revision", "disk", "hangs", "elsewhere"}
        assert {one.name: {request[-1] for request in one.led} for one in ten if one.led} == {"elsewhere": {""}}

        changed = replace(ten[0], name="resumed")
        put(life, changed)
        await life.until(lambda: is_told(life, changed), "the new model does not come")
        assert pods_of(life, "resumed") >= served
        assert await answered(life, installed, "resumed") == first
        said = await life.until(lambda: says_refusal(written(life, "resumed")), "its replica writes why")
        assert TOKEN not in shown(life) + said


@pytest.mark.skipif(os.geteuid() != 0, reason="a disk of its own is mounted, which root may")
async def test_a_disk_that_fills_while_a_model_comes_is_told_and_gone_on_with(
    bare: Life, installed: ControlPlane, tmp_path
):
    """The first model comes by way of a redirect, to a server that is not given the token."""
    life, size = bare, sum(map(len, FILES.values()))
    with ExitStack() as servers:
        archive = packed(FILES)
        first = elsewhere(servers, tmp_path, {"/tiny.tar.gz": archive}, hashlib.sha256(archive).hexdigest())
        put(life, first)
        await life.until(lambda: is_ready(life, first.name), "the first is ready")
        assert {request[-1] for request in first.asked} == {f"Bearer {TOKEN}"}
        assert {request[-1] for request in first.led} == {""}
        text, served = await answered(life, installed, first.name), pods_of(life, first.name)

        disk = servers.enter_context(small_disk(tmp_path / "disk", 2 * size))
        bind(life, disk, "disk")
        found = servers.enter_context(hub.serving("trickles", FILES, held=True))
        found.at_once = len(FILES[hub.WEIGHTS]) // 2
        says = r"model org/name could not be stored: \[Errno 28\] No space left on device; give its cache more room"
        changed = of_hub(found, first.name, says, claim="disk")
        put(life, changed)

        def came() -> bool:
            return any(path.stat().st_size >= found.at_once for path in disk.rglob("*.incomplete"))

        await life.until(came, "half of the weights are on the disk")
        fill(disk / "others")
        found.open.set()
        await life.until(lambda: is_told(life, changed), says)
        assert pods_of(life, first.name) >= served
        assert await answered(life, installed, first.name) == text
        assert TOKEN not in shown(life) + written(life, first.name)
        (disk / "others").unlink()
        await life.until(lambda: is_ready(life, first.name), "with room it goes on")
        assert await answered(life, installed, first.name) == text
