"""Sequences that were sent to the engine and have not ended: where their outputs go, and how many each tenant has.

Owned by the engine client; the server counts requests by tenant in the same way.
"""

from collections.abc import Mapping
from typing import NamedTuple

from kvasir_runtime.client.event_queue import EventQueue
from kvasir_runtime.wire import EngineRequest


class OpenSequence(NamedTuple):
    """queue, place: where its outputs go."""

    queue: EventQueue
    place: int
    tenant: str


class TenantLoad(NamedTuple):
    """Of a tenant that has open sequences: their number, and its weight among tenants."""

    num_open: int
    weight: float


class TenantLoads(dict[str, TenantLoad]):
    """By tenant. Change it by these methods alone."""

    def add(self, tenant: str, weight: float) -> None:
        """One more."""
        before = self.get(tenant)
        self[tenant] = TenantLoad(before.num_open + 1 if before else 1, weight)

    def end(self, tenant: str) -> None:
        """One less of a tenant that has some."""
        load = self[tenant]
        if load.num_open > 1:
            self[tenant] = load._replace(num_open=load.num_open - 1)
        else:
            del self[tenant]

    @property
    def num_open(self) -> int:
        """Of all tenants."""
        return sum(load.num_open for load in self.values())

    def beside(self, others: Mapping[str, TenantLoad]) -> dict[str, TenantLoad]:
        """With others of the same tenants, or of further ones."""
        both = dict(others)
        for tenant, load in self.items():
            num_others = both[tenant].num_open if tenant in both else 0
            both[tenant] = load._replace(num_open=load.num_open + num_others)
        return both


class OpenSequences(dict[str, OpenSequence]):
    """By id. Change it by these methods alone."""

    def __init__(self) -> None:
        super().__init__()
        self._tenants = TenantLoads()

    @property
    def tenants(self) -> Mapping[str, TenantLoad]:
        """Those that have open sequences."""
        return self._tenants

    def add(self, request: EngineRequest, queue: EventQueue, place: int) -> None:
        """One more. One of the same id is replaced."""
        self.end(request.request_id)
        self[request.request_id] = OpenSequence(queue, place, request.tenant)
        self._tenants.add(request.tenant, request.weight)

    def end(self, request_id: str) -> OpenSequence | None:
        """It ended; None where it is not open."""
        sequence = self.pop(request_id, None)
        if sequence is not None:
            self._tenants.end(sequence.tenant)
        return sequence

    def end_all(self) -> dict[str, OpenSequence]:
        """All ended."""
        ended = dict(self)
        self.clear()
        self._tenants.clear()
        return ended
