"""Before a new replica takes requests: compute the beginnings of prompts that its peers are asked most.

Called by the process when the engine is ready, with the peers that the operator named meanwhile, and by the ops port of
those peers. What a peer answers is token ids alone, which this replica computes itself: a wrong answer wastes some of
the time and of the cache that are set aside for it, and changes no answer of the model. Where the two exchange blocks
(`runner/kv_transfer`), the engine may fetch them from that peer as for any request.
"""

import asyncio
import hashlib
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from kvasir_api import names, served_names
from kvasir_api.ops_tokens import SCHEME
from kvasir_runtime.client.engine_client import EngineClient, EngineDeadError
from kvasir_runtime.client.event_queue import EventQueue
from kvasir_runtime.client.hot_prefixes import FrozenPrefixes
from kvasir_runtime.frontend.tokenizer import Tokenizer
from kvasir_runtime.wire import EngineFacts, EngineRequest, SamplingConfig, packed_ids

PIECE_TOKENS: Final = 64
MOST_TOKENS: Final = 256 * 1024
"""Of one answer: 2 MB of JSON, more than half of most caches hold."""
MOST_BYTES: Final = 8 * 1024 * 1024
MOST_ASK_S: Final = 2.0
"""A peer that has not answered by then is gone without; it takes no more than a quarter of the time in all."""
MOST_CACHE_FRACTION: Final = 0.5
"""Of the cache's tokens: what comes first must not be evicted by what comes last."""
ADDRESS: Final = re.compile(r"https?://(\d{1,3}(\.\d{1,3}){3}|\[[0-9A-Fa-f:.]+\]):\d{1,5}")
PROBE: Final = "The 7 quick brown foxes — naïve, über, 日本語 — jump;\n\tdef f(x): return x**2 # ok"


class SharedPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids with which prompts of this salt (hex) begin, and how many lately.

    The ids stand behind the first `kept` ids of the prefix at index `follows` of the same document, -1 for none.
    """

    ids: list[int]
    salt: str = ""
    hits: float = 0.0
    follows: int = -1
    kept: int = 0


class SharedPrefixes(msgspec.Struct, frozen=True, kw_only=True):
    """What a peer answers. tokenizer: its ids mean the same only to one with this digest. kv_transfer_port: where it
    gives out blocks, 0 for nowhere.
    """

    tokenizer: str
    prefixes: list[SharedPrefix]
    kv_transfer_port: int = 0


@dataclass(frozen=True, slots=True)
class OfferedPrefix:
    """All ids of a beginning that a peer offers. kv_peer: where that peer gives out blocks, "" for nowhere."""

    salt: bytes
    ids: tuple[int, ...]
    hits: float = 0.0
    kv_peer: str = ""


@dataclass(frozen=True, slots=True)
class ChosenPrefix:
    """What is to be computed, or fetched from kv_peer. new: how many of the ids no prefix before it has."""

    salt: bytes
    ids: tuple[int, ...]
    new: int
    kv_peer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmedPrefixes:
    """What was computed; tokens that several prefixes have count once. silent: peers without a usable answer."""

    prefixes: int = 0
    tokens: int = 0
    seconds: float = 0.0
    silent: int = 0

    @property
    def words(self) -> str:
        """For the log."""
        what = f"computed {self.prefixes} prefixes of peers, {self.tokens} tokens in {self.seconds:.1f} s"
        return f"{what}; {self.silent} peers gave no usable answer"


def shared(hot: FrozenPrefixes, tokenizer: Tokenizer, count: int, kv_transfer_port: int) -> bytes:
    """The document for a peer. Takes some hundredths of a second: not for the event loop."""
    found = [
        SharedPrefix(ids=list(p.ids), salt=p.salt.hex(), hits=p.hits, follows=p.follows, kept=p.kept)
        for p in hot.top(count, MOST_TOKENS)
    ]
    digest = tokenizer_digest(tokenizer)
    return msgspec.json.encode(SharedPrefixes(tokenizer=digest, prefixes=found, kv_transfer_port=kv_transfer_port))


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """Differs where ids do not mean the same."""
    ids = tokenizer.encode(PROBE, special=True, limit=len(PROBE) * 8)
    return hashlib.sha256(f"{tokenizer.vocab_size} {ids}".encode()).hexdigest()[:16]


def is_address(base: str) -> bool:
    """Whether a base URL is one of an ops port: an address, never a name that could lead elsewhere."""
    return ADDRESS.fullmatch(base) is not None


async def warm(
    peers: Mapping[str, str],
    client: EngineClient,
    facts: EngineFacts,
    tokenizer: Tokenizer,
    *,
    limit_s: float,
    tls_dir: str = "",
) -> WarmedPrefixes:
    """Fetch and compute, for at most limit_s seconds. Never raises for what peers do.

    peers: base URLs with the token of the call to each, empty for none.
    tls_dir: of `--tls-dir`; its ca.crt verifies peers that speak TLS. Raises OSError where that is none."""
    began = time.monotonic()
    asked = dict(list(peers.items())[: names.MOST_PEERS])
    limit_ask_s = min(MOST_ASK_S, limit_s / 4)
    found, silent = await offers(asked, facts, tokenizer, limit_s=limit_ask_s, tls_dir=tls_dir)
    prompts = chosen(found, int(MOST_CACHE_FRACTION * facts.capacity_tokens))
    left_s = limit_s - (time.monotonic() - began)
    done, tokens = await _computed(prompts, client, left_s) if prompts else (0, 0)
    return WarmedPrefixes(prefixes=done, tokens=tokens, seconds=time.monotonic() - began, silent=silent)


async def offers(
    peers: Mapping[str, str], facts: EngineFacts, tokenizer: Tokenizer, *, limit_s: float, tls_dir: str = ""
) -> tuple[list[OfferedPrefix], int]:
    """What peers offer, and how many gave no usable answer within limit_s seconds. Arguments as of `warm`."""
    answers = await _fetch(peers, limit_s, _verified(tls_dir))
    digest = tokenizer_digest(tokenizer)
    usable = [
        (base, answer)
        for base, answer in zip(peers, answers, strict=True)
        if answer is not None and answer.tokenizer == digest
    ]
    found = [prefix for base, answer in usable for prefix in offered_by(base, answer, facts)]
    return found, len(answers) - len(usable)


def offered_by(base: str, answer: SharedPrefixes, facts: EngineFacts) -> list[OfferedPrefix]:
    """The prefixes of the peer with this base URL, with the place where it gives out their blocks."""
    host, port = base.partition("//")[2].rpartition(":")[0], answer.kv_transfer_port
    kv_peer = f"{host}:{port}" if 0 < port < 1 << 16 else ""
    return [replace(prefix, kv_peer=kv_peer) for prefix in offered(answer.prefixes, facts)]


def offered(prefixes: Sequence[SharedPrefix], facts: EngineFacts) -> list[OfferedPrefix]:
    """The prefixes of a document in full, without those that the model does not take and what follows them."""
    found: dict[int, OfferedPrefix] = {}
    for number, prefix in enumerate(prefixes[: names.MOST_PREFIXES]):
        before = found.get(prefix.follows)
        if (before is None) != (prefix.follows == -1) or not all(0 <= id_ < facts.vocab_size for id_ in prefix.ids):
            continue
        try:
            salt = bytes.fromhex(prefix.salt)
        except ValueError:
            continue
        kept = before.ids[: max(prefix.kept, 0)] if before is not None else ()
        if 0 < len(kept) + len(prefix.ids) < facts.max_cached_tokens:
            found[number] = OfferedPrefix(salt, (*kept, *prefix.ids), prefix.hits)
    return list(found.values())


def chosen(
    prefixes: Sequence[OfferedPrefix],
    most_tokens: int,
    *,
    is_first: Callable[[OfferedPrefix], bool] = lambda _: True,
) -> list[ChosenPrefix]:
    """What to compute or fetch, hottest first, within so many tokens; those that several begin with count once.

    is_first: whether a prefix comes before all that are not.
    """
    left = most_tokens
    found: list[ChosenPrefix] = []
    trees: dict[Any, Any] = {}
    for prefix in sorted(prefixes, key=lambda p: (not is_first(p), -p.hits * len(p.ids))):
        new = _behind_known(trees.get(prefix.salt, {}), prefix.ids)
        if 0 < new <= left:
            left -= new
            found.append(ChosenPrefix(prefix.salt, prefix.ids, new, prefix.kv_peer))
            node = trees.setdefault(prefix.salt, {})
            for piece in _pieces(prefix.ids):
                node = node.setdefault(piece, {})
    return found


def _behind_known(tree: dict[Any, Any], ids: tuple[int, ...]) -> int:
    """How many ids are left behind the pieces that the tree has."""
    known = 0
    for piece in _pieces(ids):
        if piece not in tree:
            break
        tree, known = tree[piece], known + len(piece)
    return len(ids) - known


def _pieces(ids: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return (ids[start : start + PIECE_TOKENS] for start in range(0, len(ids), PIECE_TOKENS))


def _verified(tls_dir: str) -> dict[str, Any]:
    """Peers are replicas of this one's service, whose name their certificate has."""
    ca_file = Path(tls_dir) / names.TLS_CA
    if not tls_dir or not ca_file.exists():
        return {}
    namespace, _, name = os.environ.get(names.ENV_SERVICE, "").partition("/")
    context = ssl.create_default_context(cafile=ca_file)
    return {"ssl": context, "server_hostname": served_names.dns_name(namespace, name)}


