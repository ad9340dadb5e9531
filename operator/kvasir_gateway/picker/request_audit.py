"""Follows each request from its arrival to what it took, for limits of tokens and for the audit log.

The picker knows how a request begins and where it goes, the log of Envoy how it ends, and the replica what it took
(`ended_requests`), half a second later. A request has an id, and one more for each time that the relay sends it.
Pure but for `write` and `settle`, which it calls; times are on the caller's clocks.
"""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import msgspec

from kvasir_api.ended_requests import EndedRequest
from kvasir_api.tenant_keys import TenantGrant

UNSETTLED_S: Final = 5.0
"""A replica that has not reported by then what a request took will not."""
MOST_FOLLOWED: Final = 65_536
MOST_EARLY_ENDS: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOrigin:
    """What is known of a request when it comes. model: as its client names it. tokens: estimated, of its prompt. at:
    seconds since the epoch; at_s: on the caller's clock."""

    request_id: str
    path: str
    service: str
    model: str
    grant: TenantGrant | None
    tokens: float
    at: float
    at_s: float


@dataclass(slots=True, kw_only=True)
class _Followed:
    origin: RequestOrigin
    counted: float
    ids: list[str] = field(default_factory=list)
    address: str = ""
    forwarded_s: float = -1.0
    ended_s: float = -1.0
    status: int = 0
    outcome: str = ""
    used: EndedRequest | None = None


class AuditLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the audit log. Names and numbers: never a key, a prompt or an answer.

    wait_s: until it was sent to a replica, -1 where it never was; first_token_s: from its arrival there. Tokens are -1
    where no replica reported them.
    """

    audit: str = "request"
    time: str
    request_id: str
    namespace: str
    service: str
    tenant: str
    model: str
    path: str
    endpoint: str
    status: int
    outcome: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    wait_s: float
    first_token_s: float
    duration_s: float


class RequestAudit:
    """settle: takes what a tenant's request took beyond what was counted.

    write: takes the lines; None writes none, and follows only requests of tenants with a limit of tokens.
    """

    def __init__(self, *, clock: Callable[[], float], settle: Callable[[TenantGrant, float], None]) -> None:
        self.write: Callable[[bytes], None] | None = None
        self._clock, self._settle = clock, settle
        self._followed: dict[str, _Followed] = {}
        self._first_id: dict[str, str] = {}
        self._unsettled: dict[str, _Followed] = {}
        self._early_ends: dict[str, tuple[int, str]] = {}

    def began(self, inflight_id: str, origin: RequestOrigin) -> None:
        """A request came that was not at the relay yet. Its end may have come before, where its client left."""
        early = self._early_ends.pop(inflight_id, None)
        if self.write is None and not (origin.grant and origin.grant.tokens_per_minute):
            return
        self._followed[inflight_id] = _Followed(origin=origin, counted=origin.tokens)
        if len(self._followed) > MOST_FOLLOWED:  # ends of so many were lost
            self._forget(next(iter(self._followed)))
        if early is not None:
            self.ended(inflight_id, status=early[0], outcome=early[1])

    def not_counted(self, inflight_id: str) -> None:
        """A limit refuses a request: its prompt's tokens were not taken."""
        if followed := self._followed.get(inflight_id):
            followed.counted = 0.0

    def forwarded(self, inflight_id: str, address: str, *, relayed: str = "") -> None:
        """It goes to a replica. relayed: the id with which it came first, where this one is the relay's."""
        followed = self._followed.get(relayed or inflight_id)
        if followed is None:
            return
        followed.address = address
        if inflight_id not in followed.ids:  # else a replica has sent it back
            followed.ids.append(inflight_id)
        self._first_id[inflight_id] = relayed or inflight_id
        if followed.forwarded_s < 0:
            followed.forwarded_s = self._clock()

    def ended(self, inflight_id: str, *, status: int, outcome: str, address: str = "") -> None:
        """Envoy has logged an end. address: of the replica that answered, which a retry may have changed."""
        first = self._first_id.get(inflight_id, inflight_id)
        followed = self._followed.get(first)
        if followed is None:
            self._early_ends[inflight_id] = status, outcome
            if len(self._early_ends) > MOST_EARLY_ENDS:
                del self._early_ends[next(iter(self._early_ends))]
            return
        if address and inflight_id in followed.ids:
            followed.address = address
        if inflight_id != first:
            return
        followed.ended_s, followed.status = self._clock(), status
        followed.outcome = outcome if followed.ids else _unforwarded(outcome, status)
        if not followed.ids and followed.origin.grant is not None and followed.counted:
            self._settle(followed.origin.grant, -followed.counted)
        if not followed.ids or (followed.used is not None and followed.used.id == followed.ids[-1]):
            self._close(first)
        else:
            self._unsettled[first] = followed

    def awaited(self) -> frozenset[str]:
        """Addresses of replicas that have not reported yet what a request took."""
        return frozenset(followed.address for followed in self._unsettled.values())

    def take(self, ended: Iterable[EndedRequest], *, counts_prompt: bool = True) -> None:
        """What replicas reported. Of a request that went on at another replica the last one counts. counts_prompt:
        else the prompt's tokens stay as they were estimated."""
        for used in ended:
            first = self._first_id.get(used.id, "")
            followed = self._followed.get(first)
            if followed is None:
                continue
            if not counts_prompt:
                used = msgspec.structs.replace(used, prompt_tokens=round(followed.origin.tokens))
            total = used.prompt_tokens + used.completion_tokens
            if followed.origin.grant is not None:
                self._settle(followed.origin.grant, total - followed.counted)
            followed.counted, followed.used = total, used
            if followed.ended_s >= 0 and used.id == followed.ids[-1]:
                self._close(first)

    def expire(self) -> None:
        """Give up on replicas that report nothing."""
        last_s = self._clock() - UNSETTLED_S
        for first in [one for one, followed in self._unsettled.items() if followed.ended_s <= last_s]:
            self._close(first)

    def ended_before(self, moment_s: float, *, keep: Container[str] = ()) -> None:
        """A new Envoy runs since a moment, and logs no end of what the one before it had. keep: requests that are not
        of these."""
        old = [one for one, f in self._followed.items() if f.origin.at_s < moment_s and f.ended_s < 0]
        for first in [one for one in old if one not in keep]:
            self.ended(first, status=0, outcome="server_error")

    def _close(self, first: str) -> None:
        followed = self._forget(first)
        if self.write is not None:
            self.write(msgspec.json.encode(_line(followed)) + b"\n")

    def _forget(self, first: str) -> _Followed:
        followed = self._followed.pop(first)
        self._unsettled.pop(first, None)
        for one in followed.ids:
            self._first_id.pop(one, None)
        return followed


def _unforwarded(outcome: str, status: int) -> str:
    """Of a request that no replica got: the gateway refused it, unless its client left."""
    return "refused" if outcome != "aborted" and status else outcome


def _line(followed: _Followed) -> AuditLine:
    origin, used = followed.origin, followed.used
    namespace, _, service = origin.service.partition(".")
    return AuditLine(
        time=datetime.fromtimestamp(origin.at, UTC).isoformat(timespec="milliseconds"),
        request_id=origin.request_id,
        namespace=namespace,
        service=service,
        tenant=origin.grant.name if origin.grant else "",
        model=origin.model,
        path=origin.path,
        endpoint=followed.address,
        status=followed.status,
        outcome=followed.outcome,
        prompt_tokens=used.prompt_tokens if used else -1,
        cached_tokens=used.cached_tokens if used else -1,
        completion_tokens=used.completion_tokens if used else -1,
        wait_s=round(followed.forwarded_s - origin.at_s, 4) if followed.forwarded_s >= 0 else -1.0,
        first_token_s=round(used.first_token_s, 4) if used else -1.0,
        duration_s=round(followed.ended_s - origin.at_s, 4),
    )
