"""kopf as an event source: every watch event goes into the store and marks its service. Nothing is decided here.

Only `on.event` is used: it adds no finalizer, no annotation and no write, and needs no difference to act upon. kopf
runs in a thread with an event loop of its own, since at its end it cancels every task that it finds beside it.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final

import kopf

from kvasir_api import names
from kvasir_kube.client import Access
from kvasir_kube.kinds import Json, Kind, key, uid
from kvasir_operator.loop.dirty import Dirty
from kvasir_operator.loop.resync import WATCHED, Resync
from kvasir_operator.loop.store import Store

SERVER_TIMEOUT_S: Final = 240  # written into the URL, where the API server takes whole seconds only
CLIENT_TIMEOUT_S: Final = 270.0
REQUEST_TIMEOUT_S: Final = 15.0
CONNECT_TIMEOUT_S: Final = 10.0


Seen = Callable[[Kind, str, Json], None]
"""Takes the kind, the verb of the watch (empty for the first list) and the object."""


def watch(seen: Seen, *, namespace: str, access: Callable[[], Awaitable[Access]], stop: threading.Event) -> None:
    """Run kopf in this thread until stop is set or it fails. namespace: empty for all. seen is called in this
    thread."""
    asyncio.run(
        kopf.operator(
            registry=_registry(seen, access=access),
            settings=_settings(),
            standalone=True,
            clusterwide=not namespace,
            namespaces=[namespace] if namespace else [],
            stop_flag=stop,
        )
    )


def into(store: Store, dirty: Dirty, resync: Resync) -> Seen:
    """What the operator does with an event; to be called in the operator's own event loop."""

    def seen(kind: Kind, verb: str, obj: Json) -> None:
        resync.told(kind, obj)
        if verb == "DELETED":
            store.drop(kind, key(obj), uid(obj))
        else:
            store.put(kind, obj)
        for service in store.touched(kind, obj):
            dirty.mark(service)

    return seen


def _registry(seen: Seen, *, access: Callable[[], Awaitable[Access]]) -> kopf.OperatorRegistry:
    """Handlers for everything that is watched. access: how our own client reaches the API server."""
    made = kopf.OperatorRegistry()
    for kind, _ in WATCHED:
        kopf.on.event(kind.group, kind.version, kind.plural, registry=made, id=f"see-{kind.plural}")(
            _handler(kind, seen)
        )

    @kopf.on.login(registry=made)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        """The access that our own client has; kopf asks again when a token has expired."""
        found = await access()
        return kopf.ConnectionInfo(
            server=found.server,
            ca_path=found.ca_path or None,
            certificate_path=found.certificate_path or None,
            private_key_path=found.key_path or None,
            token=found.token or None,
            insecure=not found.verify,
        )

    return made


def _settings() -> kopf.OperatorSettings:
    """kopf as a quiet reader: no events, no peering, no discovery, watches that end and begin again."""
    made = kopf.OperatorSettings()
    made.posting.enabled = False
    made.peering.standalone = True
    made.scanning.disabled = True
    made.networking.request_timeout = REQUEST_TIMEOUT_S
    made.networking.connect_timeout = CONNECT_TIMEOUT_S
    made.watching.server_timeout = SERVER_TIMEOUT_S
    made.watching.client_timeout = CLIENT_TIMEOUT_S
    made.watching.connect_timeout = CONNECT_TIMEOUT_S
    # Never used, since nothing here changes an object; were it used by mistake, it should at least carry our name.
    made.persistence.finalizer = f"{names.GROUP}/finalizer"
    made.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=names.GROUP)
    made.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=names.GROUP)
    for kind, selector in WATCHED:
        if selector:
            made.watching.label_selectors[kind.group, kind.version, kind.plural] = selector
    return made


def _handler(kind: Kind, seen: Seen) -> Callable[..., Any]:
    async def see(event: Any, **_: Any) -> None:
        seen(kind, event["type"] or "", {"apiVersion": kind.api_version, "kind": kind.kind, **event["object"]})

    return see
