"""Whole steps as CUDA graphs: inputs from the rows, forward pass, head, sampling, and the ids appended to rows.

The runner tries every step; `cudagraph_sizes` decides. A replay needs from the host only which rows take part, how many
tokens each computes and which of them sample. Padding is computed in the padding row and its block. Graphs are captured
at start and when nothing is served, never for a step that waits: a step without a graph is launched operation by
operation. If a capture fails, the reason is logged once and nothing more is captured; those that there are stay.
"""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvasir_runtime.core.plan import Chunk
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.runner.graphs import cudagraph_sizes
from kvasir_runtime.runner.graphs.capture import CapturedGraph, GraphCapturer
from kvasir_runtime.runner.graphs.cudagraph_sizes import CapturedKeys, GraphKey, SamplingKind
from kvasir_runtime.runner.state.device_state import DeviceRowState
from kvasir_runtime.runner.state.device_stream import DeviceStream
from kvasir_runtime.runner.state.row_state import AppendPositions, ModelInput

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplayedIds:
    """ids: (samples,) int64, sampled and appended to their rows; padding is cut off."""

    ids: Tensor


@dataclass(frozen=True, slots=True)
class ReplayedHidden:
    """hidden: (samples, hidden_size), to be sampled from before the next replay; padding is cut off."""

    hidden: Tensor
    positions: AppendPositions


