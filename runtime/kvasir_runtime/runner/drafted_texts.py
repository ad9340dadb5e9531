"""Texts of rows in the tokens of a draft model of another vocabulary: their positions, and the blocks that hold them.

Texts have blocks of their own, since they have another number of tokens than the rows. Blocks that are full and whose
tokens stay are found again by later texts of the same tenant, as far as the runner's model shared what its own blocks
hold: so requests that are to share nothing share nothing here. Knows no tensors and no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvasir_api.hashes import extend_block_hashes
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.plan import Join
from kvasir_runtime.runner.vocabulary_pair import WINDOW, AlignedText, VocabularyPair

CHANGING: Final = 2 * WINDOW
"""Tokens at the end of a text that may become others; blocks before them may be shared."""


@dataclass(slots=True, eq=False)
class DraftedText:
    """One text. joined: tokens of the model that its row joined with; shared: of them those that a prefix hit found.

    root: parent of its first block, of the tenant. num_read: positions whose keys and values are there; of the last the
    tokens may become others. num_kept: its first blocks, which are shared or may be. is_sought: whether further tokens
    that the model shares may show that more is read.
    """

    text: AlignedText
    joined: int
    shared: int
    root: bytes
    num_read: int = 0
    num_kept: int = 0
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    is_sought: bool = True

    @property
    def num_ids(self) -> int:
        """Positions of the text."""
        return len(self.text.pair.theirs.prefix) + len(self.text.ids)


class DraftedTexts:
    """One for a runner."""

    def __init__(
        self, pair: VocabularyPair, ids: NDArray[np.int32], tables: NDArray[np.int64], block_size: int, num_blocks: int
    ) -> None:
        """ids: (rows, positions); tables: (rows, blocks) of each row. Both are written here."""
        self._pair, self._ids, self._tables, self._block_size = pair, ids, tables, block_size
        self._pool = BlockPool(num_blocks)
        self._texts: dict[int, DraftedText] = {}

    def find(self, row: int) -> DraftedText | None:
        """None of a row that has no drafts."""
        return self._texts.get(row)

    def join(self, join: Join) -> None:
        """A row that has left begins with a text."""
        self._texts[join.row] = DraftedText(AlignedText(self._pair), len(join.tokens), join.computed_tokens, join.root)

    def leave(self, row: int) -> None:
        """A row has no text any more. A row without one is ignored."""
        if (text := self._texts.pop(row, None)) is not None:
            self._pool.release(text.blocks)

    def follow(self, row: int, tokens: Sequence[int]) -> None:
        """Take in tokens of the model that follow those that a row has. tokens: only such as are certain."""
        one = self._texts[row]
        num_shared = max(0, one.shared - one.text.num_tokens)
        if shared := tokens[:num_shared]:
            self._extend(row, one, shared)
            self._find_shared(row, one)
        one.is_sought &= len(tokens) < num_shared
        if further := tokens[num_shared:]:
            self._extend(row, one, further)

    def reserve(self, row: int, num_positions: int) -> bool:
        """Take the blocks that so many positions of a row need, and that are written from the first unread one on.

        False where there are none: nothing is taken.
        """
        one, first = self._texts[row], self._texts[row].num_read // self._block_size
        kept = one.blocks[:first] if first < one.num_kept else one.blocks
        lacks = -(-num_positions // self._block_size) - len(kept)
        if not self._pool.can_take(max(0, lacks)):
            return False
        if first < one.num_kept:  # others may read what would be written over
            self._pool.release(one.blocks[first:])
            one.num_kept = first
            one.num_read = min(one.num_read, first * self._block_size)
            one.hashes = one.hashes[:first]
        one.blocks = [*kept, *self._pool.take(max(0, lacks))]
        self._pool.lost.clear()
        one.is_sought = False
        self._tables[row, len(kept) : len(one.blocks)] = one.blocks[len(kept) :]
        return True

    def publish(self, row: int) -> None:
        """Let later texts find the blocks of a row that are full, read, and whose tokens stay."""
        one = self._texts[row]
        stays = min(one.num_read, one.num_ids - CHANGING) // self._block_size
        if stays <= one.num_kept:
            return
        self._hash(row, one, stays)
        for place in range(one.num_kept, stays):
            self._pool.publish(one.blocks[place], one.hashes[place])
        one.num_kept = stays

    def _extend(self, row: int, one: DraftedText, tokens: Sequence[int]) -> None:
        begins = max(0, one.num_ids - CHANGING) if one.text.num_tokens else 0
        one.text.follow(list(tokens))
        prefix = self._pair.theirs.prefix
        ids = [*prefix[begins:], *one.text.ids[max(0, begins - len(prefix)) :]]
        del ids[max(0, self._ids.shape[1] - begins) :]
        known = self._ids[row, begins : begins + len(ids)]
        differs = np.flatnonzero(known != ids)
        same = begins + (int(differs[0]) if len(differs) else len(ids))
        one.num_read = min(one.num_read, same)
        known[:] = ids

    def _find_shared(self, row: int, one: DraftedText) -> None:
        """Share further blocks of a text of which nothing else is read. All its tokens are such as the model shares."""
        if not one.is_sought or one.num_read < one.num_kept * self._block_size:
            one.is_sought = False
            return
        stays = max(0, min(one.num_ids - CHANGING, self._ids.shape[1])) // self._block_size
        self._hash(row, one, stays)
        found = list[int]()
        for block_hash in one.hashes[one.num_kept :]:
            if (block := self._pool.find(block_hash)) is None:
                break
            found.append(block)
        self._pool.share(found)
        one.is_sought = one.num_kept + len(found) >= stays
        self._tables[row, one.num_kept : one.num_kept + len(found)] = found
        one.blocks += found
        one.num_kept += len(found)
        one.num_read = one.num_kept * self._block_size
        del one.hashes[one.num_kept :]

    def _hash(self, row: int, one: DraftedText, num_blocks: int) -> None:
        """Hashes of so many first blocks."""
        done, fresh = len(one.hashes), list[bytes]()
        ids = self._ids[row, done * self._block_size : num_blocks * self._block_size].tolist()
        root = one.hashes[-1] if done else one.root
        extend_block_hashes(fresh, ids, root=root, block_size=self._block_size)
        one.hashes += fresh
