"""Captures the work of a CUDA stream as a graph that is launched in one call. Called by `step_graphs` only."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

Body = Callable[[], tuple[Tensor, ...]]


class CapturedGraph(Protocol):
    """Work that was captured once. outputs: at the same addresses after every replay, valid until the next one."""

    @property
    def outputs(self) -> tuple[Tensor, ...]: ...

    def replay(self) -> None:
        """Run the work again on the current contents of memory; never waits."""


class GraphCapturer(Protocol):
    """Captures bodies. What a body reads from the host is frozen; tensors that it uses keep their addresses."""

    def capture(self, body: Body) -> CapturedGraph:
        """Run a body, then capture it. May wait for the device. Raises RuntimeError where it cannot be captured."""

    @property
    def num_bytes(self) -> int:
        """Device memory that captured graphs hold."""


class _CudaGraph:
    def __init__(self, graph: torch.cuda.CUDAGraph, outputs: tuple[Tensor, ...]) -> None:
        self.outputs = outputs
        self._graph = graph

    def replay(self) -> None:
        """On the current stream."""
        self._graph.replay()


class CudaGraphCapturer:
    """Captures CUDA graphs that share one pool of memory, since they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """By how much all captures together reduced the free memory of the device."""
        return self._num_bytes

    def capture(self, body: Body) -> CapturedGraph:
        """A first run outside of the capture compiles kernels and sets up libraries, which a capture does not allow."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            body()
        current.wait_stream(self._stream)
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        before = torch.cuda.mem_get_info(self._device)[0]
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile: only this thread is captured.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            outputs = body()
        torch.cuda.synchronize(self._device)
        self._num_bytes += max(0, before - torch.cuda.mem_get_info(self._device)[0])
        return _CudaGraph(graph, outputs)