async def _fetch(peers: Mapping[str, str], limit_s: float, security: Mapping[str, Any]) -> list[SharedPrefixes | None]:
    """The answer of each peer, None for one without a usable one in time."""
    import aiohttp  # a tenth of a second, which only a replica with peers has to spend

    timeout = aiohttp.ClientTimeout(total=limit_s)
    async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:

        async def ask(base: str, token: str) -> SharedPrefixes | None:
            headers = {"authorization": f"{SCHEME}{token}"} if token else {}
            try:
                path = f"{base}{names.TARGET_PREFIXES}"
                async with session.get(path, headers=headers, allow_redirects=False, **security) as response:
                    body = bytearray()
                    async for part in response.content.iter_chunked(64 * 1024):
                        body += part
                        if len(body) > MOST_BYTES:
                            return None
                    return msgspec.json.decode(body, type=SharedPrefixes) if response.status == 200 else None
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError):
                return None  # ValueError: of msgspec, and UnicodeDecodeError; RecursionError: of deep nesting

        return list(await asyncio.gather(*(ask(base, token) for base, token in peers.items())))


async def _computed(prompts: Sequence[ChosenPrefix], client: EngineClient, limit_s: float) -> tuple[int, int]:
    """How many were computed in time, and their tokens; the rest is aborted."""
    deadline = time.monotonic() + limit_s
    requests = [
        EngineRequest(
            request_id=f"warmup-{number}",
            prompt=prefix.ids,
            packed_prompt=packed_ids(prefix.ids),
            sampling=SamplingConfig(temperature=0.0, max_tokens=1, ignore_eos=True),
            salt=prefix.salt,
            kv_peer=prefix.kv_peer,
        )
        for number, prefix in enumerate(prompts)
    ]
    queue, waiting, done, tokens = EventQueue(), {r.request_id for r in requests}, 0, 0
    try:
        client.submit(requests, queue)
        while waiting and (left_s := deadline - time.monotonic()) > 0:
            for index, event in await queue.take(left_s) or ():
                if event.finish_reason is not None:
                    waiting.discard(event.request_id)
                if event.finish_reason in ("length", "stop"):
                    done, tokens = done + 1, tokens + prompts[index].new
    except EngineDeadError:
        pass  # the process ends for it
    for request_id in waiting:
        client.abort(request_id)
    return done, tokens
