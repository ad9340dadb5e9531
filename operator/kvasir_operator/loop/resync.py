"""Lists everything periodically: finds what the watches missed, repairs the store, and detects stale watches.

A list that knows a version that no watch has delivered a minute later means that a watch is stale; liveness fails then.
"""

import asyncio
import contextlib
import logging
import math
import random
from dataclasses import dataclass
from functools import partial
from typing import Final

from kvasir_api import names
from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import (
    ACCELERATOR_CLASS,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    INFERENCE_SERVICE,
    NETWORK_POLICY,
    POD,
    SERVICE,
    STATEFUL_SET,
    Json,
    Key,
    Kind,
    key,
    resource_version,
)
from kvasir_operator.loop.clock import Clock
from kvasir_operator.loop.store import Store
from kvasir_operator.loop.workqueue import Workqueue
from kvasir_operator.observed.settings import RESYNC_S

LOG: Final = logging.getLogger(__name__)
SELECTOR: Final = f"{names.LABEL_PART_OF}={names.PART_OF}"
WATCHED: Final[tuple[tuple[Kind, str], ...]] = (
    (INFERENCE_SERVICE, ""),
    (DEPLOYMENT, SELECTOR),
    (STATEFUL_SET, SELECTOR),
    (CONTROLLER_REVISION, SELECTOR),
    (SERVICE, SELECTOR),
    (DISRUPTION_BUDGET, SELECTOR),
    (NETWORK_POLICY, SELECTOR),
    (ACCELERATOR_CLASS, ""),
    (POD, SELECTOR),
)
"""What the operator watches, and the label selector of each."""
STALE_WATCH_S: Final = 60.0
AFTER_S: Final = 3.0
"""So long after the watches have listed everything again it is listed here too: a watch does not deliver what was
deleted while there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedEvent:
    """What a list has shown and a watch has not delivered yet: a version, or that the object is gone."""

    version: int
    since: float
    gone: bool = False


class Resync:
    """Fills the store at the start and repairs it from then on. namespace: empty for all. interval_s: mean time between
    two lists of everything. after_s: from a new start of the watches to the list that follows it."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        workqueue: Workqueue,
        *,
        namespace: str = "",
        clock: Clock,
        interval_s: float = RESYNC_S,
        after_s: float = AFTER_S,
    ) -> None:
        self.synced = False
        self._cluster, self._store, self._workqueue = cluster, store, workqueue
        self._namespace, self._clock, self._interval_s = namespace, clock, interval_s
        self._overdue: dict[tuple[str, Key], MissedEvent] = {}
        self._restarted, self._after_s = asyncio.Event(), after_s
        self.listed_at = clock.steady()

    async def run(self) -> None:
        """Every interval, with jitter, and soon after the watches started again, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s * random.uniform(0.8, 1.2)):
                    await self._restarted.wait()
                    await asyncio.sleep(self._after_s)
            try:
                await self.once()
            except KubeError as error:
                LOG.warning("the periodic list failed: %s", error)

    async def once(self) -> None:
        """List all kinds; what differs is stored and its service reconciled.

        Raises KubeError, the first of them: a kind that cannot be listed does not keep the others from it.
        """
        refused: KubeError | None = None
        restarted = self._restarted.is_set()
        self._restarted.clear()
        self._store.age()
        for kind, selector in WATCHED:
            try:
                await self._compare(kind, selector, restarted=restarted)
            except KubeError as error:
                refused = refused or KubeError(
                    f"{kind.plural}: {error}",
                    status=error.status,
                    reason=error.reason,
                    retry_after_s=error.retry_after_s,
                )
        if refused is not None:
            raise refused
        self.synced, self.listed_at = True, self._clock.steady()

    def age_s(self) -> float:
        """Seconds since everything was listed."""
        return self._clock.steady() - self.listed_at

    def _mark(self, kind: Kind, obj: Json) -> None:
        for service in self._store.touched(kind, obj):
            self._workqueue.mark(service)

    def delivered(self, kind: Kind, obj: Json) -> None:
        """A watch delivered this object."""
        waiting = self._overdue.get((kind.plural, key(obj)))
        if waiting and resource_version(obj) >= waiting.version:
            del self._overdue[kind.plural, key(obj)]

    def relisted(self) -> None:
        """A watch lists its kind, as at its start or when it has expired."""
        self._restarted.set()

    def began(self) -> None:
        """The watches started again and list everything, so what was missing from the last list is never delivered."""
        self.relisted()
        self._overdue = {name: waiting for name, waiting in self._overdue.items() if not waiting.gone}

    def stale_watches(self, *, began: float = -math.inf, after_s: float = STALE_WATCH_S) -> str:
        """What the watches have not delivered for longer than after_s; empty when all is well.

        began: since when the watches run, in steady seconds.
        """
        now = self._clock.steady()
        late = [name for name, waiting in self._overdue.items() if now - max(waiting.since, began) > after_s]
        return ", ".join(f"{plural} {name[0]}/{name[1]}" for plural, name in late[:3])

    async def _compare(self, kind: Kind, selector: str, *, restarted: bool) -> None:
        """restarted: watches have started since the list before, and deliver no deletion from before that."""
        before = self._store.versions(kind)
        listing = await self._cluster.list(
            kind,
            self._namespace,
            selector,
            known=partial(self._store.known, kind),
            transform=partial(self._store.kept, kind),
        )
        now = self._clock.steady()
        new = [obj for obj in listing.items if self._store.get(kind, key(obj)) is not obj]
        if rewound := [key(obj) for obj in new if resource_version(obj) < before.get(key(obj), 0)]:
            # A list is never older than what was known before it was requested.
            LOG.warning("%s: %d objects are older than they were: etcd was restored", kind.plural, len(rewound))
            for name in rewound:
                self._store.rewind(kind, name)
        for obj in new:
            # What we wrote ourselves is in the store before the watch brings it, so it is never newer here.
            if self._store.put(kind, obj, shared=True):
                self._mark(kind, obj)
                if self.synced:
                    waiting = MissedEvent(version=resource_version(obj), since=now)
                    self._overdue.setdefault((kind.plural, key(obj)), waiting)
        listed = {key(obj) for obj in listing.items}
        for name, version in before.items():
            known = self._store.get(kind, name)
            # Only what was known before the list and has not changed since can be missing from it.
            if name not in listed and known is not None and resource_version(known) == version:
                self._mark(kind, known)
                self._store.drop(kind, name)
                if self.synced and not restarted:
                    self._overdue[kind.plural, name] = MissedEvent(version=version, since=now, gone=True)
        self._overdue = {k: v for k, v in self._overdue.items() if v.gone or k[0] != kind.plural or k[1] in listed}
