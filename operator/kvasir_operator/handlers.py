"""kopf as an event source: every watch event goes into the store and marks its service. Nothing is decided here.

Only `on.event` is used: it adds no finalizer, no annotation and no write, and needs no difference to act upon.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import kopf

from kvasir_api import names
from kvasir_kube.client import Access
from kvasir_kube.kinds import INFERENCE_SERVICE, Json, Kind, key, uid
from kvasir_operator.loop.dirty import Dirty
from kvasir_operator.loop.resync import WATCHED, Resync
from kvasir_operator.loop.store import Store, parent

SERVER_TIMEOUT_S: Final = 240  # written into the URL, where the API server takes whole seconds only
CLIENT_TIMEOUT_S: Final = 270.0
REQUEST_TIMEOUT_S: Final = 15.0
CONNECT_TIMEOUT_S: Final = 10.0


def registry(
    store: Store, dirty: Dirty, resync: Resync, *, access: Callable[[], Awaitable[Access]]
) -> kopf.OperatorRegistry:
    """Handlers for everything that is watched. access: how our own client reaches the API server."""
    made = kopf.OperatorRegistry()
    for kind, _ in WATCHED:
        kopf.on.event(kind.group, kind.version, kind.plural, registry=made, id=f"see-{kind.plural}")(
            _handler(kind, store, dirty, resync)
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


def settings() -> kopf.OperatorSettings:
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


def _handler(kind: Kind, store: Store, dirty: Dirty, resync: Resync) -> Callable[..., Any]:
    async def see(event: Any, **_: Any) -> None:
        obj: Json = {"apiVersion": kind.api_version, "kind": kind.kind, **event["object"]}
        resync.told(kind, obj)
        if event["type"] == "DELETED":
            store.drop(kind, key(obj), uid(obj))
        else:
            store.put(kind, obj)
        service = parent(obj)
        if service[1] or kind is INFERENCE_SERVICE:
            dirty.mark(service)

    return see
