"""The API server over HTTPS: the one place that knows the kubernetes client library.

The library finds the configuration (kubeconfig or the pod's service account), keeps the token fresh and builds the TLS
context; requests themselves are plain JSON over one aiohttp session with a deadline each.
"""

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

import aiohttp
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import load_incluster_config, load_kube_config

from kvasir_kube.cluster import Listing, WatchEvent, WatchVerb
from kvasir_kube.errors import ConflictError, ExpiredError, KubeError, NotFoundError
from kvasir_kube.kinds import Json, Kind

REQUEST_TIMEOUT_S: Final = 15.0
CLOSE_S: Final = 0.05
PAGE_SIZE: Final = 500
WATCH_SERVER_TIMEOUT_S: Final = 240
WATCH_SILENCE_S: Final = 75.0
"""Bookmarks come about once a minute, so a stream that is silent for longer is dead although TCP has not noticed."""
MAX_LINE_BYTES: Final = 4 * 1024 * 1024

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
WATCH_VERBS: Final = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK")


async def configuration(kubeconfig: str = "") -> Configuration:
    """Where the API server is and how to speak to it.

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
    return config


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to reach the API server, for another client in the same process. Paths are empty where there is no file."""

    server: str
    ca_path: str
    certificate_path: str
    key_path: str
    token: str = field(repr=False)
    verify: bool


async def access(config: Configuration) -> Access:
    """What a configuration says now; the token is as fresh as its file."""
    scheme, _, token = (await _bearer(config)).partition(" ")
    return Access(
        server=config.host.rstrip("/"),
        ca_path=config.ssl_ca_cert or "",
        certificate_path=config.cert_file or "",
        key_path=config.key_file or "",
        token=token or scheme,
        verify=bool(config.verify_ssl),
    )


async def _bearer(config: Configuration) -> str:
    """Value of the authorization header, empty when certificates speak."""
    found = (await config.auth_settings()).get("BearerToken")
    return str(found["value"] or "") if found else ""


class Client:
    """The verbs of `Cluster` against a real API server. Use as an async context manager."""

    def __init__(self, config: Configuration) -> None:
        self._config = config
        self._base = config.host.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        tls = RESTClientObject(self._config).ssl_context
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, limit=64), read_bufsize=MAX_LINE_BYTES
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session:
            await self._session.close()
            # TLS transports end in later turns of the loop; without them they would be reported as never closed.
            await asyncio.sleep(CLOSE_S)

    async def get(self, kind: Kind, namespace: str, name: str) -> Json:
        """One object. NotFoundError when there is none."""
        return await self._call("GET", kind.path(namespace, name))

    async def list(self, kind: Kind, namespace: str = "", selector: str = "") -> Listing:
        """All objects that match, read in pages; items carry apiVersion and kind as single objects do."""
        items: list[Json] = []
        query = {"limit": str(PAGE_SIZE), **({"labelSelector": selector} if selector else {})}
        while True:
            page = await self._call("GET", kind.path(namespace), query=query)
            items += page.get("items") or ()
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                break
            query["continue"] = metadata["continue"]
        named = {"apiVersion": kind.api_version, "kind": kind.kind}
        return Listing(
            items=tuple({**named, **item} for item in items), resource_version=str(metadata.get("resourceVersion", ""))
        )

    async def watch(
        self, kind: Kind, namespace: str = "", selector: str = "", *, resource_version: str
    ) -> AsyncGenerator[WatchEvent, None]:
        """Changes since resource_version until the server ends the stream or falls silent."""
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(WATCH_SERVER_TIMEOUT_S),
        }
        if selector:
            query["labelSelector"] = selector
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT_S, sock_read=WATCH_SILENCE_S)
        try:
            async with self._open.get(
                self._base + kind.path(namespace), params=query, headers=await self._headers(), timeout=timeout
            ) as response:
                if response.status != 200:
                    raise _error(response.status, await _decoded(response), response.headers)
                async for line in response.content:
                    if line.strip():
                        yield _watch_event(json.loads(line))
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise KubeError(f"watch of {kind.plural} broke: {error!r}") from error

    async def create(self, kind: Kind, obj: Json) -> Json:
        """Create an object. ConflictError when it exists."""
        namespace = (obj.get("metadata") or {}).get("namespace") or ""
        return await self._call("POST", kind.path(namespace), body=obj)

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

    @property
    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the client is used outside of its context")
        return self._session

    async def _headers(self) -> dict[str, str]:
        headers = {"accept": "application/json"}
        if bearer := await _bearer(self._config):
            headers["authorization"] = bearer
        return headers

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> Json:
        headers = await self._headers()
        data = None
        if body is not None:
            headers["content-type"] = content_type
            data = json.dumps(body)
        try:
            async with (
                asyncio.timeout(REQUEST_TIMEOUT_S),
                self._open.request(method, self._base + path, params=query, data=data, headers=headers) as response,
            ):
                decoded = await _decoded(response)
                if response.status >= 400:
                    raise _error(response.status, decoded, response.headers)
                return decoded
        except TimeoutError as error:
            raise KubeError(f"{method} {path}: no answer within {REQUEST_TIMEOUT_S:g} s") from error
        except aiohttp.ClientError as error:
            raise KubeError(f"{method} {path}: {error}") from error


async def _decoded(response: aiohttp.ClientResponse) -> Json:
    text = await response.text()
    try:
        decoded = json.loads(text) if text else {}
    except ValueError:
        decoded = {"message": text[:500]}
    return decoded if isinstance(decoded, dict) else {"message": str(decoded)[:500]}


def _watch_event(line: Json) -> WatchEvent:
    verb, obj = line.get("type"), line.get("object") or {}
    if verb == "ERROR":
        raise _error(int(obj.get("code") or 500), obj, {})
    if verb not in WATCH_VERBS:
        raise KubeError(f"a watch sent an event of type {verb!r}")
    return WatchEvent(verb=cast("WatchVerb", verb), obj=obj)


def _error(status: int, body: Json, headers: Any) -> KubeError:
    message = str(body.get("message") or f"HTTP {status}")
    reason = str(body.get("reason") or "")
    kinds: dict[int, type[KubeError]] = {404: NotFoundError, 409: ConflictError, 410: ExpiredError}
    retry_after = str(headers.get("Retry-After") or "")
    return kinds.get(status, KubeError)(
        message, status=status, reason=reason, retry_after_s=float(retry_after) if retry_after.isdigit() else 0.0
    )
