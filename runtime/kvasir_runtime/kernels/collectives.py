"""Sums, gathers and broadcasts between the processes that compute one model together; `Ops.collectives` is one of them.

The processes of a model are its ranks, from 0. All of them call the same operations in the same order; each returns
once all have called it, but where there are stages.
"""

from collections.abc import Sequence
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from kvasir_runtime.kernels.linear import Linear


class Collectives(Protocol):
    """One rank's part. Every operation raises RankLostError after `abort`."""

    @property
    def rank(self) -> int:
        """This process, 0 .. ranks - 1."""

    @property
    def ranks(self) -> int:
        """Processes, at least 2."""

    @property
    def failure(self) -> str:
        """Why the group was aborted, in one line; "" while it was not, or where another process aborted it."""

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all ranks' x, of equal shape and floating type; in float32 in the order of the ranks and rounded
        once, so that all ranks have the same bits. x may be overwritten.
        """

    def gather(self, x: Tensor) -> Tensor:
        """(ranks, *x.shape), every rank's x, at rank 0; elsewhere (1, *x.shape), its own."""

    def broadcast(self, message: bytes) -> bytes:
        """What rank 0 gave; what the others give is ignored. They wait without computing."""

    def end_start(self) -> None:
        """Nothing takes this process long from now on: others need not wait for it as they do while it starts."""

    def abort(self, why: str) -> None:
        """End all operations of all ranks, those that wait too. Any thread may call it; the first reason counts."""


@runtime_checkable
class StageCollectives(Collectives, Protocol):
    """Of ranks in stages, which follow one another in order: the first of `ranks / stages` ranks are stage 0, and so
    on. Sums and gathers are of the ranks of one stage; the broadcast is of all.

    Who broadcasts or sends does not wait for those who receive, but for room: rank 0 may be several steps ahead of the
    last stage.
    """

    @property
    def stages(self) -> int:
        """At least 2."""

    def send(self, x: Tensor) -> None:
        """To all ranks of the next stage; of the last stage to rank 0. All ranks of a stage have the same x, and the
        first one's goes.
        """

    def holds(self, sizes: Sequence[int]) -> bool:
        """At rank 0: whether the last stage can send tensors of so many bytes before rank 0 receives any of them."""

    def receive(self, x: Tensor) -> Tensor:
        """What `send` gives of the stage before, of the shape and type of x, in x or another tensor. At rank 0 what the
        last stage gives; at other ranks of stage 0 any numbers.
        """


@runtime_checkable
class CardCollectives(Collectives, Protocol):
    """Of ranks with a card each: tensors go from card to card, and the operations with tensors are enqueued on the
    current stream and return at once. In a captured graph they are captured. Only messages are the hosts'.

    Sums are in the order and the type of the library that adds, on all ranks with the same bits.
    """

    @property
    def device(self) -> torch.device:
        """This rank's card."""

    @property
    def fuller_bytes(self) -> int:
        """At rank 0: by how much another rank's card has less free than its own."""

    def share(self, x: Tensor) -> Tensor:
        """Rank 0's x, at the others in place of theirs, of the same shape and type; contiguous."""


def summed(layer: Linear, group: Collectives | None) -> Linear:
    """A layer of which each rank has a part, whose results are added; the layer itself where one process has it all."""
    return layer if group is None else partial(_summed, layer, group)


def _summed(layer: Linear, group: Collectives, x: Tensor) -> Tensor:
    return group.all_reduce(layer(x))
