"""A node as a place for a replica that is yet to come: may a pod of a template be scheduled there?

Called by the loop; knows the fields of nodes, no client. What runs there already is not known, so that a node with the
right device may have none free.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from kvasir_api.quantity import parse
from kvasir_kube.kinds import Json

_EFFECTS: Final = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateNode:
    """taints: (key, value, effect) of those that keep pods away. allocatable: quantities by resource. usable: it is
    ready and not cordoned."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[tuple[str, str, str], ...] = ()
    allocatable: Mapping[str, str] = field(default_factory=dict)
    usable: bool = True

    def takes(self, pod: Json) -> bool:
        """Whether a pod of that spec may come here, by what the node offers to all."""
        selected = pod.get("nodeSelector") or {}
        if not self.usable or any(self.labels.get(name) != value for name, value in selected.items()):
            return False
        tolerations, devices = pod.get("tolerations") or (), _devices(pod)
        # An admission plugin of many clusters lets pods bear the taint that is named as the device that they request.
        borne = all(taint[0] in devices or _borne(taint, tolerations) for taint in self.taints)
        return borne and all(self._count(name) >= parse(count) for name, count in devices.items())

    def _count(self, device: str) -> Decimal:
        try:
            return parse(self.allocatable.get(device, "0"))
        except ValueError:
            return Decimal(0)


def candidate_node(obj: Json) -> CandidateNode:
    """A node object as a CandidateNode."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or ())
    taints = [(str(t.get("key", "")), str(t.get("value") or ""), t.get("effect")) for t in spec.get("taints") or ()]
    return CandidateNode(
        name=str(metadata["name"]),
        labels=metadata.get("labels") or {},
        taints=tuple(taint for taint in taints if taint[2] in _EFFECTS),
        allocatable=status.get("allocatable") or {},
        usable=ready and not spec.get("unschedulable") and not metadata.get("deletionTimestamp"),
    )


def _devices(pod: Json) -> Mapping[str, str]:
    limits = ((container.get("resources") or {}).get("limits") or {} for container in pod.get("containers") or ())
    return {name: count for limit in limits for name, count in limit.items() if "/" in name}


def _borne(taint: tuple[str, str, str], tolerations: Sequence[Json]) -> bool:
    key, value, effect = taint
    return any(
        t.get("effect") in (None, "", effect)
        and (t.get("key") or "") in ("", key)
        and (t.get("operator") == "Exists" or (t.get("key") == key and (t.get("value") or "") == value))
        for t in tolerations
    )
