"""States of layers as they were before steps with drafts, which are put back where a draft was wrong.

Owned by the runner. A layer that has a state in place of keys and values writes it as of the last position of a chunk,
most often over the one that it has read. Its block is copied before, to memory that was counted at the start: a state
for each draft would take as many times the memory, and what a step costs beside it is little.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvasir_api import state_copies
from kvasir_api.options import ServeOptions
from kvasir_runtime.core.plan import Chunk, SampledTokens
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.runner.state.host_state import HostRowState
from kvasir_runtime.runner.state.row_state import RowState
from kvasir_runtime.wire import EngineFacts


class StateSnapshots:
    """Of one runner. facts: with its cache groups. Only rows on the host have drafts."""

    def __init__(self, cache: KvCache, rows: RowState, facts: EngineFacts) -> None:
        self._cache, self._rows = cache, rows
        self._groups = [group for group, attention in enumerate(facts.attentions) if attention.kind == "state"]
        self._num_copies = state_copies.num_rows(facts.attentions, facts.block_bytes) * len(self._groups)
        self._copies: Tensor | None = None
        """(copies, block_bytes) uint8, allocated with the first draft: most models have none."""
        self._kept: dict[int, list[tuple[int, Tensor]]] = {}

    def keep(self, chunks: Sequence[Chunk]) -> None:
        """Copy what chunks with drafts are about to write over; the rows have their block tables by now."""
        self._kept.clear()
        if not self._groups:
            return
        written = {chunk.row: self._written(chunk) for chunk in chunks if chunk.drafts and chunk.start}
        if not any(written.values()):
            return
        if self._copies is None:
            self._copies = torch.empty((self._num_copies, self._cache.blocks.shape[1]), dtype=torch.uint8)
        copies = iter(self._copies)
        for row, blocks in written.items():
            self._kept[row] = [(block, next(copies).copy_(self._cache.blocks[block])) for block in blocks]

    def take_back(self, chunks: Sequence[Chunk], sampled: Sequence[SampledTokens]) -> None:
        """Put back the states of chunks of which not all drafts were right. sampled: of those that sample, in order."""
        if not self._kept:
            return
        entries = iter(sampled)
        for chunk in chunks:
            if chunk.samples and next(entries).accepted < len(chunk.drafts):
                for block, state in self._kept.get(chunk.row, ()):
                    self._cache.blocks[block].copy_(state)
        self._kept.clear()

    def _written(self, chunk: Chunk) -> list[int]:
        """Blocks that a chunk reads and then writes; where it goes on in another block, it writes over none."""
        assert isinstance(self._rows, HostRowState)
        size, (_, tables, _) = self._cache.block_size, self._rows.arrays
        column = (chunk.start - 1) // size
        if column != (chunk.start + chunk.num_tokens - 1) // size:
            return []
        return [int(tables[group, chunk.row, column]) for group in self._groups]


def expected_bytes(facts: EngineFacts, options: ServeOptions) -> int:
    """Of the copies that a runner will hold; 0 where its sequences have no drafts."""
    on_cpu, ranks = facts.device.lower().startswith("cpu"), options.ranks
    attentions, block_bytes = facts.attentions, facts.block_bytes
    return state_copies.expected_bytes(attentions, block_bytes, options.speculation, on_cpu=on_cpu, ranks=ranks)