class StepGraphs:
    """The graphs of one runner. All that they read keeps its address as long as they live.

    max_tokens: of a step and of a sequence.
    """

    def __init__(
        self,
        *,
        model: Decoder,
        ops: Ops,
        cache: KvCache,
        rows: DeviceRowState,
        stream: DeviceStream,
        capturer: GraphCapturer,
        max_tokens: int,
    ) -> None:
        self._model, self._ops, self._cache = model, ops, cache
        self._rows, self._stream, self._capturer = rows, stream, capturer
        self._first, rest = cudagraph_sizes.all_keys(rows.padding_row, max_tokens)
        self._rest = deque(rest)
        self._keys = CapturedKeys()
        self._captured: dict[GraphKey, CapturedGraph] = {}
        most = max(key.size for key in self._first)
        self._row_ids = torch.full((most,), rows.padding_row, dtype=torch.int64, device=stream.device)
        self._starts = torch.arange(most + 1, dtype=torch.int32, device=stream.device)
        self._known_row_ids: list[int] = []
        # Of steps with prompts: one sequence more, to which the padded tokens belong.
        self._mixed_row_ids = torch.full((2, most + 1), rows.padding_row, dtype=torch.int64, device=stream.device)
        self._mixed_starts = torch.zeros(most + 2, dtype=torch.int32, device=stream.device)
        self._largest_bytes = 0
        self.failure = ""
        self.replays: dict[GraphKey, int] = {}

    @property
    def num_bytes(self) -> int:
        """Device memory that the graphs hold."""
        return self._capturer.num_bytes

    @property
    def expected_bytes(self) -> int:
        """Device memory that they will hold once all are captured: each of the rest at most as much as one of the first
        took, but for those that set up the memory that all share.
        """
        return self.num_bytes + len(self._rest) * self._largest_bytes

    @property
    def has_more(self) -> bool:
        """Whether there are graphs to be captured while nothing is served."""
        return bool(self._rest)

    @torch.inference_mode()
    def capture_first(self) -> None:
        """Capture what the first requests should not be launched without."""
        set_up = set()
        for key in self._first:
            before = self._capturer.num_bytes
            if not self._capture(key):
                return
            kind = (key.output, key.tokens > 0)
            if kind in set_up:
                self._largest_bytes = max(self._largest_bytes, self._capturer.num_bytes - before)
            set_up.add(kind)

    @torch.inference_mode()
    def capture_next(self) -> None:
        """Capture one more, while nothing is launched. There must be one."""
        self._capture(self._rest.popleft())

    def replay(self, chunks: Sequence[Chunk], kind: SamplingKind) -> ReplayedIds | ReplayedHidden | None:
        """Compute a step by its graph. None where it has none, and nothing was done. The plan is applied by then."""
        key = self._keys.choose(chunks, kind).key
        if key is None:
            return None
        sampling = [chunk for chunk in chunks if chunk.samples]
        if key.tokens:
            others = [chunk for chunk in chunks if not chunk.samples]
            self._set_mixed_rows(key, [*sampling, *others], len(sampling))
        else:
            self._set_row_ids([chunk.row for chunk in chunks], key.size)
        self._rows.prepare_replay(chunks)
        graph = self._captured[key]
        graph.replay()
        self.replays[key] = self.replays.get(key, 0) + 1
        output, ends = (tensor[: len(sampling)] for tensor in graph.outputs)
        if key.output == "hidden":
            rows = self._mixed_row_ids[1] if key.tokens else self._row_ids
            return ReplayedHidden(output, AppendPositions(rows[: len(sampling)], ends))
        self._rows.advance(sampling)
        return ReplayedIds(output)

    def _set_row_ids(self, rows: list[int], size: int) -> None:
        """Send which rows take part in the next replay, with padding up to size."""
        rows = rows + [self._rows.padding_row] * (size - len(rows))
        if self._known_row_ids[:size] != rows:
            self._row_ids[:size].copy_(self._stream.upload(np.array(rows, dtype=np.int64)))
            self._known_row_ids[:size] = rows

    def _set_mixed_rows(self, key: GraphKey, chunks: Sequence[Chunk], num_samples: int) -> None:
        """Send the sequences of the next replay, those that sample first: rows, where their tokens begin, and the rows
        that their samples are appended to. The padding row has the tokens that are left, and the samples of the others.
        """
        room, padding = key.size + 1, self._rows.padding_row
        rows = np.full((2, room), padding, dtype=np.int64)
        rows[0, : len(chunks)] = [chunk.row for chunk in chunks]
        rows[1, :num_samples] = rows[0, :num_samples]
        starts = np.full(room + 1, key.tokens, dtype=np.int32)
        starts[: len(chunks) + 1] = np.cumsum([0, *(chunk.num_tokens for chunk in chunks)])
        self._mixed_row_ids[:, :room].copy_(self._stream.upload(rows))
        self._mixed_starts[: room + 1].copy_(self._stream.upload(starts))

    def _capture(self, key: GraphKey) -> bool:
        """Whether the graph could be captured."""
        if key.tokens:
            self._set_mixed_rows(key, [], 0)
        else:
            self._set_row_ids([], key.size)
        try:
            self._captured[key] = self._capturer.capture(lambda: self._body(key))
        except Exception as error:
            if self._model.failure:  # other ranks have ended
                raise
            self._rest.clear()  # a step that cannot be captured is launched
            why = " ".join(str(error).split()) or type(error).__name__
            if self._captured:
                LOG.warning("no more CUDA graphs are captured than the %d that there are: %s", len(self._captured), why)
            else:
                self.failure = why
                LOG.warning("steps are launched without CUDA graphs: %s", why)
            return False
        self._keys.add(key)
        return True

    def _input(self, key: GraphKey) -> ModelInput:
        if key.tokens:
            room = key.size + 1
            return self._rows.captured_mixed_input(
                self._mixed_row_ids[:, :room], self._mixed_starts[: room + 1], key.tokens
            )
        return self._rows.captured_input(self._row_ids[: key.size], self._starts[: key.size + 1])

    def _body(self, key: GraphKey) -> tuple[Tensor, Tensor]:
        """One step of so many rows: ids or hidden states of the last token of each, and the ends of the rows.

        Nothing else is kept: the memory of all other tensors is reused by the next capture.
        """
        made = self._input(key)
        positions = made.positions
        assert positions is not None
        hidden = self._model.forward(made.batch, self._cache).hidden
        if key.output == "hidden":
            return hidden, positions.ends
        if key.output == "greedy":
            ids = self._model.greedy_ids(hidden)
        else:
            draws = self._rows.draws(positions, all_greedy=False, any_filter=key.output == "filtered")
            ids = self._ops.sample(self._model.logits(hidden), draws)
        self._rows.append_captured(ids, positions)
        return ids, positions.ends
