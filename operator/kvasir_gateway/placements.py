"""What gateways tell one another: where each sent a request, what is to be computed there, that it has ended, and what
it counted of a tenant's limits.

A reading shows what replicas had half a second ago; what all gateways have sent since decides as much as that. One line
of JSON for each event, in their order; a peer is not believed more than its bounds. Pure.
"""

from typing import Annotated, Final

import msgspec

from kvasir_api.hashes import ROUTE_HASH_BYTES

MOST_HASHES: Final = 4096
"""Of a placement: the beginning of 1 MiB of text."""
MOST_LINE_BYTES: Final = 1 << 16
MOST_USED: Final = 1e10
"""Requests or tokens of one tenant."""
MOST_NAME: Final = 128
Name = Annotated[str, msgspec.Meta(max_length=MOST_NAME)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class RequestPlacement(msgspec.Struct, frozen=True, kw_only=True, tag="placed", omit_defaults=True):
    """A request went to an endpoint. id: at its gateway. answer: that goes on there, "" for a new one.
    uncached_tokens: that the endpoint computes, estimated; cold: that is most of the prompt. num_sequences: that it
    generates.

    route_hashes: what it will hold then, one behind the other. rented, rent_s: the prefix for which requests were kept
    together, and what that has cost so far.
    """

    id: Name
    address: Name
    answer: Name = ""
    uncached_tokens: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    cold: bool = False
    num_sequences: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 1
    route_hashes: Annotated[bytes, msgspec.Meta(max_length=MOST_HASHES * ROUTE_HASH_BYTES)] = b""
    rented: Annotated[bytes, msgspec.Meta(max_length=ROUTE_HASH_BYTES)] = b""
    rent_s: Seconds = 0.0


class PlacementEnd(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """That request has ended."""

    id: Name


class TenantUse(msgspec.Struct, frozen=True, kw_only=True, tag="used", omit_defaults=True):
    """A tenant (NAMESPACE/NAME) used so much of its limits there; tokens that were counted too high come back.

    running: its requests that run or wait there from now on, not how many more. minute_requests, minute_tokens: what
    all gateways have used of the limits of a minute, as it is known there; sent to one that begins to follow.
    """

    tenant: Annotated[str, msgspec.Meta(max_length=512)]
    requests: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    tokens: Annotated[float, msgspec.Meta(ge=-MOST_USED, le=MOST_USED)] = 0.0
    running: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 0
    minute_requests: Annotated[float, msgspec.Meta(ge=0, le=MOST_USED)] = 0.0
    minute_tokens: Annotated[float, msgspec.Meta(ge=0, le=MOST_USED)] = 0.0


PlacementEvent = RequestPlacement | PlacementEnd | TenantUse
_DECODER: Final = msgspec.json.Decoder(PlacementEvent)


def encode(event: PlacementEvent) -> bytes:
    """One line."""
    return msgspec.json.encode(event) + b"\n"


def decode(line: bytes) -> PlacementEvent:
    """Raises msgspec.DecodeError for a line that is none."""
    event: PlacementEvent = _DECODER.decode(line)
    return event
