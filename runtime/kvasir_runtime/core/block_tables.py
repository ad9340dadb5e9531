"""The blocks of one sequence, a table for each cache group, and which of them its tokens still need.

Used by the scheduler and the kinds of requests. All tables count in the same columns of block_size tokens; a group that
does not keep everything has no block in the columns that its window has left. Knows nothing of the pool.
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final

from kvasir_api.cache_groups import FULL, LayerAttention

ABSENT: Final = -1
"""In a table: no block is held there, and no token to come needs one."""
NEVER: Final = 1 << 62


class BlockTables:
    """attentions: of the cache groups. hits: the tables of a prefix hit, as `PrefixIndex.longest` gives them.

    covered: tokens for which every group has what it needs. leaves_at: from this many computed tokens on, `drop_unseen`
    has something to drop; NEVER where every group keeps everything.
    """

    __slots__ = ("_attentions", "_block_size", "_firsts", "by_group", "covered", "leaves_at")

    def __init__(
        self,
        attentions: Sequence[LayerAttention] = (FULL,),
        block_size: int = 1,
        hits: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self._attentions, self._block_size = attentions, block_size
        self.by_group = [list(table) for table in hits] if hits else [[] for _ in attentions]
        self._firsts = [0] * len(attentions)
        self.covered = len(self.by_group[0]) * block_size
        self.leaves_at = 0
        self._pass_unseen(self.covered)

    @property
    def held(self) -> list[int]:
        """All blocks, columns in order."""
        if len(self.by_group) == 1 and self.leaves_at == NEVER:
            return self.by_group[0]
        columns = zip_longest(*self.by_group, fillvalue=ABSENT)
        return [block for column in columns for block in column if block != ABSENT]

    def lacks(self, end: int, near: int | None = None) -> int:
        """Blocks to take before tokens up to end can be computed.

        near: end in groups with a window or chunks, for blocks ahead of the next chunk; then states take none, since
        where that chunk ends is not known.
        """
        if end <= self.covered:
            return 0
        return sum([count for _, count in self._lacking(end, near)])

    def extend(self, end: int, blocks: Iterator[int], near: int | None = None) -> list[tuple[int, tuple[int, ...]]]:
        """Append as many of blocks as `lacks` gave. Returns what each group got that got something, by group."""
        added = []
        for group, count in self._lacking(end, near):
            table = self.by_group[group]
            fresh = tuple([next(blocks) for _ in range(count)])
            if self._attentions[group].kind == "state":  # it is written as of the last token only
                fresh = (ABSENT,) * (self._columns(end) - len(table) - count) + fresh
            table += fresh
            added.append((group, fresh))
        self.covered = min([len(table) for table in self.by_group]) * self._block_size
        return added

    def drop_unseen(self, computed: int) -> list[int]:
        """Blocks that no token from position computed on needs; the tables hold them no longer."""
        dropped = []
        for group, table in enumerate(self.by_group):
            stop = min(self._attentions[group].first_seen(computed) // self._block_size, len(table))
            for column in range(self._firsts[group], stop):
                if table[column] != ABSENT:
                    dropped.append(table[column])
                    table[column] = ABSENT
        self._pass_unseen(computed)
        return dropped

    def fork(self, columns: int | None = None) -> "BlockTables":
        """The same blocks of the first columns, of all by default, for another sequence that computed as much."""
        made = BlockTables(self._attentions, self._block_size)
        made.by_group = [table[:columns] for table in self.by_group]
        made._firsts, made.leaves_at = list(self._firsts), self.leaves_at
        made.covered = min([len(table) for table in made.by_group]) * self._block_size
        return made

    def _columns(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _lacking(self, end: int, near: int | None) -> list[tuple[int, int]]:
        """Groups that lack blocks, and how many."""
        found = []
        for group, attention in enumerate(self._attentions):
            count = self._columns(end if near is None or attention.keeps_all else near) - len(self.by_group[group])
            if attention.kind == "state":
                count = min(count, near is None)
            if count > 0:
                found.append((group, count))
        return found

    def _pass_unseen(self, computed: int) -> None:
        """Note the first column that each group still needs, and when it leaves that."""
        self.leaves_at = NEVER
        for group, attention in enumerate(self._attentions):
            self._firsts[group] = attention.first_seen(computed) // self._block_size
            left = attention.left_at((self._firsts[group] + 1) * self._block_size)
            if left is not None and left < self.leaves_at:
                self.leaves_at = left
