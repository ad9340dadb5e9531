"""Collectives of ranks on several hosts: those of a node through its own group, the nodes through their links.

The first rank of each node speaks for it. What is summed goes to rank 0, which adds the parts in the order of the ranks
and gives back the sum, so that it has the bits of one host's. Frames have the length that the operation expects.
"""

import threading
from collections.abc import Callable
from typing import Final, TypeVar

import torch
from torch import Tensor

from kvasir_runtime.errors import RankLostError
from kvasir_runtime.kernels.collectives import Collectives
from kvasir_runtime.nodes.heartbeat import NodeHeartbeat
from kvasir_runtime.nodes.link import LinkError
from kvasir_runtime.nodes.rendezvous import NodeLinks

MOST_BYTES: Final = 1 << 30
"""Of a message of rank 0: the tables of more requests than may run take less."""
REASON_S: Final = 5.0
"""For as long the reason may come later than the end of the steps' connection."""

S = TypeVar("S")
T = TypeVar("T")


class NodeCollectives:
    """One rank's part of a group over nodes; see `kernels.collectives`.

    local: of the ranks of this node, in their order; None where there is one. links: of this node, at its first rank;
    None at the others, which reach other nodes through the first.
    """

    def __init__(self, local: Collectives | None, links: NodeLinks | None, *, node: int, nodes: int) -> None:
        self._local, self._links = local, links
        self._num_local, index = (1, 0) if local is None else (local.ranks, local.rank)
        self.rank, self.ranks = node * self._num_local + index, nodes * self._num_local
        self._why = ""
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._heartbeats = tuple(NodeHeartbeat(link, self.abort) for link in (links.control if links else ()))
        for heartbeat in self._heartbeats:
            heartbeat.begin()

    @property
    def failure(self) -> str:
        """The first reason that this process knows, from another node too."""
        return self._why or (self._local.failure if self._local else "")

    def all_reduce(self, x: Tensor) -> Tensor:
        """Moves each part to rank 0 and the sum to each node."""
        parts = self.gather(x)
        raw = b""
        if self.rank == 0:
            total = parts[0].float()
            for part in parts[1:]:
                total = total + part.float()
            raw = bytes_of(total.to(x.dtype)).tobytes()
        raw = self._broadcast(raw, x.nbytes, exactly=True)
        return torch.frombuffer(bytearray(raw), dtype=x.dtype).view(x.shape) if raw else x

    def gather(self, x: Tensor) -> Tensor:
        """Of a node all parts go in one frame."""
        x = x.contiguous()
        parts = x.unsqueeze(0) if self._local is None else self._of_node(self._local.gather, x)
        if self._links is None or not x.nbytes:
            return x.unsqueeze(0) if self.rank else x.new_empty((self.ranks, *x.shape))
        if self.rank:
            self._linked(lambda links: links.steps[0].send(bytes_of(parts)))
            return x.unsqueeze(0)
        found = x.new_empty((self.ranks, *x.shape))
        found[: self._num_local] = parts
        room, size = bytes_of(found), x.nbytes * self._num_local

        def receive(links: NodeLinks) -> None:
            for node, link in enumerate(links.steps, 1):
                link.receive_into(room[node * size : (node + 1) * size])

        self._linked(receive)
        return found

    def broadcast(self, message: bytes) -> bytes:
        """At most MOST_BYTES."""
        if len(message) > MOST_BYTES:
            raise ValueError(f"a message of {len(message):,} bytes is longer than {MOST_BYTES:,}")
        return self._broadcast(message, MOST_BYTES, exactly=False)

    def end_start(self) -> None:
        """From now on other nodes take this one for lost after 1.75 s of silence."""
        for heartbeat in self._heartbeats:
            heartbeat.end_start()

    def abort(self, why: str) -> None:
        """The reason reaches the first rank of every node."""
        with self._lock:
            if self._why:
                return
            self._why = self.failure or why
        for heartbeat in self._heartbeats:
            heartbeat.say(self._why)
        for link in self._links.steps if self._links else ():
            link.end()
        if self._local is not None:
            self._local.abort(self._why)
        self._ended.set()

    def _broadcast(self, message: bytes, most: int, *, exactly: bool) -> bytes:
        if self._links is not None and self.rank == 0:

            def send(links: NodeLinks) -> None:
                for link in links.steps:
                    link.send(message)

            self._linked(send)
        elif self._links is not None:
            message = self._linked(lambda links: bytes(links.steps[0].receive(most)))
            if exactly and len(message) != most:
                self.abort(f"node 0 sent a sum of {len(message):,} bytes where {most:,} must come")
        if self.failure:
            raise RankLostError(self.failure)
        return message if self._local is None else self._of_node(self._local.broadcast, message)

    def _linked(self, exchange: Callable[[NodeLinks], T]) -> T:
        """What an exchange with other nodes gives. What ends it ends the group, with the reason that comes behind."""
        assert self._links is not None
        if self.failure:
            raise RankLostError(self.failure)
        try:
            return exchange(self._links)
        except LinkError as error:
            self.abort(str(error))
        except OSError as error:
            if not self._ended.wait(REASON_S):
                self.abort(f"the connection to another node has ended: {error}")
        raise RankLostError(self.failure)

    def _of_node(self, operation: Callable[[S], T], given: S) -> T:
        """What an operation of this node's ranks gives. The loss of one ends the group."""
        try:
            return operation(given)
        except RankLostError as error:
            self.abort(str(error))
            raise RankLostError(self.failure) from error


def bytes_of(x: Tensor) -> memoryview:
    """Of a contiguous tensor, which they share."""
    return x.view(-1).view(torch.uint8).numpy().data
