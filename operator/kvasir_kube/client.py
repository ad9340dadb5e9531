"""The API server through the `kubernetes` package's asynchronous client: the one place that knows this library.

`ApiClient` finds and refreshes credentials, keeps the TLS connections and sends requests; `Watch` reads event streams.
Objects stay plain JSON: `DynamicClient` wraps them at several times the processor time (docs/benchmarks/operator.md).
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

import aiohttp
import msgspec
from kubernetes.aio.client import ApiClient, ApiException
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTResponse
from kubernetes.aio.config import list_kube_config_contexts, load_incluster_config, load_kube_config
from kubernetes.aio.watch import Watch

from kvasir_api import __version__
from kvasir_kube.cluster import Known, Listing, WatchEvent, WatchVerb, as_it_is, none_known
from kvasir_kube.errors import ConflictError, ExpiredError, KubeError, NotFoundError
from kvasir_kube.kinds import POD, Json, Kind, key

REQUEST_TIMEOUT_S: Final = 15.0
CLOSE_S: Final = 0.05
PAGE_SIZE: Final = 250
"""Objects of a list in one answer. A page is a few MB of JSON and ten times as much when it is decoded."""
WATCH_SERVER_TIMEOUT_S: Final = 240
WATCH_SILENCE_S: Final = 75.0
"""Bookmarks come about once a minute, so a stream that is silent for longer is dead although TCP has not noticed."""
REQUEST_TIMEOUT: Final = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
WATCH_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT_S, sock_read=WATCH_SILENCE_S)
SESSION: Final[dict[str, Any]] = {
    "read_bufsize": 4 * 1024 * 1024,  # an event of a watch is one line
    "trust_env": False,  # else aiohttp reads ~/.netrc and the proxy variables in a thread for each request
}

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
WATCH_VERBS: Final = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK")


async def configuration(kubeconfig: str = "") -> Configuration:
    """The address of the API server and the credentials for it.

    Tried in this order: the argument, $KUBECONFIG, the pod's service account, ~/.kube/config. Raises KubeError when
    none is usable.
    """
    config = Configuration()
    chosen = kubeconfig or os.environ.get("KUBECONFIG", "")
    try:
        if chosen or not SERVICE_ACCOUNT.exists():
            await load_kube_config(config_file=chosen or None, client_configuration=config)
        else:
            load_incluster_config(client_configuration=config)
    except Exception as error:  # whatever a bad file makes the library raise
        raise KubeError(f"no usable Kubernetes configuration: {error}") from error
    config.client_session_kwargs = SESSION
    return config


def context_namespace(kubeconfig: str = "") -> str:
    """The namespace that a command without one means, as kubectl's: of the context, or of the pod, else `default`.

    Tried in the order of `configuration`. Raises KubeError when none is usable.
    """
    chosen = kubeconfig or os.environ.get("KUBECONFIG", "")
    try:
        if not chosen and SERVICE_ACCOUNT.exists():
            return SERVICE_ACCOUNT.with_name("namespace").read_text().strip()
        _, current = list_kube_config_contexts(chosen or None)
    except Exception as error:  # whatever a bad file makes the library raise
        raise KubeError(f"no usable Kubernetes configuration: {error}") from error
    return str(current["context"].get("namespace") or "default")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Address and credentials for another client in the same process. Paths are empty where there is no file."""

    server: str
    ca_path: str
    certificate_path: str
    key_path: str
    token: str = field(repr=False)
    verify: bool


async def access(config: Configuration) -> Access:
    """What a configuration holds now; the token is as fresh as its file."""
    found = (await config.auth_settings()).get("BearerToken")
    scheme, _, token = str(found["value"] or "" if found else "").partition(" ")
    return Access(
        server=config.host.rstrip("/"),
        ca_path=config.ssl_ca_cert or "",
        certificate_path=config.cert_file or "",
        key_path=config.key_file or "",
        token=token or scheme,
        verify=bool(config.verify_ssl),
    )


