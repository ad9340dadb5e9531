"""Writes aggregated events about pods and the node in the background, so that no event delays a pod."""

import asyncio
import logging
import time
from typing import Any, Final

from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import Json
from kvasir_local.node.api_kinds import CORE_EVENT
from kvasir_local.node.rules.events import EventAggregator, EventSeries, ObjectEvent
from kvasir_local.node.rules.kinds import timestamp

LOG: Final = logging.getLogger(__name__)
COMPONENT: Final = "kvasir-node"
MESSAGE_LIMIT: Final = 1024


class EventRecorder:
    """A queue of notes and the loop that writes them."""

    def __init__(self, cluster: Cluster, node_name: str) -> None:
        self._cluster, self._node_name = cluster, node_name
        self._aggregator = EventAggregator()
        self._queue: asyncio.Queue[tuple[ObjectEvent, EventSeries]] = asyncio.Queue()

    def pod(self, pod: Json, reason: str, message: str, *, container: str = "", warning: bool = False) -> None:
        """Note something about a pod, or about one of its containers."""
        metadata = pod["metadata"]
        field = f"spec.containers{{{container}}}" if container else ""
        self._record("Pod", metadata["namespace"], metadata["name"], metadata["uid"], field, reason, message, warning)

    def object(self, kind: str, obj: Json, reason: str, message: str, *, warning: bool = False) -> None:
        """Note something about another object; cluster-wide ones are noted in namespace default."""
        metadata = obj["metadata"]
        self._record(
            kind, metadata.get("namespace", "default"), metadata["name"], metadata["uid"], "", reason, message, warning
        )

    def forget(self, uid: str) -> None:
        """The object is gone; a later one of the same name starts to count again."""
        self._aggregator.forget(uid)

    async def run(self) -> None:
        """Write notes until cancelled; one that cannot be written is dropped and logged."""
        while True:
            event, series = await self._queue.get()
            try:
                if series.count == 1:
                    await self._cluster.create(CORE_EVENT, self._event(event, series))
                else:
                    patch = {"count": series.count, "lastTimestamp": timestamp(series.written)}
                    await self._cluster.merge(CORE_EVENT, event.namespace, series.name, patch, manager=COMPONENT)
            except KubeError as error:
                LOG.debug("event %s of %s/%s is lost: %s", event.reason, event.namespace, event.name, error)

    def _record(
        self, kind: str, namespace: str, name: str, uid: str, field: str, reason: str, message: str, warning: bool
    ) -> None:
        text = message[:MESSAGE_LIMIT]
        event = ObjectEvent(
            kind=kind,
            namespace=namespace,
            name=name,
            uid=uid,
            field=field,
            reason=reason,
            message=text,
            warning=warning,
        )
        series = self._aggregator.due(event, now=time.time())
        if series:
            self._queue.put_nowait((event, series))

    def _event(self, event: ObjectEvent, series: EventSeries) -> dict[str, Any]:
        involved = {"apiVersion": "v1", "kind": event.kind, "name": event.name, "uid": event.uid}
        if event.kind in ("Pod", "PersistentVolumeClaim"):
            involved["namespace"] = event.namespace
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": event.namespace, "name": series.name},
            "involvedObject": involved | ({"fieldPath": event.field} if event.field else {}),
            "reason": event.reason,
            "message": series.message,
            "type": "Warning" if event.warning else "Normal",
            "count": series.count,
            "firstTimestamp": timestamp(series.first),
            "lastTimestamp": timestamp(series.written),
            "source": {"component": COMPONENT, "host": self._node_name},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._node_name,
        }
