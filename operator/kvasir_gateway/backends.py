"""External backends as the relay reports them to the picker, and which of them rest after failures. Pure.

The relay alone has the addresses and keys. A backend that failed is the last choice for a while that doubles with each
further failure: what goes there meanwhile is another try.
"""

from typing import Annotated, Final

import msgspec

from kvasir_api import http_apis
from kvasir_api.ended_requests import EndedRequest

ANY_NAMESPACE: Final = "*"
PATHS: Final = frozenset({http_apis.CHATS, http_apis.COMPLETIONS, "/v1/embeddings"})
"""What backends are asked for: parts of OpenAI's API that keep nothing between requests."""
FIRST_REST_S: Final = 1.0
LONGEST_REST_S: Final = 60.0
MOST_BACKENDS: Final = 256
MOST_ENDED: Final = 4096
MOST_REPORT_BYTES: Final = 1 << 25
MOST_RESTING: Final = 1024
Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=52)]


class BackendGrant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whose routes may name a backend. namespaces: by name, `*` for all. anonymous: it also answers requests of
    namespaces without tenants, whose keys nothing has checked."""

    name: Name
    namespaces: tuple[str, ...] = ()
    anonymous: bool = False

    def serves(self, namespace: str) -> bool:
        """Whether routes of a namespace may name it."""
        return namespace in self.namespaces or ANY_NAMESPACE in self.namespaces


class RelayReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The relay's report to the picker. ended: requests that backends have answered since the last report, by the ids
    of the inner listener. estimated: those without token counts of the backend, with the estimated tokens of the
    answer. resting: backends of routes (NAMESPACE/ROUTE/BACKEND) that are the last choice now."""

    backends: Annotated[tuple[BackendGrant, ...], msgspec.Meta(max_length=MOST_BACKENDS)] = ()
    ended: Annotated[tuple[EndedRequest, ...], msgspec.Meta(max_length=MOST_ENDED)] = ()
    estimated: Annotated[tuple[EndedRequest, ...], msgspec.Meta(max_length=MOST_ENDED)] = ()
    resting: Annotated[tuple[str, ...], msgspec.Meta(max_length=MOST_RESTING)] = ()


encode = msgspec.json.encode
decode = msgspec.json.Decoder(RelayReport).decode
"""Raises msgspec.MsgspecError for what no relay writes."""


class _Failures(msgspec.Struct, frozen=True, kw_only=True):
    count: int = 0
    last_s: float = float("-inf")
    rests_until_s: float = float("-inf")


class BackendHealth:
    """Which backends failed lately, as each route uses them, since a route may be what they fail from; times are on the
    caller's clock."""

    def __init__(self) -> None:
        self._failures: dict[str, _Failures] = {}

    def observe(self, service: str, *, failed: bool, began_s: float, now_s: float) -> None:
        """A request has ended. One that began before the last failure shows nothing that was not known from that."""
        known = self._failures.get(service, _Failures())
        if began_s < known.last_s:
            return
        self._failures.pop(service, None)
        if failed:
            rest_s = min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** min(known.count, 16))
            self._failures[service] = _Failures(count=known.count + 1, last_s=now_s, rests_until_s=now_s + rest_s)
        if len(self._failures) > MOST_RESTING:
            del self._failures[next(iter(self._failures))]

    def resting(self, now_s: float) -> tuple[str, ...]:
        """Those before which others come."""
        return tuple(service for service, known in self._failures.items() if now_s < known.rests_until_s)
