"""Counts requests that were forwarded and have not ended, exactly: one ticket each, named by Envoy before any filter.

The picker opens a ticket with its choice; Envoy's access log closes it, also when the client left. The two travel on
different streams, so an end may arrive before its beginning: it is remembered for a while. Knows no clock.
"""

from dataclasses import dataclass, field

MAX_EARLY_ENDS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """One forwarded request. opened_s: on the caller's clock. prompt_tokens: an estimate."""

    id: str
    service: str
    address: str
    prompt_tokens: int
    opened_s: float


@dataclass(slots=True, kw_only=True)
class Count:
    """What happened to the requests of one service since the process started."""

    inflight: int = 0
    requests: int = 0
    refused: int = 0
    last_request_s: float | None = None


@dataclass(slots=True)
class Tickets:
    """All open tickets, by id and by address in order of opening."""

    _open: dict[str, Ticket] = field(default_factory=dict)
    _at: dict[str, dict[str, Ticket]] = field(default_factory=dict)
    _early_ends: dict[str, None] = field(default_factory=dict)
    _counts: dict[str, Count] = field(default_factory=dict)

    def open(self, ticket: Ticket) -> bool:
        """Count a forwarded request; False when it has ended already."""
        if ticket.id in self._early_ends:
            del self._early_ends[ticket.id]
            return False
        self._open[ticket.id] = ticket
        self._at.setdefault(ticket.address, {})[ticket.id] = ticket
        self.count(ticket.service).inflight += 1
        return True

    def close(self, ticket_id: str) -> Ticket | None:
        """The request ended, for whatever reason; None when no ticket of that name is open."""
        ticket = self._open.pop(ticket_id, None)
        if ticket is None:
            self._early_ends[ticket_id] = None
            if len(self._early_ends) > MAX_EARLY_ENDS:
                del self._early_ends[next(iter(self._early_ends))]
            return None
        there = self._at[ticket.address]
        del there[ticket_id]
        if not there:
            del self._at[ticket.address]
        self.count(ticket.service).inflight -= 1
        return ticket

    def close_before(self, moment_s: float) -> list[Ticket]:
        """Close what was opened before a moment: whoever forwarded it then is gone, and nobody will tell of its end."""
        closed = [ticket for ticket in self._open.values() if ticket.opened_s < moment_s]
        for ticket in closed:
            self.close(ticket.id)
        return closed

    def inflight(self, address: str) -> int:
        """Open requests at an address."""
        return len(self._at.get(address, ()))

    def total(self) -> int:
        """Open requests everywhere."""
        return len(self._open)

    def since(self, address: str, moment_s: float) -> tuple[int, int]:
        """Open requests at an address that were opened after a moment, and the sum of their prompt tokens."""
        requests = tokens = 0
        for ticket in reversed(self._at.get(address, {}).values()):
            if ticket.opened_s <= moment_s:
                break
            requests += 1
            tokens += ticket.prompt_tokens
        return requests, tokens

    def count(self, service: str) -> Count:
        """The counts of a service, beginning at zero."""
        return self._counts.setdefault(service, Count())
