"""Requests that a replica refuses although it had room by its last report: Envoy brings each back, to be decided again.

What a request had when it came first is kept while it may come back, since Envoy sends it as the replica got it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from kvasir_api import names
from kvasir_gateway.envoy.routes import MOST_REFERRALS
from kvasir_gateway.picker.destination import RoutableRequest
from kvasir_gateway.picker.request_parser import with_model

MOST_OFFERS: Final = 65_536
"""Of requests that may come back; where there are more, their ends were lost."""
_AUTHORITY: Final = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
"""Of an address that Envoy follows. Its parser takes no other host, not even one with an underscore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferralOffer:
    """A request that may come back. refused: addresses of the replicas that have just refused it, with that of the one
    that has it. refusals: how often it came back. model: that its client named, None where the replica got that
    name too."""

    began_s: float
    until_s: float
    refused: frozenset[str]
    refusals: int = 0
    model: str | None = None


class Referrals:
    """Of one gateway, by the in-flight ids of requests."""

    def __init__(self) -> None:
        self._offers: dict[str, ReferralOffer] = {}

    def __len__(self) -> int:
        return len(self._offers)

    def offer(self, request: RoutableRequest, address: str, body: bytes | None = None) -> dict[str, str]:
        """Headers with which a request goes to a replica that may send it back; of one that came back too often those
        of another try alone. body: that the replica gets instead of what came, None for that."""
        offered, url = self._offers.pop(request.id, None), _url(request.client)
        refusals = offered.refusals if offered is not None else 0
        again = {names.HEADER_RETRY_COUNT: "1"} if refusals else {}
        if refusals >= MOST_REFERRALS or not url:
            return again
        self._offers[request.id] = ReferralOffer(
            began_s=request.began_s,
            until_s=request.until_s,
            refused=request.avoided | {address},
            refusals=refusals,
            model=None if body is None or body == request.body else request.model,
        )
        if len(self._offers) > MOST_OFFERS:
            del self._offers[next(iter(self._offers))]
        return {**again, names.HEADER_REFER: url}

    def original(self, body: bytes, path: str, inflight_id: str, headers: Mapping[str, str]) -> bytes | None:
        """The body of a request that comes back, with its client's name of the model again, by which its route is
        found; None where it has that."""
        offer = self._offers.get(inflight_id) if names.HEADER_ORIGINAL_URL in headers else None
        return None if offer is None or offer.model is None else with_model(body, path, offer.model)

    def take(self, request: RoutableRequest) -> ReferralOffer | None:
        """What a request had that comes back; None for one that does not, and for one that an earlier picker sent."""
        offer = self._offers.get(request.id) if request.is_referred else None
        if offer is not None:
            self._offers[request.id] = replace(offer, refusals=offer.refusals + 1)
        return offer

    def forget(self, inflight_id: str) -> None:
        """The request has ended."""
        self._offers.pop(inflight_id, None)


def is_elsewhere(headers: Mapping[str, str]) -> bool:
    """Whether a request comes back with another address than it had. A replica could have its client's key used so.
    The scheme is that of its client in one of both, and that of the connection in the other."""
    came_from = headers.get(names.HEADER_ORIGINAL_URL)
    return came_from is not None and came_from.partition("://")[2] != _url(headers).partition("://")[2]


def _url(headers: Mapping[str, str]) -> str:
    """Where Envoy brings a request back: to itself. Empty where it would pass the replica's 307 on to the client."""
    scheme, authority, target = (headers.get(name, "") for name in (":scheme", ":authority", ":path"))
    follows = scheme and _AUTHORITY.fullmatch(authority) and target.startswith("/")
    return f"{scheme}://{authority}{target}" if follows else ""
