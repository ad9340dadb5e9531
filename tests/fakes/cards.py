"""Ranks with a card each, without cards: what they exchange between cards are operations, which recordings replay.

The ranks are threads, and a card computes at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import torch
from torch import Tensor

from fakes.ranks import group_of
from kvasir_runtime.kernels.collectives import Collectives

_MEMBERS: dict[int, Collectives] = {}
_NUMBERS = count()


@torch.library.custom_op("fakes::sum_over_cards", mutates_args={"x"})
def _sum(x: Tensor, member: int) -> None:
    x.copy_(_MEMBERS[member].all_reduce(x.clone()))


@torch.library.custom_op("fakes::gather_from_cards", mutates_args=())
def _gather(x: Tensor, member: int) -> Tensor:
    return _MEMBERS[member].gather(x).clone()


@torch.library.custom_op("fakes::share_of_cards", mutates_args={"x"})
def _share(x: Tensor, member: int) -> None:
    raw = _MEMBERS[member].broadcast(x.view(torch.uint8).numpy().tobytes())
    x.copy_(torch.frombuffer(bytearray(raw), dtype=x.dtype).view(x.shape))


class FakeCard:
    """One rank's part; see `kernels.collectives.CardCollectives`."""

    device, fuller_bytes = torch.device("cpu"), 0

    def __init__(self, host: Collectives) -> None:
        self.rank, self.ranks = host.rank, host.ranks
        self._host, self._number = host, next(_NUMBERS)
        _MEMBERS[self._number] = host

    @property
    def failure(self) -> str:
        return self._host.failure

    def all_reduce(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        _sum(x, self._number)
        return x

    def gather(self, x: Tensor) -> Tensor:
        gathered: Tensor = _gather(x.contiguous(), self._number)
        return gathered

    def share(self, x: Tensor) -> Tensor:
        _share(x, self._number)
        return x

    def broadcast(self, message: bytes) -> bytes:
        return self._host.broadcast(message)

    def end_start(self) -> None:
        self._host.end_start()

    def abort(self, why: str) -> None:
        self._host.abort(why)


@contextmanager
def cards_of(ranks: int) -> Iterator[tuple[FakeCard, ...]]:
    """So many ranks, as of `fakes.ranks.group_of`."""
    with group_of(ranks) as group:
        yield tuple(FakeCard(member) for member in group)
