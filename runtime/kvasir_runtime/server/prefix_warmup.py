"""Before a new replica takes requests: compute the beginnings of prompts that its peers are asked most.

Called by the process when the engine is ready, with the peers that the operator named meanwhile, and by the ops port of
those peers. What a peer answers is token ids alone, which this replica computes itself: a wrong answer wastes some of
the time and of the cache that are set aside for it, and changes no answer of the model.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from kvasir_api import names
from kvasir_runtime.client.engine_client import EngineClient, EngineDeadError
from kvasir_runtime.client.event_queue import EventQueue
from kvasir_runtime.client.hot_prefixes import HotPrefixes
from kvasir_runtime.frontend.tokenizer import Tokenizer
from kvasir_runtime.wire import EngineFacts, EngineRequest, SamplingConfig, packed_ids

PIECE_TOKENS: Final = 64
MOST_PEERS: Final = 3
MOST_PREFIXES: Final = 64
MOST_BYTES: Final = 8 * 1024 * 1024
MOST_ASK_S: Final = 2.0
"""A peer that has not answered by then is gone without; it takes no more than a quarter of the time in all."""
MOST_CACHE_FRACTION: Final = 0.5
"""Of the cache's tokens: what comes first must not be evicted by what comes last."""
ADDRESS: Final = re.compile(r"http://(\d{1,3}(\.\d{1,3}){3}|\[[0-9A-Fa-f:.]+\]):\d{1,5}")
PROBE: Final = "The 7 quick brown foxes — naïve, über, 日本語 — jump;\n\tdef f(x): return x**2 # ok"


class SharedPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids with which prompts of this salt (hex) begin, and how many lately."""

    ids: list[int]
    salt: str = ""
    hits: float = 0.0


class SharedPrefixes(msgspec.Struct, frozen=True, kw_only=True):
    """What a peer answers. tokenizer: its ids mean the same only to one with this digest."""

    tokenizer: str
    prefixes: list[SharedPrefix]


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmedPrefixes:
    """What was computed. silent: peers without a usable answer."""

    prefixes: int = 0
    tokens: int = 0
    seconds: float = 0.0
    silent: int = 0


def shared(hot: HotPrefixes, tokenizer: Tokenizer, count: int) -> bytes:
    """The document for a peer."""
    found = [SharedPrefix(ids=list(p.ids), salt=p.salt.hex(), hits=p.hits) for p in hot.top(count)]
    return msgspec.json.encode(SharedPrefixes(tokenizer=tokenizer_digest(tokenizer), prefixes=found))


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """Differs where ids do not mean the same."""
    ids = tokenizer.encode(PROBE, special=True, limit=len(PROBE) * 8)
    return hashlib.sha256(f"{tokenizer.vocab_size} {ids}".encode()).hexdigest()[:16]


def is_address(base: str) -> bool:
    """Whether a base URL is one of an ops port: an address, never a name that could lead elsewhere."""
    return ADDRESS.fullmatch(base) is not None


async def warm(
    peers: Sequence[str], client: EngineClient, facts: EngineFacts, tokenizer: Tokenizer, *, limit_s: float
) -> WarmedPrefixes:
    """Fetch and compute, for at most limit_s seconds. Never raises for what peers do."""
    began = time.monotonic()
    answers = await _fetch(peers[:MOST_PEERS], min(MOST_ASK_S, limit_s / 4))
    digest = tokenizer_digest(tokenizer)
    usable = [answer for answer in answers if answer is not None and answer.tokenizer == digest]
    prompts = chosen([p for answer in usable for p in answer.prefixes], facts)
    left_s = limit_s - (time.monotonic() - began)
    done, tokens = await _computed(prompts, client, left_s) if prompts else (0, 0)
    return WarmedPrefixes(
        prefixes=done, tokens=tokens, seconds=time.monotonic() - began, silent=len(answers) - len(usable)
    )


def chosen(offered: Sequence[SharedPrefix], facts: EngineFacts) -> list[tuple[bytes, tuple[int, ...]]]:
    """Salts and ids to compute, hottest first, within what the model takes and the share of the cache."""
    left = int(MOST_CACHE_FRACTION * facts.capacity_tokens)
    found: dict[tuple[bytes, tuple[int, ...]], None] = {}
    for prefix in sorted(offered, key=lambda p: -p.hits * len(p.ids))[: MOST_PEERS * MOST_PREFIXES]:
        ids = tuple(prefix.ids)
        fits = 0 < len(ids) < facts.max_cached_tokens and len(ids) <= left
        if not fits or not all(0 <= id_ < facts.vocab_size for id_ in ids):
            continue
        with suppress(ValueError):
            key = (bytes.fromhex(prefix.salt), ids)
            left -= 0 if key in found else len(ids)
            found[key] = None
    return list(found)


async def _fetch(peers: Sequence[str], limit_s: float) -> list[SharedPrefixes | None]:
    """The answer of each peer, None for one without a usable one in time."""
    import aiohttp  # a tenth of a second, which only a replica with peers has to spend

    timeout = aiohttp.ClientTimeout(total=limit_s)
    async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:

        async def ask(base: str) -> SharedPrefixes | None:
            path = f"{base}{names.PATH_PREFIXES}?top={MOST_PREFIXES}"
            try:
                async with session.get(path, allow_redirects=False) as response:
                    body = bytearray()
                    async for part in response.content.iter_chunked(64 * 1024):
                        body += part
                        if len(body) > MOST_BYTES:
                            return None
                    return msgspec.json.decode(body, type=SharedPrefixes) if response.status == 200 else None
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError):
                return None  # ValueError: of msgspec, and UnicodeDecodeError; RecursionError: of deep nesting

        return list(await asyncio.gather(*map(ask, peers)))


async def _computed(
    prompts: Sequence[tuple[bytes, tuple[int, ...]]], client: EngineClient, limit_s: float
) -> tuple[int, int]:
    """How many were computed in time, and their tokens; the rest is aborted."""
    deadline = time.monotonic() + limit_s
    requests = [
        EngineRequest(
            request_id=f"warmup-{number}",
            prompt=ids,
            packed_prompt=packed_ids(ids),
            sampling=SamplingConfig(temperature=0.0, max_tokens=1, ignore_eos=True),
            salt=salt,
        )
        for number, (salt, ids) in enumerate(prompts)
    ]
    queue, waiting, done, tokens = EventQueue(), {r.request_id for r in requests}, 0, 0
    try:
        client.submit(requests, queue)
        while waiting and (left_s := deadline - time.monotonic()) > 0:
            for index, event in await queue.take(left_s) or ():
                if event.finish_reason is not None:
                    waiting.discard(event.request_id)
                if event.finish_reason in ("length", "stop"):
                    done, tokens = done + 1, tokens + len(prompts[index][1])
    except EngineDeadError:
        pass  # the process ends for it
    for request_id in waiting:
        client.abort(request_id)
    return done, tokens
