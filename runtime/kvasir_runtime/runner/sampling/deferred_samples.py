"""Hidden states behind samples that were deferred, so that no token is computed twice.

Owned by the runner. A sample whose mask is late is planned again together with its token. The token's keys and values,
or the state with it, are there already, so it is left out of that forward pass and the head takes what was kept. What
was planned behind the sample before it was known to be late is left out too: its token is not known.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from kvasir_api.cache_groups import LayerAttention
from kvasir_runtime.core.plan import Chunk, StepPlan
from kvasir_runtime.kernels.decoder_step import ForwardOutput
from kvasir_runtime.runner.sampling.grammar_mask_batch import GrammarMaskBatch
from kvasir_runtime.runner.state.device_stream import DeviceStream
from kvasir_runtime.runner.state.row_state import AppendPositions


class DeferredSamples:
    """By row, the position that its sample will have, and (1, hidden_size) of the token before it.

    attentions: of the cache groups. A state that has read drafts is taken back, and all its tokens are computed again.
    """

    def __init__(self, stream: DeviceStream, attentions: Sequence[LayerAttention] = ()) -> None:
        self._stream = stream
        self._has_states = any(attention.kind == "state" for attention in attentions)
        self._kept: dict[int, tuple[int, Tensor]] = {}

    def apply(self, plan: StepPlan) -> None:
        """Rows that leave, join or become another beam have nothing to be sampled again."""
        if self._kept:
            for row in (*plan.leaves, *(join.row for join in plan.joins), *(fork.row for fork in plan.forks)):
                self._kept.pop(row, None)

    def keep(self, batch: GrammarMaskBatch, forward: ForwardOutput) -> None:
        """Keep what the deferred samples of a step will need."""
        again = {chunk.row for chunk in batch.guided if chunk.drafts} if self._has_states else set[int]()
        for chunk in batch.guided:
            if chunk.index in batch.deferred and chunk.row not in again:
                self._kept[chunk.row] = chunk.position, forward.hidden[chunk.index : chunk.index + 1].clone()

    def to_compute(self, chunks: Sequence[Chunk]) -> Sequence[Chunk]:
        """The chunks of a step without tokens that are computed, or that are not known."""
        if not self._kept:
            return chunks
        found = []
        for chunk in chunks:
            position, _ = self._kept.get(chunk.row, (0, None))
            if chunk.start < position < chunk.start + chunk.num_tokens:  # tokens were inserted behind it
                del self._kept[chunk.row]
                given = chunk.start + chunk.num_tokens - position
                found.append(msgspec.structs.replace(chunk, start=position, num_tokens=given))
            elif chunk.row not in self._kept:
                found.append(chunk)
        return found

    def completed(
        self, sampling_chunks: Sequence[Chunk], forward: ForwardOutput | None, positions: AppendPositions | None
    ) -> tuple[ForwardOutput, AppendPositions | None]:
        """What the forward pass gave, with a row for each chunk that samples.

        forward, positions: of what `to_compute` gave; None where that was nothing. Rows of unknown tokens are 0: their
        samples are dropped.
        """
        if forward is not None and not any(chunk.row in self._kept for chunk in sampling_chunks):
            return forward, positions
        computed = iter(() if forward is None else forward.hidden.split(1))
        parts = []
        for chunk in sampling_chunks:
            position, hidden = self._kept.get(chunk.row, (0, None))
            if hidden is None:
                parts.append(next(computed))
            elif position == chunk.start + chunk.num_tokens:
                parts.append(hidden)
                del self._kept[chunk.row]
            else:
                parts.append(torch.zeros_like(hidden))
        if self._stream.overlaps:
            rows = np.array([chunk.row for chunk in sampling_chunks], dtype=np.int64)
            ends = np.array([chunk.start + chunk.num_tokens for chunk in sampling_chunks], dtype=np.int32)
            positions = AppendPositions(self._stream.upload(rows), self._stream.upload(ends))
        return ForwardOutput(hidden=torch.cat([*parts, *computed])), positions
