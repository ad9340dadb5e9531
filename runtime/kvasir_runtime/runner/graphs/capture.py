"""Recording work of a CUDA stream as a graph that is launched in one call. Called by `decode_graphs` only."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

Body = Callable[[], tuple[Tensor, ...]]


class CapturedGraph(Protocol):
    """Work that was recorded once. outputs: at the same addresses after every replay, until the next one."""

    @property
    def outputs(self) -> tuple[Tensor, ...]: ...

    def replay(self) -> None:
        """Do it again, on what memory holds now; never waits."""


class GraphCapturer(Protocol):
    """Records bodies. What a body reads of the host is frozen; tensors that it reads or writes keep their addresses."""

    def capture(self, body: Body) -> CapturedGraph:
        """Run a body, then record it. May wait for the device. Raises RuntimeError where it cannot be recorded."""

    @property
    def num_bytes(self) -> int:
        """Device memory that recordings hold."""


class _CudaRecorded:
    def __init__(self, graph: torch.cuda.CUDAGraph, outputs: tuple[Tensor, ...]) -> None:
        self.outputs = outputs
        self._graph = graph

    def replay(self) -> None:
        """On the current stream."""
        self._graph.replay()


class CudaGraphCapturer:
    """CUDA graphs that share one pool of memory, since they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """What the device had less of after all captures than before."""
        return self._num_bytes

    def capture(self, body: Body) -> CapturedGraph:
        """Kernels are compiled and libraries set up by a run outside of the recording, where that is allowed."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            body()
        current.wait_stream(self._stream)
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        before = torch.cuda.mem_get_info(self._device)[0]
        graph = torch.cuda.CUDAGraph()
        # Other threads may touch the device meanwhile: only what this one does must be fit for a graph.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            outputs = body()
        torch.cuda.synchronize(self._device)
        self._num_bytes += max(0, before - torch.cuda.mem_get_info(self._device)[0])
        return _CudaRecorded(graph, outputs)
