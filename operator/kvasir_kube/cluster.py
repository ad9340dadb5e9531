"""The shell's view of the API server: the few verbs that Kvasir uses, as a protocol that fakes implement in tests."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from kvasir_kube.kinds import Json, Key, Kind

WatchVerb = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Objects of a list and the resourceVersion from which a watch goes on."""

    items: tuple[Json, ...]
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    """One line of a watch. A bookmark carries nothing but its resourceVersion."""

    verb: WatchVerb
    obj: Json


Known = Callable[[Key, str], Json | None]
"""The object of a name and a resourceVersion, where the caller of `Cluster.list` has it already."""


def as_it_is(obj: Json) -> Json:
    """The default of `Cluster.list`'s transform."""
    return obj


def none_known(_name: Key, _version: str) -> None:
    """The default of `Cluster.list`'s known."""


class Cluster(Protocol):
    """Verbs on objects as plain JSON. All raise KubeError and its kinds."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Json:
        """One object. NotFoundError when there is none."""
        ...

    async def list(
        self,
        kind: Kind,
        namespace: str = "",
        selector: str = "",
        *,
        known: Known = none_known,
        transform: Callable[[Json], Json] = as_it_is,
    ) -> Listing:
        """All objects of a kind, in one namespace or in all, that match a label selector.

        known: what is taken in place of an object, which is not decoded then. transform: what is kept of each of the
        others, before the next one is decoded.
        """
        ...

    def watch(
        self, kind: Kind, namespace: str = "", selector: str = "", *, resource_version: str
    ) -> AsyncGenerator[WatchEvent, None]:
        """Changes since resource_version until the server ends the stream. ExpiredError when it is too old."""
        ...

    async def create(self, kind: Kind, obj: Json, *, manager: str = "") -> Json:
        """Create an object. ConflictError when it exists."""
        ...

    async def apply(self, kind: Kind, obj: Json, *, manager: str, subresource: str = "") -> Json:
        """Server-side apply of our whole intent, taking over fields that others own."""
        ...

    async def merge(
        self, kind: Kind, namespace: str, name: str, patch: Json, *, manager: str, subresource: str = ""
    ) -> Json:
        """JSON merge patch; None removes a field, whichever manager owns it."""
        ...

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str = "", grace_s: int | None = None) -> None:
        """Delete an object, only if its uid is still this one. An absent object is fine."""
        ...
