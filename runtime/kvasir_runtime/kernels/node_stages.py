"""Collectives of stages on several hosts, of which each has one: sums stay on a host, hidden states go over the links.

Nodes have links with node 0 alone. It passes on what a stage sends to the one behind it, in threads of its own. What
rank 0 broadcasts goes from stage to stage too, so that it keeps its place among the hidden states.
"""

import queue
import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kvasir_runtime.kernels.collectives import Collectives
from kvasir_runtime.kernels.node_collectives import MOST_BYTES, REASON_S, NodeCollectives, bytes_of
from kvasir_runtime.nodes.link import Link, LinkError
from kvasir_runtime.nodes.rendezvous import NodeLinks

Give = Callable[[memoryview], None]
"""Takes a frame."""


class NodeStages(NodeCollectives):
    """One rank's part; see `kernels.collectives.StageCollectives`. A node's ranks are a stage."""

    def __init__(self, local: Collectives | None, links: NodeLinks | None, *, node: int, nodes: int) -> None:
        """As of `NodeCollectives`."""
        super().__init__(local, links, node=node, nodes=nodes)
        self.stages = nodes
        self._is_last = node == nodes - 1
        self._results: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        """At rank 0, of the last stage, which never waits for rank 0; None once its connection has ended."""
        if links and not node:
            gives: list[Give] = [*(link.send for link in links.steps[1:]), self._results.put]
            for source, give in zip(links.steps, gives, strict=True):
                threading.Thread(target=self._pass_on, args=(source, give), daemon=True, name="stages").start()

    def all_reduce(self, x: Tensor) -> Tensor:
        """Of the ranks of this node."""
        return x if self._local is None else self._of_node(self._local.all_reduce, x)

    def gather(self, x: Tensor) -> Tensor:
        """Of the ranks of this node, at its first."""
        return x.unsqueeze(0) if self._local is None else self._of_node(self._local.gather, x)

    def holds(self, sizes: Sequence[int]) -> bool:  # noqa: ARG002
        """Any: a thread receives them."""
        return True

    def send(self, x: Tensor) -> None:
        """From the first rank of this node, to node 1 or through node 0."""
        if self._links is not None and x.nbytes:
            raw = bytes_of(x.contiguous())
            self._linked(lambda links: links.steps[0].send(raw))

    def receive(self, x: Tensor) -> Tensor:
        """At the first rank of this node, which gives it to the others."""
        if self._links is not None and x.nbytes:
            raw = bytes_of(x)
            self._linked(lambda links: links.steps[0].receive_into(raw) if self.rank else self._take(links, raw))
        if self._local is None or self.rank < self._num_local:
            return x
        shared = self._of_node(self._local.broadcast, b"" if self._links is None else bytes(bytes_of(x)))
        return torch.frombuffer(bytearray(shared), dtype=x.dtype).view(x.shape) if shared else x

    def _broadcast(self, message: bytes, most: int, *, exactly: bool) -> bytes:  # noqa: ARG002
        """From stage to stage, each of which sends it on before it computes."""
        if self._links is not None and self.rank:
            message = self._linked(lambda links: bytes(links.steps[0].receive(most)))
        if self._links is not None and not self._is_last:
            self._linked(lambda links: links.steps[0].send(message))
        return message if self._local is None else self._of_node(self._local.broadcast, message)

    def _take(self, links: NodeLinks, raw: memoryview) -> None:
        """The next result of the last stage, at rank 0."""
        found = self._results.get()
        if found is None:
            raise ConnectionResetError("another node has closed the connection")
        if len(found) != len(raw):
            raise LinkError(f"{links.steps[-1].peer} sent {len(found):,} bytes where {len(raw):,} must come")
        raw[:] = found

    def _pass_on(self, source: Link, give: Give) -> None:
        """What comes from one node, to the next or to this process, until the group ends."""
        try:
            while True:
                give(memoryview(source.receive(MOST_BYTES)))
        except (LinkError, OSError) as error:
            if not self._ended.wait(REASON_S):
                self.abort(f"the connection to another node has ended: {error}")
        finally:
            self._results.put(None)
