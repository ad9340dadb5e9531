"""Graphs of several ranks with a card each: the others capture what rank 0 captures, and replay it when it does.

A rank that cannot capture ends the group, since the others' graphs wait for it.
"""

from dataclasses import dataclass
from itertools import count

from torch import Tensor

from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.layers.rank_messages import CaptureGraph, EndBody, ReplayGraph
from kvasir_runtime.layers.ranks import LeadingDecoder
from kvasir_runtime.runner.graphs.capture import Body, CapturedGraph, GraphCapturer

_NUMBERS = count()
"""Of the graphs of a process: those of a runner that has gone are not confused with those of the next."""


@dataclass(frozen=True, slots=True)
class _LedGraph:
    graph: CapturedGraph
    number: int
    leader: LeadingDecoder

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Of rank 0."""
        return self.graph.outputs

    def replay(self) -> None:
        """On all ranks."""
        self.leader.tell(ReplayGraph(number=self.number))
        self.graph.replay()


class LedCapturer:
    """A capturer of rank 0, whose graphs all ranks capture and replay."""

    def __init__(self, capturer: GraphCapturer, leader: LeadingDecoder, cache: KvCache) -> None:
        """cache: that the graphs use."""
        self._capturer, self._leader, self._cache = capturer, leader, cache

    @property
    def num_bytes(self) -> int:
        """At rank 0."""
        return self._capturer.num_bytes

    def capture(self, body: Body) -> CapturedGraph:
        """Each run of the body is one of the others' too."""

        def led() -> tuple[Tensor, ...]:
            outputs = body()
            self._leader.tell(EndBody())
            return outputs

        number = next(_NUMBERS)
        with self._leader.ends_group():
            self._leader.use(self._cache)  # which the others make before they capture
            self._leader.tell(CaptureGraph(number=number))
            return _LedGraph(self._capturer.capture(led), number, self._leader)
