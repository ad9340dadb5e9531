"""Which query tokens and which cached positions belong to which sequence of a step; read by the attention kernels.

Built once a step by the runner and shared by all layers. Either the host knows the lengths before the step, or only
the device does (`AttentionMetadata.on_device`), which a recorded graph and a step launched ahead of its tokens need.
"""

from collections.abc import Callable, Hashable, Sequence
from copy import copy
from itertools import pairwise
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

T = TypeVar("T")


class AttentionMetadata:
    """The ragged shape of one step, sequence by sequence in the order of the query tokens.

    query_lens:    tokens of each sequence in this step, >= 1; they are its last ones
    kv_lens:       known positions of each sequence, this step's included; kv_lens[i] >= query_lens[i]
    block_tables:  (sequences, blocks) int64 or int32 on the cache's device; entries past a sequence's last block are
                   not read
    longest_query: no sequence has more query tokens; known on the host in any case, as grids follow from it
    """

    __slots__ = ("_host", "_made", "block_tables", "longest_query")

    def __init__(self, query_lens: Sequence[int], kv_lens: Sequence[int], block_tables: Tensor) -> None:
        self.block_tables = block_tables
        self.longest_query = max(query_lens)
        self._host: tuple[Sequence[int], Sequence[int]] | None = (query_lens, kv_lens)
        self._made: dict[Hashable, Any] = {}

    @classmethod
    def on_device(
        cls,
        starts: Tensor,
        kv_lens: Tensor,
        block_tables: Tensor,
        *,
        longest_query: int,
        host_lens: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> "AttentionMetadata":
        """Lengths on the device. Code that computes on the host reads them back, and waits, unless host_lens has them:
        query_lens and kv_lens, where the host knows them too.

        starts:  (sequences + 1,) int32, index of each sequence's first query token, behind them the number of all
        kv_lens: (sequences,) int32
        Sequences without query tokens are padding and come behind the others, as do query tokens from starts[-1] on:
        neither is computed; their entries of kv_lens and block_tables may be anything, and so may rows of the result.
        Tensors that each replay of a graph overwrites need metadata of their own for the capture: what follows
        from them is memoised.
        """
        made = cls((longest_query,), (longest_query,), block_tables)
        made._host = host_lens
        made._made["lengths"] = (starts, kv_lens)
        return made

    @property
    def num_sequences(self) -> int:
        """Sequences, padding included."""
        return self.block_tables.shape[0]

    @property
    def host_lengths(self) -> tuple[Sequence[int], Sequence[int]] | None:
        """query_lens and kv_lens; None where only the device knows them."""
        return self._host

    @property
    def query_lens(self) -> Sequence[int]:
        """Tokens of each sequence, 0 of padding."""
        return self._on_host()[0]

    @property
    def kv_lens(self) -> Sequence[int]:
        """Known positions of each sequence, 0 of padding."""
        return self._on_host()[1]

    def mask(self, sequence: int, window: int, first: int, chunk: int = 0) -> Tensor:
        """Which cached positions from `first` on a sequence's queries see: (query_len, kv_len - first) bool.

        window, chunk: as in kernels.attention. Made once for all layers of a step.
        """
        key = ("mask", sequence, window, first, chunk)
        return self.once(key, lambda: self._mask(sequence, window, first, chunk))

    def lengths(self) -> tuple[Tensor, Tensor]:
        """For kernels, int32 on the device; host lengths are brought there by one copy a step that nothing waits for.

        First the index of each sequence's first query token and behind them the number of all: (sequences + 1,); second
        kv_lens: (sequences,).
        """
        return self.once("lengths", self._lengths)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What make() gives, made at most once a step: what follows from the metadata alone is shared by all layers."""
        if key not in self._made:
            self._made[key] = make()
        return cast("T", self._made[key])

    def with_tables(self, block_tables: Tensor) -> "AttentionMetadata":
        """The same lengths with the block tables of another cache group; what follows from the lengths is shared."""
        made = copy(self)
        made.block_tables = block_tables
        return made

    def moved(self, device: torch.device) -> "AttentionMetadata":
        """The same with its tensors on another device."""
        tables = self.block_tables.to(device)
        if self._host is not None:
            return AttentionMetadata(*self._host, tables)
        starts, kv_lens = (tensor.to(device) for tensor in self.lengths())
        return AttentionMetadata.on_device(starts, kv_lens, tables, longest_query=self.longest_query)

    def _on_host(self) -> tuple[Sequence[int], Sequence[int]]:
        if self._host is None:
            starts, kv_lens = (tensor.tolist() for tensor in self.lengths())
            query_lens = [end - start for start, end in pairwise(starts)]
            self._host = query_lens, [known if n else 0 for n, known in zip(query_lens, kv_lens, strict=True)]
        return self._host

    def _mask(self, sequence: int, window: int, first: int, chunk: int) -> Tensor:
        num_queries, end, device = self.query_lens[sequence], self.kv_lens[sequence], self.block_tables.device
        query = torch.arange(end - num_queries, end, device=device)[:, None]
        cached = torch.arange(first, end, device=device)[None, :]
        seen = cached <= query
        if window:
            seen &= cached > query - window
        return seen & (cached >= query // chunk * chunk) if chunk else seen

    def _lengths(self) -> tuple[Tensor, Tensor]:
        starts = [0]
        for num_queries in self.query_lens:
            starts.append(starts[-1] + num_queries)
        device = self.block_tables.device
        # Fresh pinned memory each step: what a copy still reads is never written again.
        both = torch.tensor([*starts, *self.kv_lens], dtype=torch.int32, pin_memory=device.type == "cuda")
        both = both.to(device, non_blocking=True)
        return both[: len(starts)], both[len(starts) :]
