"""Writes events about pods and the node, folded, in the background: an event must never hold up a pod."""

import asyncio
import logging
import time
from typing import Any, Final

from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import KubeError
from kvasir_local.node.apikinds import CORE_EVENT
from kvasir_local.node.rules.events import Aggregator, Entry, Note
from kvasir_local.node.rules.kinds import Json, timestamp

LOG: Final = logging.getLogger(__name__)
COMPONENT: Final = "kvasir-node"
MESSAGE_LIMIT: Final = 1024


class Recorder:
    """A queue of notes and the loop that writes them."""

    def __init__(self, cluster: Cluster, node_name: str) -> None:
        self._cluster, self._node_name = cluster, node_name
        self._aggregator = Aggregator()
        self._queue: asyncio.Queue[tuple[Note, Entry]] = asyncio.Queue()

    def pod(self, pod: Json, reason: str, message: str, *, container: str = "", warning: bool = False) -> None:
        """Note something about a pod, or about one of its containers."""
        metadata = pod["metadata"]
        field = f"spec.containers{{{container}}}" if container else ""
        self._note("Pod", metadata["namespace"], metadata["name"], metadata["uid"], field, reason, message, warning)

    def object(self, kind: str, obj: Json, reason: str, message: str, *, warning: bool = False) -> None:
        """Note something about another object; cluster-wide ones are noted in namespace default."""
        metadata = obj["metadata"]
        self._note(
            kind, metadata.get("namespace", "default"), metadata["name"], metadata["uid"], "", reason, message, warning
        )

    def forget(self, uid: str) -> None:
        """The object is gone; a later one of the same name starts to count anew."""
        self._aggregator.forget(uid)

    async def run(self) -> None:
        """Write notes until cancelled; one that cannot be written is dropped and logged."""
        while True:
            note, entry = await self._queue.get()
            try:
                if entry.count == 1:
                    await self._cluster.create(CORE_EVENT, self._event(note, entry))
                else:
                    patch = {"count": entry.count, "lastTimestamp": timestamp(entry.written)}
                    await self._cluster.merge(CORE_EVENT, note.namespace, entry.name, patch, manager=COMPONENT)
            except KubeError as error:
                LOG.debug("event %s of %s/%s is lost: %s", note.reason, note.namespace, note.name, error)

    def _note(
        self, kind: str, namespace: str, name: str, uid: str, field: str, reason: str, message: str, warning: bool
    ) -> None:
        text = message[:MESSAGE_LIMIT]
        note = Note(
            kind=kind,
            namespace=namespace,
            name=name,
            uid=uid,
            field=field,
            reason=reason,
            message=text,
            warning=warning,
        )
        entry = self._aggregator.due(note, now=time.time())
        if entry:
            self._queue.put_nowait((note, entry))

    def _event(self, note: Note, entry: Entry) -> dict[str, Any]:
        involved = {"apiVersion": "v1", "kind": note.kind, "name": note.name, "uid": note.uid}
        if note.kind in ("Pod", "PersistentVolumeClaim"):
            involved["namespace"] = note.namespace
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": note.namespace, "name": entry.name},
            "involvedObject": involved | ({"fieldPath": note.field} if note.field else {}),
            "reason": note.reason,
            "message": entry.message,
            "type": "Warning" if note.warning else "Normal",
            "count": entry.count,
            "firstTimestamp": timestamp(entry.first),
            "lastTimestamp": timestamp(entry.written),
            "source": {"component": COMPONENT, "host": self._node_name},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._node_name,
        }