class Client:
    """The verbs of `Cluster` against a real API server. Use as an async context manager."""

    def __init__(self, config: Configuration) -> None:
        self._api = ApiClient(config)
        self._api.user_agent = f"kvasir/{__version__}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._api.close()
        # TLS transports end in later turns of the loop; without them they would be reported as never closed.
        await asyncio.sleep(CLOSE_S)

    async def get(self, kind: Kind, namespace: str, name: str) -> Json:
        """One object. NotFoundError when there is none."""
        return await self._call("GET", kind.path(namespace, name))

    async def list(
        self,
        kind: Kind,
        namespace: str = "",
        selector: str = "",
        *,
        known: Known = none_known,
        transform: Callable[[Json], Json] = as_it_is,
    ) -> Listing:
        """All objects that match, read in pages; items carry apiVersion and kind as single objects do. They are decoded
        one by one, so that what is dropped of one is freed at once and memory stays in one piece."""
        items: list[Json] = []
        named = {"apiVersion": kind.api_version, "kind": kind.kind}

        def taken(item: msgspec.Raw) -> Json:
            head = msgspec.json.decode(item, type=_Item).metadata
            found = known((head.namespace, head.name), head.resource_version)
            return transform({**named, **msgspec.json.decode(item)}) if found is None else found

        query = {"limit": str(PAGE_SIZE), **({"labelSelector": selector} if selector else {})}
        while True:
            content = await self._read("GET", kind.path(namespace), query=query)
            try:
                page = msgspec.json.decode(content, type=_Page)
                items += map(taken, page.items or ())
            except msgspec.MsgspecError as error:
                raise KubeError(f"the list of {kind.plural} cannot be read: {error}") from error
            if not page.metadata.get("continue"):
                break
            query["continue"] = page.metadata["continue"]
        return Listing(items=tuple(items), resource_version=str(page.metadata.get("resourceVersion", "")))

    async def watch(
        self, kind: Kind, namespace: str = "", selector: str = "", *, resource_version: str
    ) -> AsyncGenerator[WatchEvent, None]:
        """Changes since resource_version until the server ends the stream or falls silent."""
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(WATCH_SERVER_TIMEOUT_S),
            **({"labelSelector": selector} if selector else {}),
        }
        stream = Watch().stream(self._open_watch, kind.path(namespace), query, timeout_seconds=WATCH_SERVER_TIMEOUT_S)
        try:
            async with stream as events:
                async for event in events:
                    yield _watch_event(event)
        except KubeError:
            raise
        except ApiException as error:
            reason, _, message = str(error.reason).partition(": ")
            raise _error(int(error.status or 500), {"message": message, "reason": reason}, {}) from error
        except Exception as error:  # whatever a broken stream makes the library raise
            raise KubeError(f"watch of {kind.plural} broke: {error!r}") from error

    async def create(self, kind: Kind, obj: Json, *, manager: str = "") -> Json:
        """Create an object. ConflictError when it exists."""
        namespace = (obj.get("metadata") or {}).get("namespace") or ""
        query = {"fieldManager": manager} if manager else None
        return await self._call("POST", kind.path(namespace), query=query, body=obj)

    async def apply(self, kind: Kind, obj: Json, *, manager: str, subresource: str = "") -> Json:
        """Server-side apply with force: a controller wins on the fields it owns."""
        metadata = obj["metadata"]
        body = {"apiVersion": kind.api_version, "kind": kind.kind, **obj}
        return await self._call(
            "PATCH",
            kind.path(metadata.get("namespace") or "", metadata["name"], subresource),
            query={"fieldManager": manager, "force": "true"},
            body=body,
            content_type="application/apply-patch+yaml",
        )

    async def merge(
        self, kind: Kind, namespace: str, name: str, patch: Json, *, manager: str, subresource: str = ""
    ) -> Json:
        """JSON merge patch; None removes a field."""
        return await self._call(
            "PATCH",
            kind.path(namespace, name, subresource),
            query={"fieldManager": manager},
            body=patch,
            content_type="application/merge-patch+json",
        )

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str = "", grace_s: int | None = None) -> None:
        """Delete in the background, only if the uid is still this one. An absent object is fine."""
        body: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid:
            body["preconditions"] = {"uid": uid}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            await self._call("DELETE", kind.path(namespace, name), body=body)
        except NotFoundError:
            return

    async def read_pod(self, pod: Json, port: int, path: str) -> Json:
        """A JSON document of a pod's port, through the API server. NotFoundError when there is none."""
        namespace, name = key(pod)
        return await self._call("GET", POD.path(namespace, f"{name}:{port}", "proxy") + path)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> Json:
        return _decoded(await self._read(method, path, query=query, body=body, content_type=content_type))

    async def _read(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """The body of an answer that is no error."""
        try:
            response = await self._send(method, path, query or {}, body, content_type, REQUEST_TIMEOUT)
            content: bytes = await response.read()
        except TimeoutError as error:
            raise KubeError(f"{method} {path}: no answer within {REQUEST_TIMEOUT_S:g} s") from error
        except aiohttp.ClientError as error:
            raise KubeError(f"{method} {path}: {_reason(error)}") from error
        if response.status >= 400:
            raise _error(response.status, _decoded(content), response.headers)
        return content

    async def _open_watch(self, path: str, query: dict[str, str], **_options: object) -> Any:
        """The response that `Watch` reads; it passes options that the query holds already."""
        response = await self._send("GET", path, query, None, "application/json", WATCH_TIMEOUT)
        if response.status != 200:
            raise _error(response.status, _decoded(await response.read()), response.headers)
        return response.response

    async def _send(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: Json | None,
        content_type: str,
        timeout: aiohttp.ClientTimeout,
    ) -> RESTResponse:
        request = await self._api.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        return await self._api.call_api(*request, _request_timeout=timeout)


def _reason(error: aiohttp.ClientError) -> str:
    """What the network says; the library's own words name its settings of TLS."""
    if not isinstance(error, aiohttp.ClientConnectorError):
        return str(error) or type(error).__name__
    cause = error.os_error
    return f"{error.host}:{error.port} cannot be reached: {os.strerror(cause.errno) if cause.errno else cause}"


class _Page(msgspec.Struct):
    """An answer of a list. items: as they came."""

    items: list[msgspec.Raw] | None
    metadata: Json = {}


class _ItemMetadata(msgspec.Struct):
    """Of an item of a list."""

    name: str
    namespace: str = ""
    resource_version: str = msgspec.field(name="resourceVersion", default="")


class _Item(msgspec.Struct):
    """An item of a list, as far as its name and version."""

    metadata: _ItemMetadata


def _decoded(content: bytes) -> Json:
    try:
        decoded = msgspec.json.decode(content) if content else {}
    except msgspec.DecodeError:
        decoded = {"message": content[:500].decode(errors="replace")}
    return decoded if isinstance(decoded, dict) else {"message": str(decoded)[:500]}


def _watch_event(event: Any) -> WatchEvent:
    """`Watch` returns a line that is no JSON as text."""
    if not isinstance(event, dict) or event["type"] not in WATCH_VERBS:
        raise KubeError(f"a watch sent {str(event)[:200]!r}")
    return WatchEvent(verb=cast("WatchVerb", event["type"]), obj=event["raw_object"])


def _error(status: int, body: Json, headers: Any) -> KubeError:
    message = str(body.get("message") or f"HTTP {status}")
    reason = str(body.get("reason") or "")
    kinds: dict[int, type[KubeError]] = {404: NotFoundError, 409: ConflictError, 410: ExpiredError}
    retry_after = str(headers.get("Retry-After") or "")
    return kinds.get(status, KubeError)(
        message, status=status, reason=reason, retry_after_s=float(retry_after) if retry_after.isdigit() else 0.0
    )
