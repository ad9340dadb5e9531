"""Events of events.k8s.io/v1 about a service. A lost event is logged and never stops a reconcile."""

import logging
from typing import Any, Final, Literal

from kvasir_api import names
from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import EVENT, Json, key, uid
from kvasir_operator.loop.clock import Clock, rfc3339_micro

LOG: Final = logging.getLogger(__name__)
CONTROLLER: Final = f"{names.GROUP}/{names.OPERATOR}"
MAX_NOTE: Final = 1024


class Recorder:
    """Writes events. instance: the name of this operator's pod."""

    def __init__(self, cluster: Cluster, *, instance: str, clock: Clock) -> None:
        self._cluster, self._instance, self._clock = cluster, instance, clock
        self._count = 0

    async def event(
        self,
        service: Json,
        reason: str,
        note: str,
        *,
        kind: Literal["Normal", "Warning"] = "Normal",
        related: Json | None = None,
    ) -> None:
        """One event about a service; reason: one of names.EVENTS. related: the pod that it is about, if any."""
        if reason not in names.EVENTS:
            raise ValueError(f"{reason} is not in names.EVENTS")
        namespace, name = key(service)
        LOG.info("%s/%s: %s: %s", namespace, name, reason, note)
        now = self._clock.wall()
        self._count += 1
        body: Json = {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            # The operator's start and a counter make the name its own; a name with the service in it is found easily.
            "metadata": {"name": f"{name}.{int(now * 1000):x}.{self._count:x}", "namespace": namespace},
            "eventTime": rfc3339_micro(now),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "action": reason,
            "reason": reason,
            "regarding": reference(service, names.API_VERSION, names.KIND),
            "note": note[:MAX_NOTE],
            "type": kind,
        }
        if related is not None:
            body["related"] = reference(related, "v1", "Pod")
        try:
            await self._cluster.create(EVENT, body)
        except KubeError as error:
            LOG.warning("%s/%s: event %s was not written: %s", namespace, name, reason, error)


def reference(obj: Json, api_version: str, kind: str) -> dict[str, Any]:
    """An ObjectReference."""
    namespace, name = key(obj)
    return {"apiVersion": api_version, "kind": kind, "namespace": namespace, "name": name, "uid": uid(obj)}
