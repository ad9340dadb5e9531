"""Who may serve a model name: the one rule that operator (condition NameConflict) and gateway (routing) both follow.

A name belongs to the oldest service that claims it, over all namespaces of a gateway; later claimants wait until it is
given up.
"""

from collections.abc import Iterable
from dataclasses import dataclass


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


def holders(claims: Iterable[Claim]) -> dict[str, Claim]:
    """The claim that holds each served name: the oldest; of the same second, the first by namespace and name."""
    held: dict[str, Claim] = {}
    for claim in sorted(claims, key=lambda c: (c.created, c.namespace, c.name)):
        held.setdefault(claim.served_name, claim)
    return held
