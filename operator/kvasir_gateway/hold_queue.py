"""The queue of requests that no replica can take yet: its bounds, whose turn it is, and each one's place.

Pure: the picker adds a request for which no endpoint may be chosen, and takes the next ones when that changes.
Each service has a queue of its own. Within it tenants take turns, and each tenant's requests go in order of arrival.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

MAX_HOLD_S: Final = 3600
"""Longest time for which a request may be held."""
MAX_ANSWER_S: Final = 86_400
"""Longest time that an answer may be given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldLimits:
    """Bounds of what one gateway holds. max_wait_s: for each request; 0 holds none."""

    max_requests: int = 1024
    max_bytes: int = 64 << 20
    max_wait_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRequest:
    """One request that waits. num_bytes: of its body. since_s: on the caller's clock; until_s: at most, too, and due_s:
    while all replicas are busy, when its first token has to come. weight: requests of its tenant that go in one turn.
    """

    id: str
    service: str
    tenant: bytes = b""
    num_bytes: int = 0
    since_s: float = 0.0
    weight: int = 1
    until_s: float = float("inf")
    due_s: float = float("inf")


@dataclass(slots=True)
class _TenantQueue:
    """One tenant's requests for one service, in order of arrival. taken: that went in its turn, of weight."""

    requests: dict[str, HeldRequest] = field(default_factory=dict)
    num_bytes: int = 0
    weight: int = 1
    taken: int = 0


@dataclass(slots=True)
class _Tally:
    """What would be left of a tenant's queue. newest: its requests, the last one first."""

    count: int
    num_bytes: int
    newest: Iterator[HeldRequest]
    joins: bool = False

    def share(self, limits: HoldLimits) -> tuple[float, bool]:
        """Of the bound that it takes most of (dominant share, Ghodsi et al. 2011); of equals that of the newcomer."""
        return max(self.count / limits.max_requests, self.num_bytes / limits.max_bytes), self.joins


class HoldQueue:
    """All held requests of one gateway."""

    def __init__(self, limits: HoldLimits) -> None:
        self.limits = limits
        self._by_id: dict[str, HeldRequest] = {}
        self._queues: dict[str, dict[bytes, _TenantQueue]] = {}
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, request: HeldRequest) -> list[HeldRequest] | None:
        """Hold a request behind those of its tenant. Returns the requests that give way to it, which are removed; None
        where it is not held, since its own tenant would have the most of a full queue.

        The newest requests of the tenant with the most give way, so that one tenant, or one service that does not
        start, keeps no other out.
        """
        dropped = self._giving_way(request)
        for other in dropped or ():
            self.remove(other.id)
        if dropped is not None:
            queue = self._queues.setdefault(request.service, {}).setdefault(request.tenant, _TenantQueue())
            queue.requests[request.id] = self._by_id[request.id] = request
            queue.num_bytes += request.num_bytes
            queue.weight = request.weight
            self._num_bytes += request.num_bytes
        return dropped

    def remove(self, request_id: str) -> HeldRequest | None:
        """The request waits no more, for any reason; None when none with this id does."""
        request = self._by_id.pop(request_id, None)
        if request is None:
            return None
        tenants = self._queues[request.service]
        queue = tenants[request.tenant]
        del queue.requests[request_id]
        queue.num_bytes -= request.num_bytes
        self._num_bytes -= request.num_bytes
        if not queue.requests:
            del tenants[request.tenant]
        if not tenants:
            del self._queues[request.service]
        return request

    def services(self) -> tuple[str, ...]:
        """Services for which requests wait."""
        return tuple(self._queues)

    def first(self, service: str) -> HeldRequest | None:
        """The next request of a service, None without any. `release` takes it."""
        for queue in self._queues.get(service, {}).values():
            return next(iter(queue.requests.values()))
        return None

    def release(self, request: HeldRequest) -> None:
        """The request goes to a replica: it waits no more. When as many of its tenant went as its weight says, the next
        turn is another tenant's."""
        self.remove(request.id)
        tenants = self._queues.get(request.service, {})
        queue = tenants.get(request.tenant)
        if queue is not None:
            queue.taken += 1
            if queue.taken >= queue.weight:
                queue.taken = 0
                tenants[request.tenant] = tenants.pop(request.tenant)

    def in_order(self, service: str) -> Iterator[HeldRequest]:
        """The requests of a service in the order in which they would go now."""
        turns = [
            (iter(queue.requests.values()), queue.weight, queue.weight - queue.taken)
            for queue in self._queues.get(service, {}).values()
        ]
        while turns:
            left = []
            for requests, weight, count in turns:
                found = list(islice(requests, max(1, count)))
                yield from found
                if found:
                    left.append((requests, weight, weight))
            turns = left

    def num_requests(self, service: str) -> int:
        """Requests of a service that wait."""
        return sum(len(queue.requests) for queue in self._queues.get(service, {}).values())

    def num_bytes(self, service: str) -> int:
        """Bytes of the bodies of a service's requests that wait."""
        return sum(queue.num_bytes for queue in self._queues.get(service, {}).values())

    def expired(self, now_s: float) -> list[HeldRequest]:
        """Requests that have waited for max_wait_s, or for as long as they may, oldest first. They stay until they are
        removed."""
        last_s = now_s - self.limits.max_wait_s
        return [request for request in self._by_id.values() if request.since_s <= last_s or request.until_s <= now_s]

    def overdue(self, service: str, now_s: float) -> list[HeldRequest]:
        """Requests of a service whose first token should be there. They stay until they are removed."""
        queues = self._queues.get(service, {}).values()
        return [request for queue in queues for request in queue.requests.values() if request.due_s <= now_s]

    def _giving_way(self, request: HeldRequest) -> list[HeldRequest] | None:
        count, num_bytes = len(self._by_id) + 1, self._num_bytes + request.num_bytes
        dropped: list[HeldRequest] = []
        if count <= self.limits.max_requests and num_bytes <= self.limits.max_bytes:
            return dropped
        tallies = {
            (service, tenant): _Tally(len(queue.requests), queue.num_bytes, reversed(queue.requests.values()))
            for service, tenants in self._queues.items()
            for tenant, queue in tenants.items()
        }
        own = tallies.setdefault((request.service, request.tenant), _Tally(0, 0, iter(())))
        own.count, own.num_bytes, own.joins = own.count + 1, own.num_bytes + request.num_bytes, True
        while count > self.limits.max_requests or num_bytes > self.limits.max_bytes:
            largest = max(tallies.values(), key=lambda tally: tally.share(self.limits))
            if largest.joins:
                return None
            other = next(largest.newest)
            largest.count, largest.num_bytes = largest.count - 1, largest.num_bytes - other.num_bytes
            count, num_bytes = count - 1, num_bytes - other.num_bytes
            dropped.append(other)
        return dropped
