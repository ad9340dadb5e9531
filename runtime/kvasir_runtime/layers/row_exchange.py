"""What data-parallel ranks exchange where experts are: hidden states of all of them, and the sums of what experts give.

Made by `decoder`, and told by `data_parallel` before each step whose rows are whose.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvasir_runtime.kernels.collectives import Collectives
from kvasir_runtime.kernels.moe import RoutedExperts

NOTHING = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRows:
    """tokens, rows: (own,) int64, which of the tokens of a step, and which of its wanted rows, are a rank's own.
    num_tokens, num_rows: of all ranks.
    """

    tokens: Tensor
    rows: Tensor
    num_tokens: int
    num_rows: int


class RowExchange:
    """Moves rows of hidden states between ranks: those of all tokens of a step, or of the wanted rows where only these
    are left (is_last). All ranks use it in the same order.
    """

    def __init__(self, group: Collectives) -> None:
        self._group = group
        self._mine = OwnRows(tokens=NOTHING, rows=NOTHING, num_tokens=0, num_rows=0)

    def use(self, mine: OwnRows) -> None:
        """From now on this is what this rank has of the step."""
        self._mine = mine

    def gathered(self, x: Tensor, *, is_last: bool) -> Tensor:
        """(all, width), from this rank's rows and those of all others: exact, the sum of each row and zeros."""
        own, total = self._places(is_last=is_last)
        whole = x.new_zeros(total, x.shape[1])
        return self._group.all_reduce(whole.index_copy_(0, own, x)) if total else whole

    def kept(self, x: Tensor, *, is_last: bool) -> Tensor:
        """(own, width): of the sum of all ranks' x, (all, width), the rows of this one."""
        own, total = self._places(is_last=is_last)
        return self._group.all_reduce(x).index_select(0, own) if total else x

    def _places(self, *, is_last: bool) -> tuple[Tensor, int]:
        """Which rows are this rank's, and how many there are."""
        mine = self._mine
        return (mine.rows, mine.num_rows) if is_last else (mine.tokens, mine.num_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangedExperts:
    """Routed experts of which each rank has some, or a part of each, for the tokens of all ranks. is_last: those of the
    last layer, which only wanted rows go through.
    """

    routed: RoutedExperts
    exchange: RowExchange
    is_last: bool

    def __call__(self, x: Tensor, read: Tensor | None = None) -> Tensor:
        """(own, hidden) -> (own, width)."""
        gathered = self.exchange.gathered(x, is_last=self.is_last)
        if not gathered.shape[0]:
            return x if read is None else read
        of_all = None if read is None else self.exchange.gathered(read, is_last=self.is_last)
        return self.exchange.kept(self.routed(gathered, of_all), is_last=self.is_last)
