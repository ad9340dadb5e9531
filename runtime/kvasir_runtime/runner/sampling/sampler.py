"""From hidden states to sampled tokens: the head, what requests change in its logits, sampling, and logprobs.

Owned by the runner and called once a step: right after the forward pass, or, where a grammar needs the token before,
as soon as that token is known. It enqueues work and waits for grammar masks at most, never for the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvasir_runtime.core.plan import Chunk
from kvasir_runtime.kernels.argmax import INVALID
from kvasir_runtime.kernels.decoder_step import ForwardOutput
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.runner.graphs.cudagraph_sizes import SamplingKind
from kvasir_runtime.runner.sampling import logprobs
from kvasir_runtime.runner.sampling.grammar_mask_batch import GrammarMaskBatch
from kvasir_runtime.runner.sampling.grammar_masks import GrammarMasks, LogitsRows, MaskRows
from kvasir_runtime.runner.sampling.host_sampler import HostSampler
from kvasir_runtime.runner.sampling.logits_processors import LogitsProcessors
from kvasir_runtime.runner.sampling.logprobs import LogprobsOwner, PackedLogprobs
from kvasir_runtime.runner.state.device_stream import DeviceStream
from kvasir_runtime.runner.state.row_state import AppendPositions, RowState


@dataclass(slots=True)
class SamplingBatch:
    """The chunks of a step that sample, in their order. The others are set when the plan is applied.

    kind: the least that sampling needs. masks: None where no row has a grammar. owners: whose logprobs are wanted.
    """

    chunks: list[Chunk]
    kind: SamplingKind = "special"
    masks: GrammarMaskBatch | None = None
    owners: tuple[LogprobsOwner, ...] = ()


class Sampler:
    """Samples for the chunks of a step."""

    def __init__(
        self,
        *,
        model: Decoder,
        ops: Ops,
        rows: RowState,
        logits_processors: LogitsProcessors,
        grammar_masks: GrammarMasks,
        stream: DeviceStream,
        host_sampler: HostSampler | None = None,
    ) -> None:
        """host_sampler: of rows on the host, where the backend has one; it takes the place of logits_processors."""
        self._model, self._ops, self._rows, self._stream = model, ops, rows, stream
        self._logits_processors, self._grammar_masks = logits_processors, grammar_masks
        self._host_sampler = host_sampler

    def kind(self, batch: SamplingBatch) -> SamplingKind:
        """The least that sampling needs, from what the host knows."""
        chunks = batch.chunks
        if batch.masks is not None or batch.owners:
            return "special"
        if (self._host_sampler or self._logits_processors).affect(chunks) or any(
            chunk.min_tokens_left > 0 for chunk in chunks
        ):
            return "edited"
        if self._rows.all_greedy(chunks):
            return "greedy"
        return "filtered" if self._rows.any_filtered(chunks) else "plain"

    def sample(
        self, forward: ForwardOutput, batch: SamplingBatch, positions: AppendPositions | None
    ) -> tuple[Tensor, PackedLogprobs | None]:
        """(samples,) int64 ids as `kernels.sample` gives them, appended to their rows, and the logprobs that are
        requested of them, on the device.

        forward: of the rows that sample.
        """
        chunks = batch.chunks
        if batch.kind == "greedy":
            ids = self._model.greedy_ids_of(forward)
            self._rows.append(chunks, ids, positions)
            return ids, None
        logits = self._model.logits_of(forward)
        if self._host_sampler is not None:
            return self._sample_rows(self._host_sampler, logits, batch, positions)
        metadata = self._rows.sampling_metadata(chunks, positions)
        if batch.kind in ("plain", "filtered"):
            ids = self._ops.sample(logits, metadata.draws)
            self._rows.append(chunks, ids, positions)
            return ids, None
        logits = logits.float()
        is_valid = logits.amax(dim=-1).isfinite()  # as the model gave them: what follows may hide a NaN
        owners = batch.owners
        if owners:
            reported = self._stream.upload(np.array([owner.chunk_index for owner in owners], dtype=np.int64))
            unprocessed = logits[reported]
        recoverable = {} if batch.masks is None else self._recoverable(logits, chunks, batch.masks)
        if metadata.forbidden is not None:
            logits[metadata.forbidden[:, 0], metadata.forbidden[:, 1]] = float("-inf")
        self._logits_processors.process(logits, chunks, self._rows.tokens)
        if batch.masks is not None:
            self._grammar_masks.mask_logits(logits, recoverable, batch.masks)
        ids = self._ops.sample(logits, metadata.draws)
        if batch.masks is not None:
            sample = self._ops.sample
            ids = self._grammar_masks.checked(
                ids, batch.masks, LogitsRows(logits), lambda: sample(logits, metadata.draws)
            )
        ids = torch.where(is_valid, ids, INVALID)
        dropped = set() if batch.masks is None else batch.masks.dropped
        self._rows.append(chunks, ids, positions, dropped)
        known = ids.clamp_min(0)
        self._logits_processors.count_sampled(chunks, known, dropped)
        if not owners:
            return ids, None
        candidates = None
        if batch.masks is not None:
            places = [owner.chunk_index for owner in owners]
            candidates = self._grammar_masks.beam_candidates(unprocessed, places, batch.masks)
        wanted = logprobs.wanted_of(owners, logits.device)
        found = self._ops.logprobs(unprocessed, known[reported], wanted, candidates)
        return ids, PackedLogprobs(packed=found, owners=owners)

    def _sample_rows(
        self, host_sampler: HostSampler, logits: Tensor, batch: SamplingBatch, positions: AppendPositions | None
    ) -> tuple[Tensor, PackedLogprobs | None]:
        chunks, masks, owners = batch.chunks, batch.masks, batch.owners
        allowed = {} if masks is None else self._grammar_masks.by_chunk(masks)
        ids = host_sampler.sample(logits, chunks, allowed)
        if masks is not None:
            ids = self._grammar_masks.checked(
                ids, masks, MaskRows(allowed), lambda: host_sampler.sample(logits, chunks, allowed)
            )
        self._rows.append(chunks, ids, positions, set() if masks is None else masks.dropped)
        if not owners:
            return ids, None
        reported = [owner.chunk_index for owner in owners]
        candidates = None
        if masks is not None:
            candidates = self._grammar_masks.beam_candidates(logits[reported].float(), reported, masks)
        wanted = logprobs.wanted_of(owners, logits.device, reported)
        found = self._ops.logprobs(logits, ids.clamp_min(0), wanted, candidates)
        return ids, PackedLogprobs(packed=found, owners=owners)

    def _recoverable(self, logits: Tensor, chunks: Sequence[Chunk], masks: GrammarMaskBatch) -> dict[int, Tensor]:
        """Logits, by number among the guided chunks, of rows in which all that the grammar allows may be forbidden."""
        return {
            number: logits[guided.index].clone()
            for number, guided in enumerate(masks.guided)
            if chunks[guided.index].min_tokens_left or self._logits_processors.may_forbid(guided.row)
        }
