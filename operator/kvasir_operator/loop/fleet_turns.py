"""Turns of services in a change of the installation: remembered by key, decided by `rollout/turns.py`.

Nothing is stored: who is on the way is seen in the revisions of each service, so that a new operator looks at all of
them before it gives a turn.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from kvasir_api import names
from kvasir_kube.kinds import Key
from kvasir_operator.desired.fleet import is_taking
from kvasir_operator.loop.clock import Clock
from kvasir_operator.loop.workqueue import Workqueue
from kvasir_operator.rollout import turns
from kvasir_operator.stages import Resolved

LOOK_AGAIN_S: Final = 2.0
FIRST_LOOK_S: Final = 60.0
"""A service that could not be looked at for so long, as one whose pods do not answer, holds up no other one."""


class FleetTurns:
    """`settled` is called once per reconcile, between two awaits, so that no two services take one turn."""

    def __init__(
        self, services: Callable[[], AbstractSet[Key]], workqueue: Workqueue, *, most: int, clock: Clock
    ) -> None:
        """services: all that there are. most: services that may be on their way at once."""
        self._services, self._workqueue, self._most, self._clock = services, workqueue, most, clock
        self._taking: dict[Key, bool] = {}
        self._waiting: set[Key] = set()
        self._granted: set[Key] = set()
        self._seen: set[Key] = set()
        self._unseen: set[Key] = set()
        self._began: float | None = None
        self._looked = False

    def settled(self, resolved: Resolved) -> Resolved:
        """With the revision that the service is to have now: the one that it takes, or the one that it keeps."""
        seen = resolved.observed
        name, held = (seen.namespace, seen.name), resolved.held
        stalled = any(c.type == names.CONDITION_STALLED for c in seen.status.conditions)
        blocked = self._blocked()
        self._seen.add(name)
        self._unseen.discard(name)
        if held is None:
            self._granted.discard(name)
            self._waiting.discard(name)
        else:
            self._waiting.add(name)
        self._taking.pop(name, None)
        if is_taking(seen) or name in self._granted:
            self._taking[name] = stalled
        elif name in self._next():
            self._granted.add(name)
            self._taking[name] = False
        if name in self._taking:
            self._waiting.discard(name)
        self._call(self._waiting if self._blocked() != blocked else self._next())
        if held is None or name in self._taking:
            return resolved
        if not self._has_looked():
            self._workqueue.mark(name, LOOK_AGAIN_S)
        return replace(resolved, revision=held, waits=turns.reason(seen.namespace, self._blocked(), most=self._most))

    def forget(self, name: Key) -> None:
        """The service is gone."""
        self._taking.pop(name, None)
        for known in (self._waiting, self._granted, self._seen, self._unseen):
            known.discard(name)
        self._call(self._next())

    def _next(self) -> tuple[Key, ...]:
        return turns.may_take(self._taking, self._waiting, most=self._most) if self._has_looked() else ()

    def _blocked(self) -> frozenset[Key]:
        return frozenset(name for name, stalled in self._taking.items() if stalled)

    def _call(self, services: set[Key] | tuple[Key, ...]) -> None:
        for name in services:
            self._workqueue.mark(name)

    def _has_looked(self) -> bool:
        """Whether every service was looked at since this operator leads. All are listed only where those of the list
        before were looked at, so that the first look at thousands costs each of them little."""
        now = self._clock.steady()
        self._began = now if self._began is None else self._began
        if not self._looked and not self._unseen:
            self._unseen.update(self._services() - self._seen)
            self._looked = not self._unseen
        self._looked = self._looked or now - self._began >= FIRST_LOOK_S
        return self._looked
