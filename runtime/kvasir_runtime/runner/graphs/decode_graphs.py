"""Whole decode steps as recorded graphs: inputs from the rows, forward pass, head, draw, and the ids behind their rows.

The runner asks for every step; `cudagraph_sizes` decides. The only thing that the host says to a replay is which rows
take part, and that only when they changed. Padding computes in the row and the block that are nobody's. A step that
cannot be recorded is launched as before; if recording fails, the reason is logged once and no more is recorded.
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
from kvasir_runtime.runner.state.row_state import ModelInput

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOutput:
    """What a replay gave, padding cut off. ids: (rows,) int64, already behind their rows; None where hidden is given.

    hidden: (rows, hidden_size), to be drawn from before the next replay.
    """

    inputs: ModelInput
    ids: Tensor | None = None
    hidden: Tensor | None = None


class DecodeGraphs:
    """The recordings of one runner. Everything that they read stays where it is as long as they live."""

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
        self._recorded: dict[GraphKey, CapturedGraph] = {}
        self._taking_part = torch.full((self._sizes[-1],), rows.padding_row, dtype=torch.int64, device=stream.device)
        self._starts = torch.arange(self._sizes[-1] + 1, dtype=torch.int32, device=stream.device)
        self._said: list[int] = []
        self.failure = ""
        self.replays: dict[GraphKey, int] = {}

    @property
    def num_bytes(self) -> int:
        """Device memory that recordings hold."""
        return self._capturer.num_bytes

    @torch.inference_mode()
    def capture_first(self) -> None:
        """Record what the first requests should not wait for."""
        for key in cudagraph_sizes.at_start(self._sizes):
            if not self._record(key):
                return

    def replay(self, chunks: Sequence[Chunk], draw: SamplingKind) -> ReplayOutput | None:
        """Compute a step by its recording; None where it has none, and nothing was done. Plans were applied before."""
        key = None if self.failure else cudagraph_sizes.recording(chunks, draw, self._sizes).key
        if key is None or not self._record(key):
            return None
        self._say([chunk.row for chunk in chunks], key.size)
        self._rows.place(chunks)
        recorded = self._recorded[key]
        recorded.replay()
        self.replays[key] = self.replays.get(key, 0) + 1
        count = len(chunks)
        inputs = ModelInput(rows=self._taking_part[:count], ends=recorded.outputs[1][:count])
        if key.part == "hidden":
            return ReplayOutput(inputs=inputs, hidden=recorded.outputs[0][:count])
        self._rows.moved(chunks)
        return ReplayOutput(inputs=inputs, ids=recorded.outputs[0][:count])

    def _say(self, rows: list[int], size: int) -> None:
        """Which rows take part in the next replay; nobody's fill it up to size."""
        rows = rows + [self._rows.padding_row] * (size - len(rows))
        if self._said[:size] != rows:
            self._taking_part[:size].copy_(self._stream.upload(np.array(rows, dtype=np.int64)))
            self._said[:size] = rows

    def _record(self, key: GraphKey) -> bool:
        """Whether there is a recording, or could be made one."""
        if key in self._recorded:
            return True
        self._say([], key.size)
        try:
            self._recorded[key] = self._capturer.capture(lambda: self._body(key))
        except Exception as error:  # noqa: BLE001 - whatever a recording does not take, a launch does
            self.failure = " ".join(str(error).split()) or type(error).__name__
            LOG.warning("steps are launched without CUDA graphs: %s", self.failure)
            return False
        return True

    def _body(self, key: GraphKey) -> tuple[Tensor, ...]:
        """One step of so many rows, each with one token: ids or hidden states, and where the ids belong in their rows.

        Nothing else is kept: what others may overwrite, the next recording takes its memory from.
        """
        inputs = self._rows.captured_input(self._taking_part[: key.size], self._starts[: key.size + 1])
        hidden = self._model.forward(inputs.computed(), self._cache).hidden
        ends = inputs.places()[1]
        if key.part == "hidden":
            return hidden, ends
        logits = self._model.logits(hidden)
        if key.part == "greedy":
            ids = self._ops.argmax(logits)
        else:
            draws = self._rows.draws(inputs, all_greedy=False, any_filter=key.part == "filtered")
            ids = self._ops.sample(logits.float(), draws)
        self._rows.append_captured(ids, inputs)
        return ids, ends
