"""Detects that another manager keeps changing an object of ours, so that the two do not write without end.

Called by the writer alone, with what it restores: an object that it had applied already, and that is different now.
"""

from collections.abc import Iterable
from typing import Final

from kvasir_api import names
from kvasir_kube.kinds import Json, Key
from kvasir_operator.loop.clock import Clock

Where = tuple[str, Key]
"""Plural of the kind, and the object."""

WINDOW_S: Final = 600.0
MOST_AT_ONCE: Final = 5
"""So often within the window it is restored at once; then once in PAUSE_S."""
PAUSE_S: Final = 60.0


class WriteConflicts:
    """When each object was restored, within the last window."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._restored: dict[Where, tuple[float, ...]] = {}

    def wait_s(self, where: Where) -> float:
        """Seconds until the object may be restored again; 0 for now."""
        times = self._recent(where)
        return max(0.0, times[-1] + PAUSE_S - self._clock.steady()) if len(times) >= MOST_AT_ONCE else 0.0

    def restored(self, where: Where) -> bool:
        """Note that it was. True when that reached the limit, which is worth an event."""
        self._restored[where] = (*self._recent(where), self._clock.steady())
        return len(self._restored[where]) == MOST_AT_ONCE

    def forget(self, where: Where) -> None:
        """The object is gone with its service."""
        self._restored.pop(where, None)

    def _recent(self, where: Where) -> tuple[float, ...]:
        now = self._clock.steady()
        times = tuple(at for at in self._restored.get(where, ()) if now - at < WINDOW_S)
        if not times:
            self._restored.pop(where, None)
        return times


def other_managers(obj: Json) -> str:
    """The other managers that wrote an object, the last first; empty when none is known."""
    entries: Iterable[Json] = (obj.get("metadata") or {}).get("managedFields") or ()
    foreign = [e for e in entries if e.get("manager") != names.MANAGER and not e.get("subresource")]
    ordered = sorted(foreign, key=lambda e: str(e.get("time") or ""), reverse=True)
    return ", ".join(dict.fromkeys(str(e.get("manager") or "an unnamed manager") for e in ordered))
