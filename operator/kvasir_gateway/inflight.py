"""Counts the requests that were forwarded and have not ended, exactly: Envoy gives each one an id before any filter.

The picker adds a request with its choice; Envoy's access log removes it, also when the client disconnected. The two
travel on different streams, so an end may arrive before its beginning: its id is kept for a while. Knows no clock.
"""

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field
from itertools import islice, takewhile

MAX_EARLY_ENDS = 4096
MOST_TIMES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class InflightRequest:
    """One forwarded request. added_s: on the caller's clock. uncached_tokens: that its pod computes, estimated. answer:
    id of the answer of another pod that goes on there, "" for none. num_sequences: that its pod generates."""

    id: str
    service: str
    address: str
    uncached_tokens: float
    added_s: float
    answer: str = ""
    num_sequences: int = 1


@dataclass(slots=True, kw_only=True)
class ServiceCounts:
    """Requests of one service since the process started. shed to held_retried: as of `state.ServiceDemand`."""

    inflight: int = 0
    requests: int = 0
    refused: int = 0
    shed: int = 0
    expired: int = 0
    abandoned: int = 0
    held_retried: int = 0
    last_request_s: float | None = None


@dataclass(slots=True)
class InflightRequests:
    """All requests in flight, by id, and by address in the order of arrival."""

    _by_id: dict[str, InflightRequest] = field(default_factory=dict)
    _by_address: dict[str, dict[str, InflightRequest]] = field(default_factory=dict)
    _went_on: dict[str, InflightRequest] = field(default_factory=dict)
    _early_ends: dict[str, None] = field(default_factory=dict)
    _service_counts: dict[str, ServiceCounts] = field(default_factory=dict)

    def add(self, request: InflightRequest) -> bool:
        """Count a forwarded request; False when it has ended already."""
        if request.id in self._early_ends:
            del self._early_ends[request.id]
            return False
        self._by_id[request.id] = request
        if request.answer:
            self._went_on[request.answer] = request
        self._by_address.setdefault(request.address, {})[request.id] = request
        self.counts(request.service).inflight += 1
        return True

    def has(self, inflight_id: str) -> bool:
        """Whether a request is in flight."""
        return inflight_id in self._by_id

    def remove(self, inflight_id: str) -> InflightRequest | None:
        """The request has ended, for any reason; None when no request in flight has this id."""
        request = self._by_id.pop(inflight_id, None)
        if request is None:
            self._early_ends[inflight_id] = None
            if len(self._early_ends) > MAX_EARLY_ENDS:
                del self._early_ends[next(iter(self._early_ends))]
            return None
        if self._went_on.get(request.answer) is request:
            del self._went_on[request.answer]
        there = self._by_address[request.address]
        del there[inflight_id]
        if not there:
            del self._by_address[request.address]
        self.counts(request.service).inflight -= 1
        return request

    def remove_before(self, moment_s: float, *, keep: Container[str] = ()) -> list[InflightRequest]:
        """Remove the requests that are older than a moment: the Envoy that forwarded them is gone and logs no end.
        keep: ids of those that it did not forward."""
        removed = [r for r in self._by_id.values() if r.added_s < moment_s and r.id not in keep]
        for request in removed:
            self.remove(request.id)
        return removed

    def settled(self, moment_s: float) -> dict[str, int]:
        """Requests that are older than a moment, by service."""
        return dict(Counter(request.service for request in self._by_id.values() if request.added_s < moment_s))

    def remove_oldest(self, service: str, count: int, *, keep: Container[str] = ()) -> list[InflightRequest]:
        """Remove so many requests of a service, whose ends were lost; which ones these were is not known. keep: ids of
        those whose ends are not."""
        of_service = (r for r in self._by_id.values() if r.service == service and r.id not in keep)
        removed = list(islice(of_service, count))
        for request in removed:
            self.remove(request.id)
        return removed

    def at(self, address: str) -> int:
        """Requests in flight at an address."""
        return len(self._by_address.get(address, ()))

    def sequences_at(self, address: str) -> int:
        """Sequences of the requests in flight at an address."""
        return sum(request.num_sequences for request in self._by_address.get(address, {}).values())

    def went_on_at(self, answer: str) -> str:
        """The address at which an answer of another pod goes on, "" for none."""
        request = self._went_on.get(answer)
        return request.address if request is not None else ""

    def total(self) -> int:
        """Requests in flight at all addresses."""
        return len(self._by_id)

    def since(self, address: str, moment_s: float) -> tuple[int, float]:
        """Sequences in flight at an address that are newer than a moment, and the sum of their uncached tokens."""
        sequences, tokens = 0, 0.0
        for request in reversed(self._by_address.get(address, {}).values()):
            if request.added_s <= moment_s:
                break
            sequences += request.num_sequences
            tokens += request.uncached_tokens
        return sequences, tokens

    def times(self, address: str, after_s: float, until_s: float) -> list[float]:
        """When sequences in flight at an address were added, of those that were within a time, the newest first, and
        MOST_TIMES at most: a request may name thousands."""
        newest = takewhile(lambda r: r.added_s > after_s, reversed(self._by_address.get(address, {}).values()))
        times = (r.added_s for r in newest if r.added_s <= until_s for _ in range(r.num_sequences))
        return list(islice(times, MOST_TIMES))

    def counts(self, service: str) -> ServiceCounts:
        """The counts of a service; they begin at zero."""
        return self._service_counts.setdefault(service, ServiceCounts())
