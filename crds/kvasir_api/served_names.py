"""Which service serves a model name: one rule for the operator (condition NameConflict) and the gateway (routing).

A name belongs to the oldest service that claims it, over all namespaces of a gateway, or over the one that an
administrator reserves it for. Later ones of its namespace wait until it is free. Those of other namespaces are refused,
and what was refused stays so in their status also when the name is free: a service that is deleted and made again gets
its name back, and its clients never reach another namespace's service. NAMESPACE/NAME always is the service of that
name, whatever others claim.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

RESERVE_MODEL_NAME: Final = (
    "Model name that services of one namespace alone may have in front of the gateways, also where another had it"
    " before; may be repeated, and is to be the same at the operator and the pickers. Default: names belong to the"
    " namespace that claims them first."
)
"""Of the option --reserve-model-name."""
NONE_RESERVED: Final[Mapping[str, str]] = MappingProxyType({})
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class NameClaim:
    """A service and a model name of its spec. created: its creationTimestamp, RFC 3339 in UTC. refused: its status has
    that a service of another namespace had the name when this one claimed it."""

    served_name: str
    namespace: str
    name: str
    created: str
    refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NameConflict:
    """A name of a service's spec under which it gets no requests. holder: NAMESPACE/NAME of the service that has it, or
    empty while it is free. refused: whether it stays so when the name is free. reserved_for: the namespace that has the
    name, where that is another one's by the administrator's word."""

    served_name: str
    holder: str
    refused: bool
    reserved_for: str = ""


def qualified_name(namespace: str, name: str) -> str:
    """The model name that always is this very service."""
    return f"{namespace}/{name}"


def dns_name(namespace: str, name: str) -> str:
    """The DNS name of a service in the cluster, which the certificates of its pods have."""
    return f"{name}.{namespace}.svc"


def served_name(name: str, spec_served_name: str) -> str:
    """Name that clients put into the field model: the spec's, or the object's own."""
    return spec_served_name or name


def name_claims(service: Mapping[str, Any]) -> tuple[NameClaim, ...]:
    """All model names of an InferenceService as it came from the API server; its own name first."""
    metadata, refused = service["metadata"], (service.get("status") or {}).get("refusedNames") or ()
    model = (service.get("spec") or {}).get("model") or {}
    first = served_name(str(metadata["name"]), str(model.get("servedName") or ""))
    return tuple(
        NameClaim(
            served_name=asked,
            namespace=str(metadata.get("namespace") or ""),
            name=str(metadata["name"]),
            created=str(metadata.get("creationTimestamp") or ""),
            refused=asked in refused,
        )
        for asked in dict.fromkeys((first, *map(str, model.get("aliases") or ())))
    )


def owners(name_claims: Iterable[NameClaim], reserved: Mapping[str, str] = NONE_RESERVED) -> dict[str, NameClaim]:
    """The claim that owns each served name: the oldest that was not refused; of the same second, the first by namespace
    and name. A name that only refused ones claim is absent.

    reserved: as of `reserved_names`. Of such a name the claims of its namespace alone count, also those that were
    refused before it was reserved.
    """
    owned: dict[str, NameClaim] = {}
    for claim in sorted(name_claims, key=lambda c: (c.created, c.namespace, c.name)):
        reserved_for = reserved.get(claim.served_name)
        if claim.namespace == reserved_for or (reserved_for is None and not claim.refused):
            owned.setdefault(claim.served_name, claim)
    return owned


def reserved_names(given: Iterable[str]) -> dict[str, str]:
    """Namespaces by the model name that is theirs alone, of NAME=NAMESPACE each. Raises ValueError."""
    found = dict[str, str]()
    for one in given:
        name, _, namespace = one.rpartition("=")
        if not name or not _NAMESPACE.fullmatch(namespace):
            raise ValueError(f"--reserve-model-name: {one!r} is not NAME=NAMESPACE")
        if found.setdefault(name, namespace) != namespace:
            raise ValueError(f"--reserve-model-name: {name} cannot be reserved for {found[name]} and {namespace}")
    return found


def conflict(mine: NameClaim, others: Iterable[NameClaim], *, reserved_for: str = "") -> NameConflict | None:
    """Why a service does not own a name that it claims; None where it does. others: claims of the same name.
    reserved_for: the namespace that alone may have it, also where another had it before; empty for none."""
    if reserved_for and mine.namespace != reserved_for:
        return NameConflict(served_name=mine.served_name, holder="", refused=True, reserved_for=reserved_for)
    reserved = {mine.served_name: reserved_for} if reserved_for else NONE_RESERVED
    owner = owners([mine, *others], reserved).get(mine.served_name)
    if owner is None:
        return NameConflict(served_name=mine.served_name, holder="", refused=True)
    if (owner.namespace, owner.name) == (mine.namespace, mine.name):
        return None
    refused = not reserved_for and (mine.refused or owner.namespace != mine.namespace)
    holder = qualified_name(owner.namespace, owner.name)
    return NameConflict(served_name=mine.served_name, holder=holder, refused=refused)
