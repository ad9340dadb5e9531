"""The walk through the product: model on a volume or a hub, service applied, Ready, one streamed answer, a load that
scales it.

Each step either happens or raises DemoError with what did not. The cluster is already up; nothing is stopped here.
"""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from openai import APIError, AsyncOpenAI
from rich.console import Console

from kvasir_api import names
from kvasir_kube import kinds
from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import Kind
from kvasir_local.demo.load import LoadGenerator, LoadTotals
from kvasir_local.demo.table import Screen
from kvasir_local.demo.view import ServiceView, Snapshot, condition

VOLUME: Final = Kind(kind="PersistentVolume", plural="persistentvolumes", namespaced=False)
MODEL: Final = Path(__file__).parent / "model"
MANAGER: Final = "kvasir-demo"
QUESTION: Final = "What is Kvasir?"
FROM_HUB: Final = "tiny-hub"
"""Name of the service, the Secret and the cache's claim of a model on a hub."""
_KINDS: Final = {kind.kind: kind for kind in (kinds.CLAIM, kinds.INFERENCE_SERVICE)}
_POLL_S: Final = 0.5


class DemoError(Exception):
    """A step of the demo did not happen; the message says which and what was seen instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """How long and how hard. Seconds are deadlines, but for load_s, which is how long a load lasts; on a busy machine
    replicas may come later than that, so that there are up to so many loads, one after the other."""

    load_s: float = 60.0
    loads: int = 4
    streams: int = 32
    bound_s: float = 30.0
    ready_s: float = 180.0
    scale_down_s: float = 120.0


async def put_model(cluster: Cluster, manifest: Path, *, namespace: str, deadline_s: float) -> None:
    """Applies the sample's claim and copies the demo's model into the volume that it got.

    The copy goes to a temporary name first, so that a pod never sees half a model.
    """
    claim = await _apply(cluster, manifest, kinds.CLAIM.kind, namespace)
    name, path = claim["metadata"]["name"], _model_path(manifest)

    async def volume() -> str:
        bound = await cluster.get(kinds.CLAIM, namespace, name)
        return str((bound.get("spec") or {}).get("volumeName") or "")

    found = await _until(volume, bool, deadline_s, lambda _: f"the claim {name} got no volume")
    directory = Path((await cluster.get(VOLUME, "", found))["spec"]["hostPath"]["path"])
    target, partial = directory / path, directory / f".{path}.partial"
    await asyncio.to_thread(_copy, target, partial)


def _copy(target: Path, partial: Path) -> None:
    if target.exists():
        return
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(MODEL, partial)
    partial.rename(target)


def _documents(manifest: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(manifest.read_text()) if document]


def _model_path(manifest: Path) -> str:
    service = next(item for item in _documents(manifest) if item["kind"] == names.KIND)
    return str(service["spec"]["model"]["uri"]).rstrip("/").rsplit("/", 1)[-1]


def _document(manifest: Path, kind: str, namespace: str, name: str = "") -> dict[str, Any]:
    """name: in place of the sample's."""
    document = next(item for item in _documents(manifest) if item["kind"] == kind)
    document["metadata"] |= {"namespace": namespace} | ({"name": name} if name else {})
    return document


async def _apply(cluster: Cluster, manifest: Path, kind: str, namespace: str) -> dict[str, Any]:
    return await cluster.apply(_KINDS[kind], _document(manifest, kind, namespace), manager=MANAGER)


async def apply_service(cluster: Cluster, manifest: Path, *, namespace: str) -> str:
    """Applies the sample InferenceService; returns its name."""
    service = await _apply(cluster, manifest, names.KIND, namespace)
    return str(service["metadata"]["name"])


async def apply_from_hub(cluster: Cluster, manifest: Path, uri: str, endpoint: str, *, namespace: str) -> str:
    """Applies the sample's service with a model of a hub, and what it needs: a Secret with the hub's address, and a
    claim that keeps what was fetched for replicas that start when this hub is gone. Returns its name."""
    where = {"namespace": namespace, "name": FROM_HUB}
    await cluster.apply(kinds.SECRET, {"metadata": where, "stringData": {"endpoint": endpoint}}, manager=MANAGER)
    claim = _document(manifest, kinds.CLAIM.kind, namespace, FROM_HUB)
    await cluster.apply(kinds.CLAIM, claim, manager=MANAGER)
    service = _document(manifest, names.KIND, namespace, FROM_HUB)
    service["spec"]["model"] = {"uri": uri, "secretName": FROM_HUB, "cacheClaim": FROM_HUB}
    del service["spec"]["autoscaling"]
    await cluster.apply(kinds.INFERENCE_SERVICE, service, manager=MANAGER)
    return FROM_HUB


