"""Which service serves a model name: one rule for the operator (condition NameConflict) and the gateway (routing).

A name belongs to the oldest service that claims it, over all namespaces of a gateway; later ones wait until it is free.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class NameClaim:
    """A service and a model name of its spec. created: its creationTimestamp, RFC 3339 in UTC."""

    served_name: str
    namespace: str
    name: str
    created: str


def served_name(name: str, spec_served_name: str) -> str:
    """Name that clients put into the field model: the spec's, or the object's own."""
    return spec_served_name or name


def name_claims(service: Mapping[str, Any]) -> tuple[NameClaim, ...]:
    """All model names of an InferenceService as it came from the API server; its own name first."""
    metadata = service["metadata"]
    model = (service.get("spec") or {}).get("model") or {}
    first = served_name(str(metadata["name"]), str(model.get("servedName") or ""))
    return tuple(
        NameClaim(
            served_name=asked,
            namespace=str(metadata.get("namespace") or ""),
            name=str(metadata["name"]),
            created=str(metadata.get("creationTimestamp") or ""),
        )
        for asked in dict.fromkeys((first, *map(str, model.get("aliases") or ())))
    )


def owners(name_claims: Iterable[NameClaim]) -> dict[str, NameClaim]:
    """The claim that owns each served name: the oldest; of the same second, the first by namespace and name."""
    owned: dict[str, NameClaim] = {}
    for claim in sorted(name_claims, key=lambda c: (c.created, c.namespace, c.name)):
        owned.setdefault(claim.served_name, claim)
    return owned
