"""Which blocks are fetched from another replica instead of being computed, and what is known of those that come.

Owned by the host's tier, where they arrive: a block that came is loaded like any other that the host holds, and what
did not come is computed. A request waits in the queue meanwhile, for at most as long as computing would take. Knows
neither sockets nor where a replica is.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from kvasir_api import kv_transfer
from kvasir_api.hashes import owner_of_block
from kvasir_api.state import KvHostState
from kvasir_runtime.core.plan import BlockFetch, FetchResult, PeerBlock, PeerPrefill
from kvasir_runtime.core.throughput import DecayingMean
from kvasir_runtime.wire import EngineOutput, EngineRequest

MOST_FETCHES: Final = 16
"""At a time, those that wait for a thread included; a request that comes then is computed."""
MOST_BLOCKS: Final = 4096
"""Of one fetch. What is behind them is computed."""
MOST_S: Final = 10.0
"""A fetch ends by then, however long computing would take, and where that was not measured yet."""
LEAST_S: Final = 0.1
"""For a fetch where computing is quick: a peer that answers takes a few milliseconds."""
REST_S: Final = 10.0
"""For so long a peer is not asked that gave no whole answer to the request before, nor for a block that did not come
and without which those behind it are of no use."""
MOST_RESTING: Final = 256
PROBE_EVERY: Final = 16
"""Of the fetches that were judged slower than computing, one in so many is made all the same, to measure again."""
MEMORY_S: Final = 2.0
"""Seconds of fetching after which a measurement weighs 1/e."""


class SettledFetch(NamedTuple):
    """kept: keys that the host holds now. unwanted: those that it holds although they were forgotten. outputs: of the
    request that wanted no more than this."""

    kept: set[bytes]
    unwanted: set[bytes]
    outputs: tuple[EngineOutput, ...] = ()


_Rest = tuple[str, bytes]
"""A peer, and the key of the block that it is not asked for; empty for any."""


@dataclass(slots=True)
class _Fetch:
    """What a plan has begun, or is to begin, for a request. unwanted: those of its keys that were forgotten since.
    is_cancelled: the request has ended. is_prefetch: it ends with the fetch."""

    request_id: str
    order: BlockFetch
    keys: frozenset[bytes]
    is_prefetch: bool = False
    unwanted: frozenset[bytes] = frozenset()
    is_cancelled: bool = False


class PeerFetches:
    """token_s, load_s below: measured seconds to compute a token, and to copy a block from the host; 0 if unknown."""

    __slots__ = ("_block_size", "_cancels", "_coming", "_cost", "_declined", "_failed", "_new", "_num_failed",
                 "_num_fetched", "_num_handed_over", "_num_prefetched", "_number", "_resting",
                 "_under_way")  # fmt: skip

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._new: list[_Fetch] = []
        self._under_way: dict[int, _Fetch] = {}
        self._cancels: list[int] = []
        self._coming: dict[bytes, int] = {}
        """Keys of blocks that may come, with how many fetches are to bring them."""
        self._cost = DecayingMean()
        self._failed: set[_Rest] = set()
        """What is to rest from the next request on."""
        self._resting: dict[_Rest, float] = {}
        self._number = self._declined = 0
        self._num_fetched = self._num_failed = self._num_handed_over = self._num_prefetched = 0
        """Blocks that came, fetches without a whole answer, prompts of which a peer has computed some, and blocks that
        came before a request needed them."""

    @property
    def has_new(self) -> bool:
        """Whether a plan is needed to begin a fetch, or to end one."""
        return bool(self._new or self._cancels)

    @property
    def is_fetching(self) -> bool:
        """Whether a launched plan fetches something that was not reported done."""
        return bool(self._under_way)

    @property
    def block_s(self) -> float:
        """Measured seconds of a block; 0 before one came."""
        return self._cost.value

    def filled(self, state: KvHostState, tokens_of: Callable[[int], int]) -> KvHostState:
        """The tier's share of `/state` with what is counted here. tokens_of: of so many blocks."""
        return msgspec.structs.replace(
            state,
            fetched_tokens=tokens_of(self._num_fetched),
            prefetched_tokens=tokens_of(self._num_prefetched),
            failed_fetches=self._num_failed,
            handed_over_prompts=self._num_handed_over,
            handing_over=len(set(self.handing_over)),
        )

    @property
    def unwanted(self) -> set[bytes]:
        """Keys of blocks that may still come although they were forgotten."""
        return {key for fetch in self._under_way.values() for key in fetch.unwanted}

    def is_coming(self, keys: Iterable[bytes]) -> bool:
        """Whether one of these blocks is on its way to the host."""
        return bool(self._coming) and any(key in self._coming for key in keys)

    def may_ask(self, peer: str, now: float) -> bool:
        """Whether a fetch from a peer may begin: there is room for one, and the peer did not fail lately."""
        for failed in self._failed:
            self._resting[failed] = now + REST_S
        self._failed.clear()
        for known in [known for known, until in self._resting.items() if until <= now]:
            del self._resting[known]
        while len(self._resting) > MOST_RESTING:
            del self._resting[next(iter(self._resting))]
        is_known = bool(peer) and (peer, b"") not in self._resting
        return is_known and len(self._new) + len(self._under_way) < MOST_FETCHES

    def lacks(self, peer: str, key: bytes) -> bool:
        """Whether a peer did not give this block lately, as of the last call of `may_ask`."""
        return (peer, key) in self._resting

    def worth_fetching(self, num_blocks: int, num_columns: int, *, token_s: float, load_s: float) -> bool:
        """Whether so many blocks, which make so many columns of a table, come sooner than they are computed, with all
        blocks before them that other fetches bring. Until both are measured, fetch.
        """
        if not (token_s and self._cost.value):
            return True
        fetch_s = self._cost.value * (len(self._coming) + num_blocks) + load_s * num_blocks
        if fetch_s <= token_s * self._block_size * num_columns:
            return True
        self._declined += 1
        return not self._declined % PROBE_EVERY

    def add(self, request: EngineRequest, tokens: bytes, blocks: tuple[PeerBlock, ...], compute_s: float) -> None:
        """Fetch these blocks by the next plan, the most needed first.

        tokens: packed ids of all columns up to the last. compute_s: seconds that computing would take, 0 if unknown.
        A prefetch may take MOST_S: no request waits for it.
        """
        compute_s = 0.0 if request.prefetch else compute_s
        self._number += 1
        order = BlockFetch(
            number=self._number,
            peer=request.kv_peer,
            within_s=_within_s(compute_s, is_prefill=request.kv_peer_computes),
            salt=request.salt,
            tokens=tokens,
            blocks=blocks,
            prefill=_prefill_of(request) if request.kv_peer_computes else None,
        )
        keys = frozenset(block.key for block in blocks)
        self._new.append(_Fetch(request.request_id, order, keys, request.prefetch))
        for key in keys:
            self._coming[key] = self._coming.get(key, 0) + 1

    def begin(self) -> Iterator[BlockFetch]:
        """What the next plan is to fetch."""
        new, self._new = self._new, []
        for fetch in new:
            self._under_way[fetch.order.number] = fetch
            yield fetch.order

    def computed_for(self, request_id: str) -> frozenset[bytes]:
        """Keys of the blocks that a peer computes for a request."""
        orders = (*self._new, *self._under_way.values())
        return next((f.keys for f in orders if f.request_id == request_id and f.order.prefill), frozenset())

    @property
    def handing_over(self) -> Iterator[str]:
        """Ids of the requests whose prompts peers compute."""
        return (f.request_id for f in (*self._new, *self._under_way.values()) if f.order.prefill and not f.is_cancelled)

    def cancel(self, request_id: str) -> None:
        """A request has ended, and no other one waits for what a peer computes for it."""
        for fetch in [fetch for fetch in self._new if fetch.request_id == request_id]:
            self._new.remove(fetch)
            self._come(fetch)
        for number, fetch in self._under_way.items():
            if fetch.request_id == request_id and not fetch.is_cancelled:
                fetch.is_cancelled = True
                self._cancels.append(number)

    def cancels(self) -> list[int]:
        """What the next plan is to end."""
        ended, self._cancels = self._cancels, []
        return [number for number in ended if number in self._under_way]

    def settle(self, result: FetchResult) -> SettledFetch:
        """A fetch ended."""
        fetch = self._under_way.pop(result.number)
        self._come(fetch)
        self._num_fetched += len(result.keys)
        self._num_handed_over += fetch.order.prefill is not None and bool(result.keys)
        if result.seconds > 0 and result.keys:
            self._cost.add(result.seconds, len(result.keys), 1.0 / (1.0 + result.seconds / MEMORY_S))
        if result.failed and not fetch.is_cancelled:
            self._num_failed += 1
            self._failed.add((fetch.order.peer, b""))
        came, first = set(result.keys), fetch.order.blocks[0].key
        if first not in came and not fetch.is_cancelled:
            self._failed.add((fetch.order.peer, first))
        outputs = (self._prefetched(fetch, came),) if fetch.is_prefetch else ()
        return SettledFetch(came - fetch.unwanted, came & fetch.unwanted, outputs)

    def _prefetched(self, fetch: _Fetch, came: set[bytes]) -> EngineOutput:
        self._num_prefetched += len(came)
        columns = {block.column for block in fetch.order.blocks if block.key in came}
        return prefetch_output(fetch.request_id, len(columns) * self._block_size)

    def _come(self, fetch: _Fetch) -> None:
        """Nothing more comes of a fetch."""
        for key in fetch.keys:
            self._coming[key] -= 1
            if not self._coming[key]:
                del self._coming[key]

    def forget(self, owner: bytes = b"") -> None:
        """What comes is of no use. owner: only blocks with this mark."""
        for fetch in (*self._new, *self._under_way.values()):
            fetch.unwanted |= {key for key in fetch.keys if not owner or owner_of_block(key) == owner}


def prefetch_output(request_id: str, num_tokens: int) -> EngineOutput:
    """The one output of a request that wanted blocks alone: how many tokens came."""
    return EngineOutput(request_id=request_id, finish_reason="length", cached_tokens=num_tokens)


def _within_s(compute_s: float, *, is_prefill: bool) -> float:
    """Seconds that a fetch may take. compute_s: that computing here would, 0 if unknown."""
    if is_prefill:
        return kv_transfer.prefill_within_s(compute_s) if compute_s else MOST_S
    return min(MOST_S, max(LEAST_S, compute_s or MOST_S))


def _prefill_of(request: EngineRequest) -> PeerPrefill:
    return PeerPrefill(tenant=request.tenant, weight=request.weight, priority=request.priority)
