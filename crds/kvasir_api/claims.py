"""Who may serve a model name: the one rule that operator (condition NameConflict) and gateway (routing) both follow.

A name belongs to the oldest service that claims it, over all namespaces of a gateway; later claimants wait until it is
given up.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A service and the name it wants to serve. created: its creationTimestamp, RFC 3339 in UTC."""

    served_name: str
    namespace: str
    name: str
    created: str


def served_name(name: str, spec_served_name: str) -> str:
    """Name that clients put into the field model: the spec's, or the object's own."""
    return spec_served_name or name


def claims(service: Mapping[str, Any]) -> tuple[Claim, ...]:
    """All names that an InferenceService wants to serve, as it came from the API server; its own name first."""
    metadata = service["metadata"]
    model = (service.get("spec") or {}).get("model") or {}
    first = served_name(str(metadata["name"]), str(model.get("servedName") or ""))
    return tuple(
        Claim(
            served_name=asked,
            namespace=str(metadata.get("namespace") or ""),
            name=str(metadata["name"]),
            created=str(metadata.get("creationTimestamp") or ""),
        )
        for asked in dict.fromkeys((first, *map(str, model.get("aliases") or ())))
    )


def holders(claims: Iterable[Claim]) -> dict[str, Claim]:
    """The claim that holds each served name: the oldest; of the same second, the first by namespace and name."""
    held: dict[str, Claim] = {}
    for claim in sorted(claims, key=lambda c: (c.created, c.namespace, c.name)):
        held.setdefault(claim.served_name, claim)
    return held
