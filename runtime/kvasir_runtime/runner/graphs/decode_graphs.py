"""Whole decode steps as CUDA graphs: inputs from the rows, forward pass, head, sampling, and the ids appended to rows.

The runner tries every step; `cudagraph_sizes` decides. A replay needs from the host only which rows take part, and that
only when they changed. Padding is computed in the padding row and its block. A step that cannot be captured is launched
operation by operation; if a capture fails, the reason is logged once and nothing more is captured.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvasir_runtime.core.plan import Chunk
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.runner.graphs import cudagraph_sizes
from kvasir_runtime.runner.graphs.capture import CapturedGraph, GraphCapturer
from kvasir_runtime.runner.graphs.cudagraph_sizes import GraphKey, SamplingKind
from kvasir_runtime.runner.state.device_state import DeviceRowState
from kvasir_runtime.runner.state.device_stream import DeviceStream
from kvasir_runtime.runner.state.row_state import AppendPositions

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplayedIds:
    """ids: (rows,) int64, sampled and appended to their rows; padding is cut off."""

    ids: Tensor


@dataclass(frozen=True, slots=True)
class ReplayedHidden:
    """hidden: (rows, hidden_size), to be sampled from before the next replay; padding is cut off."""

    hidden: Tensor
    positions: AppendPositions


class DecodeGraphs:
    """The graphs of one runner. All that they read keeps its address as long as they live."""

    def __init__(
        self,
        *,
        model: Decoder,
        ops: Ops,
        cache: Tensor,
        rows: DeviceRowState,
        stream: DeviceStream,
        capturer: GraphCapturer,
    ) -> None:
        self._model, self._ops, self._cache = model, ops, cache
        self._rows, self._stream, self._capturer = rows, stream, capturer
        self._sizes = cudagraph_sizes.sizes(rows.padding_row)
        self._captured: dict[GraphKey, CapturedGraph] = {}
        self._row_ids = torch.full((self._sizes[-1],), rows.padding_row, dtype=torch.int64, device=stream.device)
        self._starts = torch.arange(self._sizes[-1] + 1, dtype=torch.int32, device=stream.device)
        self._known_row_ids: list[int] = []
        self.failure = ""
        self.replays: dict[GraphKey, int] = {}

    @property
    def num_bytes(self) -> int:
        """Device memory that the graphs hold."""
        return self._capturer.num_bytes

    @torch.inference_mode()
    def capture_first(self) -> None:
        """Capture what the first requests should not wait for."""
        for key in cudagraph_sizes.at_start(self._sizes):
            if not self._is_captured(key):
                return

    def replay(self, chunks: Sequence[Chunk], kind: SamplingKind) -> ReplayedIds | ReplayedHidden | None:
        """Compute a step by its graph. None where it has none, and nothing was done. The plan is applied by then."""
        key = None if self.failure else cudagraph_sizes.choose_graph(chunks, kind, self._sizes).key
        if key is None or not self._is_captured(key):
            return None
        self._set_row_ids([chunk.row for chunk in chunks], key.size)
        self._rows.prepare_replay(chunks)
        graph = self._captured[key]
        graph.replay()
        self.replays[key] = self.replays.get(key, 0) + 1
        output, ends = (tensor[: len(chunks)] for tensor in graph.outputs)
        if key.output == "hidden":
            return ReplayedHidden(output, AppendPositions(self._row_ids[: len(chunks)], ends))
        self._rows.advance(chunks)
        return ReplayedIds(output)

    def _set_row_ids(self, rows: list[int], size: int) -> None:
        """Send which rows take part in the next replay, with padding up to size."""
        rows = rows + [self._rows.padding_row] * (size - len(rows))
        if self._known_row_ids[:size] != rows:
            self._row_ids[:size].copy_(self._stream.upload(np.array(rows, dtype=np.int64)))
            self._known_row_ids[:size] = rows

    def _is_captured(self, key: GraphKey) -> bool:
        """Whether there is a graph, captured now if need be."""
        if key in self._captured:
            return True
        self._set_row_ids([], key.size)
        try:
            self._captured[key] = self._capturer.capture(lambda: self._body(key))
        except Exception as error:  # noqa: BLE001 - a step that cannot be captured is launched
            self.failure = " ".join(str(error).split()) or type(error).__name__
            LOG.warning("steps are launched without CUDA graphs: %s", self.failure)
            return False
        return True

    def _body(self, key: GraphKey) -> tuple[Tensor, Tensor]:
        """One step of so many rows, each with one token: ids or hidden states, and the ends of the rows.

        Nothing else is kept: the memory of all other tensors is reused by the next capture.
        """
        made = self._rows.captured_input(self._row_ids[: key.size], self._starts[: key.size + 1])
        positions = made.positions
        assert positions is not None
        hidden = self._model.forward(made.batch, self._cache).hidden
        if key.output == "hidden":
            return hidden, positions.ends
        logits = self._model.logits(hidden)
        if key.output == "greedy":
            ids = self._ops.argmax(logits)
        else:
            draws = self._rows.draws(positions, all_greedy=False, any_filter=key.output == "filtered")
            ids = self._ops.sample(logits, draws)
        self._rows.append_captured(ids, positions)
        return ids, positions.ends