async def until_ready(view: ServiceView, console: Console, *, deadline_s: float) -> str:
    """Waits for Ready and prints each new message of the condition; returns the address for clients."""
    told = ""

    async def status() -> dict[str, Any]:
        nonlocal told
        service = await view.service()
        found: dict[str, Any] = service.get("status") or {}
        if found.get("observedGeneration") != service["metadata"]["generation"]:
            return {}
        ready, stalled = condition(found, names.CONDITION_READY), condition(found, names.CONDITION_STALLED)
        line = f"{ready.get('reason', '')}: {ready.get('message', '')}"
        if line != told:
            told = line
            console.print(f"    {line}", highlight=False, soft_wrap=True)
        if stalled.get("status") == "True":
            raise DemoError(f"the service is stalled: {stalled.get('message')}")
        return found

    def is_ready(found: dict[str, Any]) -> bool:
        return condition(found, names.CONDITION_READY).get("status") == "True"

    found = await _until(status, is_ready, deadline_s, lambda _: f"the service did not become Ready; last: {told}")
    return str((found.get("address") or {}).get("url") or "")


async def chat(client: AsyncOpenAI, model: str, console: Console) -> float:
    """Streams one answer to the console; returns the seconds to its first token."""
    started, first = time.monotonic(), 0.0
    console.print(f"\n    [bold]you[/]     {QUESTION}\n    [bold]{model}[/]    ", end="")
    try:
        async for piece in _answer(client, model):
            first = first or time.monotonic() - started
            console.print(piece, end="", highlight=False, markup=False, soft_wrap=True)
    except APIError as error:
        raise DemoError(f"the gateway gave no answer: {error}") from error
    console.print("\n")
    if not first:
        raise DemoError("the answer was empty")
    return first


async def _answer(client: AsyncOpenAI, model: str) -> AsyncIterator[str]:
    stream = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": QUESTION}], max_tokens=100, temperature=0.0, stream=True
    )
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            yield chunk.choices[0].delta.content


async def scale_up_and_down(view: ServiceView, load: LoadGenerator, screen: Screen, plan: DemoPlan) -> tuple[int, int]:
    """Runs the load until it has added a replica, then waits for the replicas to fall again. Returns the most and the
    last ready replicas."""
    watch = _Watch(view, screen, load.counts)
    await watch.look("load")  # before it begins: replicas may be added within a second
    for _ in range(plan.loads):
        async with asyncio.TaskGroup() as group:
            running = group.create_task(load.run(time.monotonic() + plan.load_s))
            while not running.done():
                await watch.look("load")
        least = watch.first_wanted
        if watch.most > least:
            break
    until = time.monotonic() + plan.scale_down_s
    while time.monotonic() < until and (watch.last is None or watch.last.wanted > least or watch.last.ready > least):
        await watch.look("quiet")
    if load.counts.broken:
        raise DemoError(f"{load.counts.broken} of the streams broke; the last said: {load.counts.last_error}")
    if watch.most <= least:
        raise DemoError(f"the load did not raise the number of replicas above {least}")
    if watch.last is None or watch.last.wanted > least or watch.last.ready > least:
        raise DemoError(f"the replicas did not fall back to {least} within {plan.scale_down_s:.0f} s")
    return watch.most, watch.last.ready


class _Watch:
    """Takes a snapshot a second, shows it, and remembers what the outcome depends on."""

    def __init__(self, view: ServiceView, screen: Screen, counts: LoadTotals) -> None:
        self._view = view
        self._screen = screen
        self._counts = counts
        self._tokens = 0
        self._at = time.monotonic()
        self.first_wanted = 0
        self.most = 0
        self.last: Snapshot | None = None

    async def look(self, phase: str) -> None:
        await asyncio.sleep(1.0)
        try:
            now = await self._view.snapshot()
        except KubeError:
            return  # the next reading decides; a lasting outage ends the demo at its deadline
        at = time.monotonic()
        rate = (self._counts.tokens - self._tokens) / max(at - self._at, 1e-3)
        self._tokens, self._at = self._counts.tokens, at
        self.first_wanted = self.first_wanted or now.wanted
        self.most = max(self.most, now.ready)
        self.last = now
        self._screen.show(phase, now, rate, self._counts)


async def _until(
    ask: Callable[[], Any], good: Callable[[Any], bool], deadline_s: float, complaint: Callable[[Any], str]
) -> Any:
    until, last = time.monotonic() + deadline_s, None
    while time.monotonic() < until:
        try:
            last = await ask()
        except KubeError:
            last = None
        if last is not None and good(last):
            return last
        await asyncio.sleep(_POLL_S)
    raise DemoError(f"{complaint(last)} within {deadline_s:.0f} s")
