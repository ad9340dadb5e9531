"""Which query tokens and which cached positions belong to which sequence of a step; read by the attention kernels.

Built once a step by the runner and shared by all layers. Lengths are host integers: they are known before the step.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

T = TypeVar("T")


class Spans:
    """The ragged shape of one step, sequence by sequence in the order of the query tokens.

    query_lens:   tokens of each sequence in this step, >= 1; they are its last ones
    kv_lens:      known positions of each sequence, this step's included; kv_lens[i] >= query_lens[i]
    block_tables: (sequences, blocks) int64 on the cache's device; entries past a sequence's last block are not read
    first_blocks: first block id of a sequence whose blocks are consecutive ids, so that its cache is one slice; else -1
    """

    __slots__ = ("_made", "block_tables", "first_blocks", "kv_lens", "query_lens")

    def __init__(
        self, query_lens: Sequence[int], kv_lens: Sequence[int], block_tables: Tensor, first_blocks: Sequence[int]
    ) -> None:
        self.query_lens = query_lens
        self.kv_lens = kv_lens
        self.block_tables = block_tables
        self.first_blocks = first_blocks
        self._made: dict[Hashable, Any] = {}

    def mask(self, sequence: int, window: int, first: int) -> Tensor:
        """Which cached positions from `first` on a sequence's queries see: (query_len, kv_len - first) bool.

        window: positions that a query sees, itself included; 0 sees all before it. Made once for all layers of a step.
        """
        return self.once(("mask", sequence, window, first), lambda: self._mask(sequence, window, first))

    def lengths(self) -> tuple[Tensor, Tensor]:
        """For kernels, int32 on the device, brought there by one copy a step that nothing waits for.

        First the index of each sequence's first query token and behind them the number of all: (sequences + 1,); second
        kv_lens: (sequences,).
        """
        return self.once("lengths", self._lengths)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What make() gives, made at most once a step: what follows from the spans alone is shared by all layers."""
        if key not in self._made:
            self._made[key] = make()
        return cast("T", self._made[key])

    def _mask(self, sequence: int, window: int, first: int) -> Tensor:
        num_queries, end, device = self.query_lens[sequence], self.kv_lens[sequence], self.block_tables.device
        query = torch.arange(end - num_queries, end, device=device)[:, None]
        cached = torch.arange(first, end, device=device)[None, :]
        seen = cached <= query
        return seen & (cached > query - window) if window else seen

    def _lengths(self) -> tuple[Tensor, Tensor]:
        starts = [0]
        for num_queries in self.query_lens:
            starts.append(starts[-1] + num_queries)
        device = self.block_tables.device
        # Fresh pinned memory each step: what a copy still reads is never written again.
        both = torch.tensor([*starts, *self.kv_lens], dtype=torch.int32, pin_memory=device.type == "cuda")
        both = both.to(device, non_blocking=True)
        return both[: len(starts)], both[len(starts) :]
