"""The downward API: resolves fieldRef and resourceFieldRef, for env and for downwardAPI volumes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

from kvasir_api.quantity import parse
from kvasir_kube.kinds import Json
from kvasir_local.node.rules.kinds import ConfigError, named


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlacement:
    """Where a pod runs: its address, the node's address and name, what the node can allocate (for absent limits)."""

    pod_ip: str
    host_ip: str
    node_name: str
    allocatable: Mapping[str, str]


def field(pod: Json, placement: PodPlacement, path: str) -> str:
    """The text of a fieldRef. ConfigError when the path is none that Kubernetes offers."""
    metadata, spec = pod["metadata"], pod["spec"]
    match path:
        case "metadata.name" | "metadata.namespace" | "metadata.uid":
            return str(metadata[path.partition(".")[2]])
        case "metadata.labels" | "metadata.annotations":
            return _lines(metadata.get(path.partition(".")[2]) or {})
        case "spec.nodeName":
            return placement.node_name
        case "spec.serviceAccountName":
            return str(spec.get("serviceAccountName") or "default")
        case "status.podIP" | "status.podIPs":
            return placement.pod_ip
        case "status.hostIP" | "status.hostIPs":
            return placement.host_ip
    for kind in ("labels", "annotations"):
        prefix = f"metadata.{kind}['"
        if path.startswith(prefix) and path.endswith("']"):
            return str((metadata.get(kind) or {}).get(path[len(prefix) : -2], ""))
    raise ConfigError(f"fieldRef {path!r} is not a field that a pod can read")


def resource(pod: Json, placement: PodPlacement, ref: Json, container: str | None) -> str:
    """The number of a resourceFieldRef in its divisor; an absent limit reads as the node's allocatable amount."""
    target = named(pod["spec"], ref.get("containerName") or container or "")
    group, _, name = str(ref["resource"]).partition(".")
    resources = target.get("resources") or {}
    amount = (resources.get(group) or {}).get(name)
    if amount is None:
        amount = placement.allocatable.get(name, "0") if group == "limits" else "0"
    return divided(amount, ref.get("divisor") or "1")


def divided(quantity: str | int, divisor: str | int) -> str:
    """The quantity counted in divisors, rounded up to a whole number. A divisor of 0 means 1."""
    unit = parse(divisor) or Decimal(1)
    return str(int((parse(quantity) / unit).to_integral_value(rounding=ROUND_CEILING)))


def _lines(pairs: Mapping[str, str]) -> str:
    return "\n".join(f"{name}={json.dumps(value)}" for name, value in sorted(pairs.items()))
