"""kopf as an event source: every watch event goes into the store and marks its service. Nothing is decided here.

Only `on.event` is used: it adds no finalizer, no annotation and no write, and needs no difference to act upon. kopf
runs in a thread with an event loop of its own, since at its end it cancels every task that it finds beside it.

kopf survives a watch that ends, expires or falls silent. One that it gives up (a right that is missing, an error in the
stream, an unknown kind) it only logs; here that ends the whole, for `loop.watches` to start it again.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import kopf

from kvasir_api import names
from kvasir_kube.client import Access
from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import Json, Kind, key, resource_version, uid
from kvasir_operator.loop.resync import WATCHED, Resync
from kvasir_operator.loop.store import Store
from kvasir_operator.loop.workqueue import Workqueue

SERVER_TIMEOUT_S: Final = 240  # written into the URL, where the API server takes whole seconds only
CLIENT_TIMEOUT_S: Final = 270.0
REQUEST_TIMEOUT_S: Final = 15.0
CONNECT_TIMEOUT_S: Final = 10.0
RETRIES_S: Final = (0.5, 1.0, 2.0)
"""kopf's own pauses before it gives a watch up; they have no jitter, so the longer ones are ours."""
COMPLETE_S: Final = 15.0
"""Every kind must be watched by then, or kopf did not find one."""
IDLE_TIMEOUT_S: Final = 0.01
"""So long a worker of kopf waits for a further event of its object, which it holds; in a list each object has one."""
LIST_PAGE: Final = 50
"""Objects of a list that kopf decodes at once. All are whole, and nearly all are known."""
LOOK_S: Final = 0.5
END_S: Final = 3.0
"""So long kopf may take to end its watches, which wait for 2 s for their workers."""
IDENTITY: Final[Any] = "kvasir-operator"
"""Of kopf's peering, which is off. Without one kopf looks up its user's name, and users of containers have none."""
WATCHER: Final = "watcher for "
"""kopf's name for the task of one watch begins with this."""

Seen = Callable[[Kind, str, Json], None]
"""Takes the kind, the verb of the watch (empty for the first list) and the object."""


class NoDiffBase(kopf.DiffBaseStorage):
    """kopf finds what has changed in an object by a deep copy of it and one of that, at each event, also where no
    handler is called for changes: here an object is empty."""

    def build(self, **_: Any) -> Any:
        """As of kopf: the part of an object that is compared."""
        return {}

    def fetch(self, **_: Any) -> Any:
        """As of kopf: that part as it was handled last."""
        return None

    def store(self, **_: Any) -> None:
        """As of kopf; never called without a handler of changes."""


def watch(seen: Seen, *, namespace: str, access: Callable[[], Awaitable[Access]], stop: threading.Event) -> None:
    """Run kopf in this thread until stop is set. namespace: empty for all. seen is called in this thread.

    Raises KubeError when a watch died or never began; its status is what the API server answered, 0 for anything else.
    """
    asyncio.run(_guarded(seen, namespace=namespace, access=access, stop=stop))


async def _guarded(
    seen: Seen, *, namespace: str, access: Callable[[], Awaitable[Access]], stop: threading.Event
) -> None:
    """kopf, and an eye on the tasks of its watches."""
    everything = asyncio.create_task(
        kopf.operator(
            registry=_registry(seen, access=access),
            settings=_settings(),
            standalone=True,
            identity=IDENTITY,
            clusterwide=not namespace,
            namespaces=[namespace] if namespace else [],
            stop_flag=stop,
        )
    )
    watchers: set[asyncio.Task[Any]] = set()
    began, died = time.monotonic(), None
    try:
        while not everything.done() and not stop.is_set() and died is None:
            await asyncio.wait({everything}, timeout=LOOK_S)
            watchers |= _watchers()
            died = None if stop.is_set() else _death(watchers, age_s=time.monotonic() - began)
    finally:
        stop.set()  # kopf waits for it in a thread, without whose end this loop does not end
    await _ended(everything)
    error = everything.exception()
    if error is not None and all(task.cancelled() for task in watchers if task.done()):
        died = _as_kube_error(f"kopf ended: {error}", error)  # by a watch that lived for less than a look
    if died is not None:
        raise died


def _watchers() -> set[asyncio.Task[Any]]:
    """Tasks of watches that are not done."""
    return {task for task in asyncio.all_tasks() if task.get_name().startswith(WATCHER)}


async def _ended(everything: asyncio.Task[None]) -> None:
    """Wait for kopf, which waits for its watches: before Python 3.12 wait_for may swallow a cancellation, so those that
    go on are cancelled again."""
    while not everything.done():
        await asyncio.wait({everything}, timeout=END_S)
        for task in _watchers():
            task.cancel()


def _death(watchers: set[asyncio.Task[Any]], *, age_s: float) -> KubeError | None:
    """Why not every kind is watched; None when all are, or may be soon. With one that dies kopf cancels the others."""
    ended = [task for task in watchers if task.done()]
    for task in sorted(ended, key=asyncio.Task.cancelled):
        error = None if task.cancelled() else task.exception()
        return _as_kube_error(f"{task.get_name()} ended: {error or 'no reason was reported'}", error)
    if len(watchers) < len(WATCHED) and age_s > COMPLETE_S:
        return KubeError(f"only {len(watchers)} of {len(WATCHED)} kinds are known to the API server", status=404)
    return None


def _as_kube_error(words: str, error: BaseException | None) -> KubeError:
    """With the status that kopf's error has, 0 for none."""
    return KubeError(words, status=int(getattr(error, "status", 0) or 0))


def store_events(store: Store, workqueue: Workqueue, resync: Resync) -> Seen:
    """What the operator does with an event; called in the operator's own event loop."""

    def seen(kind: Kind, verb: str, obj: Json) -> None:
        resync.delivered(kind, obj)
        if not verb:
            resync.relisted()
        if verb == "DELETED":
            changed = store.drop(kind, key(obj), uid(obj), version=resource_version(obj))
        else:
            changed = store.put(kind, obj)
        if changed:  # what this operator wrote itself is in the store before it comes back
            for service in store.touched(kind, obj):
                workqueue.mark(service)

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
        """The access that our own client has; kopf calls this again when a token has expired."""
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
    made.networking.error_backoffs = RETRIES_S
    made.watching.server_timeout = SERVER_TIMEOUT_S
    made.watching.client_timeout = CLIENT_TIMEOUT_S
    made.watching.connect_timeout = CONNECT_TIMEOUT_S
    made.watching.chunk_size = LIST_PAGE
    made.queueing.idle_timeout = IDLE_TIMEOUT_S
    # Never used, since nothing here changes an object; were it used by mistake, it should at least carry our name.
    made.persistence.finalizer = f"{names.GROUP}/finalizer"
    made.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=names.GROUP)
    made.persistence.diffbase_storage = NoDiffBase()
    for kind, selector in WATCHED:
        if selector:
            made.watching.label_selectors[kind.group, kind.version, kind.plural] = selector
    return made


def _handler(kind: Kind, seen: Seen) -> Callable[..., Any]:
    async def see(event: Any, **_: Any) -> None:
        seen(kind, event["type"] or "", {"apiVersion": kind.api_version, "kind": kind.kind, **event["object"]})

    return see
