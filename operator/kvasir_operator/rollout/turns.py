"""Which services may take a change of the installation now, of all that it concerns. Called by the loop."""

from collections.abc import Collection, Iterable
from typing import Final

from kvasir_kube.kinds import Key

NAMED: Final = 3
"""Stalled services that a message names."""


def may_take(taking: Collection[Key], waiting: Iterable[Key], *, most: int) -> tuple[Key, ...]:
    """Those of the waiting ones whose turn it is, by namespace and name. most: services that may be on their way."""
    free = most - len(taking)
    return tuple(sorted(set(waiting) - set(taking))[:free]) if free > 0 else ()


def reason(namespace: str, stalled: Iterable[Key], *, most: int) -> str:
    """Why a service of this namespace waits. stalled: those on their way that need help.

    Services on their way are not named, or each turn would change the status of all that wait; nor are those of other
    namespaces, which other tenants may not see.
    """
    turns = "1 service takes it" if most == 1 else f"{most} services take it"
    words = (
        "a change of its AcceleratorClass, of the runtime's image or of TLS waits for its turn: "
        f"at most {turns} at a time (--fleet-max-unavailable of the operator)"
    )
    blocked = sorted(stalled)
    if not blocked:
        return words
    shown = [name for where, name in blocked if where == namespace][:NAMED]
    if others := len(blocked) - len(shown):
        shown.append(f"{others} more" if shown else "one of another namespace" if others == 1 else f"{others} others")
    return f"{words}; {' and '.join(shown)} took it and cannot go on"
