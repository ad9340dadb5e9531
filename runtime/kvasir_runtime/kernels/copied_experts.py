"""Routed experts of a rank that also has copies of other ranks' experts, and computes its part of the rows of both.

Every rank chooses experts for all tokens, with the same bits, so all know which rank computes which rows without an
exchange. Built by `layers.expert_copies`, which says what is copied.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from kvasir_runtime.kernels.expert_division import Copies, RowRange, divided
from kvasir_runtime.kernels.grouped_experts import ExpertRows, GroupedExperts
from kvasir_runtime.kernels.moe import Routing


class CopiedExperts:
    """See `kernels.moe`: the sum of all ranks' results is that of all experts.

    tokens: (experts,) float64, that went to each, of earlier steps less. rows: (ranks,) int64, that each computed.
    """

    def __init__(self, own: GroupedExperts, homes: Sequence[range], rank: int, window: int) -> None:
        """own: of this rank. homes: of each rank, the experts that are its own. window: steps that count, about."""
        self.tokens, self.rows = np.zeros(homes[-1].stop), np.zeros(len(homes), dtype=np.int64)
        self.copies: Copies = ((),) * len(homes)
        self._own, self._homes, self._rank = own, homes, rank
        self._kept = 1 - 1 / window
        self._others: GroupedExperts | None = None

    @property
    def routing(self) -> Routing:
        """Of this rank's own experts."""
        return self._own.routing

    def use(self, copies: Copies, others: GroupedExperts | None) -> None:
        """From now on. copies: of all ranks. others: the experts of which this rank has copies, in their order."""
        self.copies, self._others = copies, others

    def __call__(self, x: Tensor, read: Tensor | None = None) -> Tensor:
        """(x, read) -> out, of the rows of this rank."""
        chosen, share = self._own.choice(x)
        found = torch.bincount(chosen.view(-1), minlength=len(self.tokens))
        self.tokens *= self._kept
        self.tokens += found.numpy()
        counts: list[int] = found.tolist()
        loads, ranges = divided(counts, self._homes, self.copies)
        self.rows += np.asarray(loads)
        order = chosen.view(-1).argsort(stable=True)
        first = np.concatenate(([0], found.numpy().cumsum())).tolist()
        computed = [_taken(self._own, self._homes[self._rank], self._rank, counts, first, ranges, order)]
        if self._others is not None:
            held = self.copies[self._rank]
            computed.append(_taken(self._others, held, self._rank, counts, first, ranges, order))
        return self._own.summed(x if read is None else read, share, computed)


def _taken(
    experts: GroupedExperts,
    held: Iterable[int],
    rank: int,
    counts: Sequence[int],
    first: Sequence[int],
    ranges: dict[int, tuple[RowRange, ...]],
    order: Tensor,
) -> ExpertRows:
    """The rows of a rank. held: its experts in the order of their matrices. first: place in order of each expert's."""
    own: list[tuple[int, int]] = []
    for expert in held:
        whole = (RowRange(rank, 0, counts[expert]),)
        mine = next((one for one in ranges.get(expert, whole) if one.rank == rank), RowRange(rank, 0, 0))
        own.append((first[expert] + mine.first, first[expert] + mine.end))
    parts = [order[begin:end] for begin, end in own if begin < end]
    places = torch.cat(parts) if parts else order[:0]
    return ExpertRows(experts.given, places, torch.tensor([end - begin for begin, end in own]))
