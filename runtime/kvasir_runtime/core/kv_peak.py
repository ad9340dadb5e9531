"""How many blocks running requests will hold together at the worst, if answers become as long as expected.

Used by the admission of requests: without it they are admitted while their prompts fit, and those that grow beyond the
cache are preempted and computed again. Pure.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from kvasir_api import cache_groups
from kvasir_runtime.core.answer_lengths import AnswerLengths
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.kinds.interface import RequestKind
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.running_requests import RunningRequests


class KvClaim(NamedTuple):
    """What a request holds and will take. rest: tokens that each of its rows will still get. held: blocks, with those
    that it takes once whatever its length. tables: block tables that grow by a block for every block_size tokens.
    """

    rest: int
    held: int
    tables: int


def peak(claims: Sequence[KvClaim], block_size: int) -> int:
    """The most blocks that requests hold together, where all grow alike and each gives up everything at its end.

    claims: by rest, the longest first. After Gong et al. 2025 (the scheduler of LightLLM): when the request with the
    k-th longest rest ends, those k are left, and each has added that rest. At most a block in each table more than what
    comes, since where in their last blocks they are is not counted.
    """
    held = tables = most = 0
    for rest, now, growing in claims:
        held += now
        tables += growing
        most = max(most, held + tables * -(-rest // block_size))
    return most


class KvPeak:
    """Whether one more request leaves the peak of those that run at a data-parallel rank within its part of the cache.
    For one plan.

    pool: of that rank. running: of all ranks; they change while requests are admitted. lengths: of answers; nothing is
    refused before they are known.
    """

    __slots__ = ("_claims", "_lengths", "_limits", "_pool", "_rank", "_room", "_running")

    def __init__(
        self,
        limits: Limits,
        pool: BlockPool,
        lengths: AnswerLengths,
        running: RunningRequests,
        data_rank: int = 0,
    ) -> None:
        self._limits, self._pool, self._lengths, self._running = limits, pool, lengths, running
        self._rank = data_rank
        self._claims: list[KvClaim] = []
        """Of those that run, once they are needed."""
        self._room = 0

    def is_far(self, kind: RequestKind, held: int, num_rows: int) -> bool:
        """Whether a request fits even if each grows by the most that is expected of any.

        held: blocks that it takes at once. num_rows: of all that run there.
        """
        if not (num_rows and self._lengths.is_known):
            return True
        growth = -(-self._lengths.most_expected // self._limits.block_size) * len(self._limits.attentions)
        return self._pool.num_pinned + held + (num_rows + kind.num_rows) * growth <= self._pool.num_blocks

    def fits(self, kind: RequestKind, held: int) -> bool:
        """Whether it may run too; then it counts from now on."""
        running = self._here()
        if len(self._claims) != len(running):
            billed = [one.request.billed_blocks for one in running]
            self._claims = list(map(self._claim, running, billed))
            # Pinned blocks that no request is billed for stay: a shared prefix that its first request has left.
            unclaimed = self._pool.num_pinned - self._pool.num_leaving - sum(billed)
            self._room = self._pool.num_blocks - max(0, unclaimed)
        claims = sorted([*self._claims, self._claim(kind, held)], reverse=True)
        if peak(claims, self._limits.block_size) > self._room:
            return False
        self._claims = claims
        return True

    def _here(self) -> Collection[RequestKind]:
        """Those that run at this rank."""
        return self._running.of_rank(self._rank) if self._limits.data_ranks > 1 else self._running.values()

    def _claim(self, kind: RequestKind, held: int) -> KvClaim:
        """Of a request that holds so many blocks."""
        limits, length = self._limits, len(kind.sequence.tokens)
        rest = min(kind.remaining // kind.num_rows, self._lengths.expected(length - kind.request.prompt_tokens))
        growing = sum([attention.keeps_all for attention in limits.attentions])
        if growing < len(limits.attentions):
            columns = -(-(length + rest) // limits.block_size) + length // -limits.block_size
            held += max(0, self._blocks(length + rest) - self._blocks(length) - growing * columns)
        return KvClaim(rest, held, growing * kind.num_rows)

    def _blocks(self, num_tokens: int) -> int:
        """That a sequence of so many tokens holds while it is continued token by token."""
        limits = self._limits
        return cache_groups.blocks_of_sequence(
            limits.attentions, num_tokens, block_size=limits.block_size, chunk_tokens=1
        )
