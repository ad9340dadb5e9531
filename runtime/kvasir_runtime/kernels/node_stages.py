"""Collectives of stages on several hosts, of which each has one: sums stay on a host, hidden states go over the links.

Nodes have links with node 0 alone. It passes on what a stage sends to the one behind it, in threads of its own.
"""

import threading

import torch
from torch import Tensor

from kvasir_runtime.kernels.collectives import Collectives
from kvasir_runtime.kernels.node_collectives import MOST_BYTES, REASON_S, NodeCollectives, bytes_of
from kvasir_runtime.nodes.link import Link, LinkError
from kvasir_runtime.nodes.rendezvous import NodeLinks


class NodeStages(NodeCollectives):
    """One rank's part; see `kernels.collectives.StageCollectives`. A node's ranks are a stage."""

    def __init__(self, local: Collectives | None, links: NodeLinks | None, *, node: int, nodes: int) -> None:
        """As of `NodeCollectives`."""
        super().__init__(local, links, node=node, nodes=nodes)
        self.stages = nodes
        passed_on = zip(links.steps, links.steps[1:], strict=False) if links and not node else ()
        for source, target in passed_on:
            threading.Thread(target=self._pass_on, args=(source, target), daemon=True, name="stages").start()

    def all_reduce(self, x: Tensor) -> Tensor:
        """Of the ranks of this node."""
        return x if self._local is None else self._of_node(self._local.all_reduce, x)

    def gather(self, x: Tensor) -> Tensor:
        """Of the ranks of this node, at its first."""
        return x.unsqueeze(0) if self._local is None else self._of_node(self._local.gather, x)

    def send(self, x: Tensor) -> None:
        """From the first rank of this node, to node 1 or through node 0."""
        if self._links is not None and x.nbytes:
            raw = bytes_of(x.contiguous())
            self._linked(lambda links: links.steps[0].send(raw))

    def receive(self, x: Tensor) -> Tensor:
        """At the first rank of this node, which gives it to the others."""
        if self._links is not None and x.nbytes:
            raw = bytes_of(x)
            self._linked(lambda links: links.steps[-1].receive_into(raw))
        if self._local is None or self.rank < self._num_local:
            return x
        shared = self._of_node(self._local.broadcast, b"" if self._links is None else bytes(bytes_of(x)))
        return torch.frombuffer(bytearray(shared), dtype=x.dtype).view(x.shape) if shared else x

    def _pass_on(self, source: Link, target: Link) -> None:
        """What comes from one node to the next, until the group ends. The leader sends to that node before a step and
        behind it, and never beside what is passed on.
        """
        try:
            while True:
                target.send(memoryview(source.receive(MOST_BYTES)))
        except (LinkError, OSError) as error:
            if not self._ended.wait(REASON_S):
                self.abort(f"the connection to another node has ended: {error}")
