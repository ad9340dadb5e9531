"""While another replica leaves: fetch the blocks of what it was asked most, before a request needs them.

Called by the ops port, with the replica that the operator named. Nothing is computed, and the replica that leaves waits
for nothing: what has not come when it ends is computed when a request needs it. One prefix after another is fetched,
the hottest first, within a part of the tier on the host, so that requests' own fetches find threads and room. Of
several replicas that fetch from the same one each begins with another share of its prefixes, so that together they hold
more.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from kvasir_api.hashes import block_root, prompt_block_hashes
from kvasir_runtime.client.engine_client import EngineClient, EngineDeadError
from kvasir_runtime.client.event_queue import EventQueue
from kvasir_runtime.frontend.tokenizer import Tokenizer
from kvasir_runtime.server.peer_prefixes import warmup
from kvasir_runtime.server.peer_prefixes.warmup import ChosenPrefix, OfferedPrefix
from kvasir_runtime.wire import EngineFacts, EngineRequest, SamplingConfig, packed_ids

MOST_S: Final = 60.0
"""For all of it: a replica may drain for longer, and what it holds changes while it does."""
MOST_HOST_FRACTION: Final = 0.25
"""Of the host's tokens: what comes displaces what was used longest ago."""


MOST_SHARES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedShare:
    """The prefixes that one of several replicas fetches first: 0 ≤ index < of, each time the same."""

    index: int = 0
    of: int = 1

    def has(self, prefix: OfferedPrefix) -> bool:
        """Whether a prefix is of this share, by its hash."""
        digest = blake2b(packed_ids(prefix.ids), key=prefix.salt[: blake2b.MAX_KEY_SIZE], digest_size=8).digest()
        return int.from_bytes(digest) % self.of == self.index


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchedPrefixes:
    """tokens: that came. prefixes: of which some came, of so many that were offered and fit."""

    tokens: int = 0
    prefixes: int = 0
    offered: int = 0
    seconds: float = 0.0


def room_tokens(capacity_tokens: int) -> int:
    """Tokens that may be fetched from one replica. capacity_tokens: of the host's tier, 0 without one."""
    return int(MOST_HOST_FRACTION * capacity_tokens)


async def prefetch(
    leaving: Mapping[str, str],
    client: EngineClient,
    facts: EngineFacts,
    tokenizer: Tokenizer,
    *,
    share: FetchedShare,
    is_wanted: Callable[[], bool],
    tls_dir: str = "",
) -> PrefetchedPrefixes:
    """Fetch what one replica is asked most. Never raises for what it does, nor where the engine ends.

    leaving: its base URL with the token of the call to it. share: what comes first. is_wanted: whether this replica
    still serves. tls_dir: as of `warmup.warm`. Raises OSError as that does.
    """
    found, _ = await warmup.offers(leaving, facts, tokenizer, limit_s=warmup.MOST_ASK_S, tls_dir=tls_dir)
    return await fetch(found, client, facts, share=share, is_wanted=is_wanted)


async def fetch(
    found: Sequence[OfferedPrefix],
    client: EngineClient,
    facts: EngineFacts,
    *,
    share: FetchedShare,
    is_wanted: Callable[[], bool],
) -> PrefetchedPrefixes:
    """Fetch what is offered together with a place that gives it out, one after the other."""
    began = time.monotonic()
    given_out = [prefix for prefix in found if prefix.kv_peer]
    chosen = warmup.chosen(given_out, room_tokens(client.state.kv_host.capacity_tokens), is_first=share.has)
    tokens = prefixes = 0
    for number, prefix in enumerate(chosen):
        left_s = began + MOST_S - time.monotonic()
        if left_s <= 0 or not is_wanted():
            break
        request = await asyncio.to_thread(_request, prefix, number, client.hash_salt, facts.block_size)
        came = await _fetched(request, client, left_s)
        tokens, prefixes = tokens + came, prefixes + (came > 0)
    return PrefetchedPrefixes(tokens=tokens, prefixes=prefixes, offered=len(chosen), seconds=time.monotonic() - began)


def _request(prefix: ChosenPrefix, number: int, hash_salt: bytes, block_size: int) -> EngineRequest:
    """The blocks of a prefix are hashed here, since the engine serves others meanwhile."""
    packed = packed_ids(prefix.ids)
    root = block_root(salt=prefix.salt, secret=hash_salt)
    return EngineRequest(
        request_id=f"prefetch-{number}",
        prompt=(),
        packed_prompt=packed,
        block_hashes=prompt_block_hashes(packed, root=root, block_size=block_size),
        sampling=SamplingConfig(temperature=0.0, max_tokens=1),
        salt=prefix.salt,
        kv_peer=prefix.kv_peer,
        prefetch=True,
    )


async def _fetched(request: EngineRequest, client: EngineClient, limit_s: float) -> int:
    """Tokens that came of one prefix within limit_s seconds; 0 where the engine refused it, or ended."""
    queue, deadline = EventQueue(), time.monotonic() + limit_s
    try:
        client.submit([request], queue)
    except EngineDeadError:
        return 0  # the process ends for it
    while (left_s := deadline - time.monotonic()) > 0:
        for _, event in await queue.take(left_s) or ():
            if event.finish_reason is not None:
                return event.cached_tokens
    client.abort(request.request_id)
    return 0
