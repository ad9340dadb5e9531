"""Routed experts of a rank that also has copies of other ranks' experts. Made by `layers.expert_copies`.

The rows of an expert go to the ranks that have it in turn, by the place of their token in the step and the expert's
number. So which rank computes a row follows from that row alone: were a router to give other bits on another host, only
that token would differ, as it does where no expert is copied.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kvasir_runtime.kernels.moe import GroupedExperts

Copies = tuple[tuple[int, ...], ...]
"""By rank, the experts that it has beside its own."""


class CopiedExperts:
    """See `kernels.moe`: the sum of all ranks' results is that of all experts.

    tokens: (experts,) int64, at rank 0 those that went to each since they were last set to 0. copies: in use.
    """

    def __init__(self, own: GroupedExperts, homes: Sequence[int], rank: int, ranks: int) -> None:
        """own: of this rank. homes: of each expert, the rank whose own it is."""
        self.tokens = np.zeros(len(homes), np.int64)
        self._own, self._homes, self._rank = own, homes, rank
        self.use(((),) * ranks, None)

    def use(self, copies: Copies, others: GroupedExperts | None) -> None:
        """From now on. copies: of all ranks. others: the experts of which this rank has copies, in their order."""
        holders = [
            [home, *(rank for rank, own in enumerate(copies) if expert in own)]
            for expert, home in enumerate(self._homes)
        ]
        mine = [expert for expert, home in enumerate(self._homes) if home == self._rank]
        mine += copies[self._rank]
        # Of each turn and expert, where this rank has it among its own and copies; behind them what others compute.
        self._places = torch.full((max(map(len, holders)), len(holders)), len(mine))
        for place, expert in enumerate(mine):
            self._places[holders[expert].index(self._rank), expert] = place
        self._num_holders, self._num_places = torch.tensor(list(map(len, holders))), len(mine)
        self.copies, self._others = copies, others

    def __call__(self, x: Tensor, read: Tensor | None = None) -> Tensor:
        """(x, read) -> out, of the rows of this rank."""
        chosen, share = self._own.choice(x)
        if self._rank == 0:
            self.tokens += torch.bincount(chosen.view(-1), minlength=len(self.tokens)).numpy()
        turns = (torch.arange(len(chosen)).unsqueeze(1) + chosen) % self._num_holders[chosen]
        places = self._places[turns, chosen].view(-1)
        counts = torch.bincount(places, minlength=self._num_places + 1)[: self._num_places]
        order, own = places.argsort(stable=True)[: int(counts.sum())], len(self._own.down)
        rows = int(counts[:own].sum())
        parts = [(self._own, order[:rows], counts[:own])]
        if self._others is not None:
            parts.append((self._others, order[rows:], counts[own:]))
        return self._own.summed(x if read is None else read, share, parts)
