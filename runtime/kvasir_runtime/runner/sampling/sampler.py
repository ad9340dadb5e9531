"""From hidden states to drawn tokens: the head, what requests do to its logits, the draw, and what is told of it.

Owned by the runner and called once a step, either right behind the forward pass or, where a grammar must first hear of
the token before, as soon as that one is known. It enqueues work and waits for masks at most, never for the device.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from kvasir_runtime.core.plan import Chunk
from kvasir_runtime.kernels.decoder_step import ForwardOutput
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.runner.graphs.cudagraph_sizes import SamplingKind
from kvasir_runtime.runner.sampling import logprobs
from kvasir_runtime.runner.sampling.grammar_masks import GrammarMaskBatch, GrammarMasks
from kvasir_runtime.runner.sampling.logits_processors import LogitsProcessors
from kvasir_runtime.runner.sampling.logprobs import RequestedLogprobs, StepOutput
from kvasir_runtime.runner.state.device_stream import DeviceStream
from kvasir_runtime.runner.state.row_state import ModelInput, RowState


class Sampler:
    """Draws for the chunks of a step that sample."""

    def __init__(
        self,
        *,
        model: Decoder,
        ops: Ops,
        rows: RowState,
        logits_processors: LogitsProcessors,
        requested_logprobs: RequestedLogprobs,
        masks: GrammarMasks | None,
        stream: DeviceStream,
    ) -> None:
        self._model, self._ops, self._rows, self._stream = model, ops, rows, stream
        self._logits_processors, self._requested_logprobs = logits_processors, requested_logprobs
        self._grammar_masks = masks

    def sampling_kind(self, sampled: Sequence[Chunk], mask_batch: GrammarMaskBatch | None) -> SamplingKind:
        """The least that the draw needs, told from what the host knows."""
        if (
            mask_batch is not None
            or self._logits_processors.affect(sampled)
            or self._requested_logprobs.of_samples(sampled)
        ):
            return "special"
        if any(chunk.min_tokens_left > 0 for chunk in sampled):
            return "special"
        if self._rows.greedy(sampled):
            return "greedy"
        return "filtered" if self._rows.filtered(sampled) else "plain"

    def sample(
        self, output: ForwardOutput, sampled: Sequence[Chunk], inputs: ModelInput, mask_batch: GrammarMaskBatch | None
    ) -> StepOutput:
        """Ids and reports on the device; the ids are appended to their rows by then. output: of the samples' rows."""
        if self.sampling_kind(sampled, mask_batch) == "greedy":
            ids = self._model.greedy_ids_of(output)
            self._rows.append(sampled, ids, inputs)
            return StepOutput(ids=ids)
        sampling = self._rows.sampling(sampled, inputs)
        logits = self._model.logits_of(output).float()
        owners = self._requested_logprobs.of_samples(sampled)
        if owners:
            asking = self._stream.upload(np.array([place for place, _, _ in owners], dtype=np.int64))
            unchanged = logits[asking]
        torn = {} if mask_batch is None else self._torn(logits, sampled, mask_batch)
        if sampling.forbidden is not None:
            logits[sampling.forbidden[:, 0], sampling.forbidden[:, 1]] = float("-inf")
        self._logits_processors.process(logits, sampled, self._rows.tokens)
        if mask_batch is not None and self._grammar_masks is not None:
            self._grammar_masks.mask_logits(logits, torn, mask_batch)
        ids, discarded = self._ops.sample(logits, sampling.draws), set() if mask_batch is None else mask_batch.discarded
        self._rows.append(sampled, ids, inputs, discarded)
        self._logits_processors.count_sampled(sampled, ids, discarded)
        return StepOutput(ids=ids, of_sampled=logprobs.of_sampled(unchanged, ids[asking], owners) if owners else None)

    def _torn(self, logits: Tensor, sampled: Sequence[Chunk], mask_batch: GrammarMaskBatch) -> dict[int, Tensor]:
        """Logits of the guided rows of which all that is allowed may yet be forbidden, by their places among guided."""
        return {
            number: logits[one.place].clone()
            for number, one in enumerate(mask_batch.guided)
            if sampled[one.place].min_tokens_left or self._logits_processors.may_forbid(one.row)
        }
