"""Holds the Lease by which one of several operators acts, and fences the writes of one that has lost it.

The process that loses the Lease ends: what it has half decided must not go on beside its successor. Reads and watches
of a candidate that waits go on, so that it acts at once when its turn comes.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import ConflictError, KubeError, NotFoundError
from kvasir_kube.interceptor import ClusterInterceptor, T
from kvasir_kube.kinds import LEASE, Json
from kvasir_operator.election.decide import LEASE_S, RENEW_DEADLINE_S, RETRY_S, LeaseRecord, decide, valid_s
from kvasir_operator.loop.clock import Clock, rfc3339_micro

LOG: Final = logging.getLogger(__name__)
MANAGER: Final = "kvasir-operator-lease"
RELEASE_S: Final = 3.0


class LeaseLostError(KubeError):
    """This process may not write: another one may lead by now."""


class Leader:
    """One candidate for one Lease. me: a name that no other process ever has."""

    def __init__(self, cluster: Cluster, *, namespace: str, name: str, me: str, clock: Clock) -> None:
        self._cluster, self._namespace, self._name, self._me = cluster, namespace, name, me
        self._clock = clock
        self._renewed: float | None = None
        self._version, self._seen_at = "", clock.steady()

    @property
    def held(self) -> bool:
        """Whether we may write now."""
        return self.held_for_s > 0

    @property
    def held_for_s(self) -> float:
        """For how many seconds we may write unless the Lease is renewed; 0 when we may not."""
        return valid_s(self._clock.steady(), self._renewed)

    async def acquire(self) -> None:
        """Wait until the Lease is ours. An API server that does not answer is tried again."""
        logged = ""
        while True:
            why = await self.attempt()
            if self.held:
                LOG.info("leading as %s: %s", self._me, why)
                return
            if why != logged:
                LOG.info("standing by as %s: %s", self._me, why)
                logged = why
            await self._pause()

    async def keep(self) -> None:
        """Renew until the Lease is lost, which is the only way to return."""
        why = ""
        while self.held:
            await self._pause()
            if self.held:
                why = await self.attempt()
        LOG.error("not leading any more: %s", why or "this process stood still for too long")

    async def release(self) -> None:
        """Give it back, so that the next one need not wait. Best effort."""
        if not self.held:
            return
        self._renewed = None
        spec: Json = {"holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            async with asyncio.timeout(RELEASE_S):
                await self._write({"metadata": {"resourceVersion": self._version}, "spec": spec})
        except (KubeError, TimeoutError) as error:
            LOG.warning("the Lease could not be given back: %s", error)

    async def attempt(self) -> str:
        """One round: read, decide, write; why it went as it did. What fails costs nothing but time."""
        begun = self._clock.steady()
        try:
            async with asyncio.timeout(RENEW_DEADLINE_S / 2):
                record = await self._read()
                found = decide(record, me=self._me, unchanged_s=self._clock.steady() - self._seen_at)
                if found.verb == "create":
                    await self._create()
                elif found.verb != "wait":
                    await self._write(self._patch(record, taking=found.verb == "take"))
        except ConflictError:
            return "another candidate wrote the Lease first"
        except (KubeError, TimeoutError) as error:
            return f"the API server does not answer: {str(error) or type(error).__name__}"
        self._renewed = None if found.verb == "wait" else begun
        return found.why

    async def _read(self) -> LeaseRecord | None:
        try:
            obj = await self._cluster.get(LEASE, self._namespace, self._name)
        except NotFoundError:
            return None
        self._see(obj)
        spec = obj.get("spec") or {}
        return LeaseRecord(
            holder=str(spec.get("holderIdentity") or ""),
            duration_s=float(spec.get("leaseDurationSeconds") or LEASE_S),
            transitions=int(spec.get("leaseTransitions") or 0),
            version=self._version,
        )

    def _see(self, obj: Json) -> None:
        version = str(obj["metadata"]["resourceVersion"])
        if version != self._version:
            self._version, self._seen_at = version, self._clock.steady()

    def _patch(self, record: LeaseRecord | None, *, taking: bool) -> Json:
        now = rfc3339_micro(self._clock.wall())
        spec: Json = {"renewTime": now}
        if taking:
            transitions = (record.transitions if record else 0) + 1
            spec |= self._holding(now) | {"leaseTransitions": transitions}
        # The version makes the write fail when another candidate was quicker.
        return {"metadata": {"resourceVersion": self._version}, "spec": spec}

    def _holding(self, now: str) -> Json:
        return {
            "holderIdentity": self._me,
            "leaseDurationSeconds": int(LEASE_S),
            "acquireTime": now,
            "renewTime": now,
        }

    async def _create(self) -> None:
        now = rfc3339_micro(self._clock.wall())
        spec = self._holding(now) | {"leaseTransitions": 0}
        metadata = {"namespace": self._namespace, "name": self._name}
        body: Json = {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}
        self._see(await self._cluster.create(LEASE, body))

    async def _write(self, patch: Json) -> None:
        self._see(await self._cluster.merge(LEASE, self._namespace, self._name, patch, manager=MANAGER))

    async def _pause(self) -> None:
        await asyncio.sleep(RETRY_S * random.uniform(0.8, 1.1))


class FencedCluster(ClusterInterceptor):
    """A cluster that refuses to be written to by a process that does not lead, with LeaseLostError. Reads pass.

    A write that is on its way when the Lease is lost is given up at that moment, which ends its connection: the next
    leader may write LEASE_S after the last renewal, and an API server that is slow could carry it out later.
    """

    def __init__(self, cluster: Cluster, leader: Leader) -> None:
        super().__init__(cluster)
        self._leader = leader

    async def _send(self, request: Callable[[], Awaitable[T]], *, writes: bool) -> T:
        if not writes:
            return await request()
        if not self._leader.held:
            raise LeaseLostError("this operator does not lead")
        sent = asyncio.ensure_future(request())
        try:
            while (left_s := self._leader.held_for_s) > 0:  # longer than it was, where the Lease was renewed meanwhile
                if (await asyncio.wait({sent}, timeout=left_s))[0]:
                    return sent.result()
        finally:
            sent.cancel()
        raise LeaseLostError("this operator lost its Lease while it wrote")
