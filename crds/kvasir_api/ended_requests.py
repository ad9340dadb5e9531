"""What a replica reports of requests that ended there: tokens and times, by the ids that a gateway gave them.

`GET /ended_requests` on the ops port. A gateway never sees an answer, so it knows by this what each one took.
"""

from typing import Annotated, Final

import msgspec

MOST_ID_CHARACTERS: Final = 64
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]


class EndedRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """id: that a gateway gave the request (`x-kvasir-inflight-id`). first_token_s: from its arrival at the replica, -1
    where none came."""

    id: Annotated[str, msgspec.Meta(max_length=MOST_ID_CHARACTERS)]
    prompt_tokens: Count = 0
    cached_tokens: Count = 0
    completion_tokens: Count = 0
    first_token_s: Annotated[float, msgspec.Meta(ge=-1.0, le=1e9)] = -1.0


class EndedRequests(msgspec.Struct, frozen=True, kw_only=True):
    """instance: the process. last: number of the newest request that ended there; the next reading goes on behind it."""

    instance: Annotated[str, msgspec.Meta(max_length=64)]
    last: int
    requests: tuple[EndedRequest, ...] = ()


def encode(ended: EndedRequests) -> bytes:
    """The document."""
    return msgspec.json.encode(ended)


def decode(document: bytes) -> EndedRequests:
    """Raises msgspec.MsgspecError for what no replica writes."""
    return msgspec.json.decode(document, type=EndedRequests)
