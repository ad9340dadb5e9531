"""Steps of rows on the host that sample, and score and pool nothing.

Owned by the runner. `Ops.decoder_step` makes the inputs, computes the step, changes logits, samples, reports logprobs
and appends the ids in one call; the results are those of the general path. Masks of grammars are computed meanwhile,
and where one is not there when the logits are, sampling is left to the general path. So is a step in which a grammar's
masks do not decide alone.
"""

from collections.abc import Sequence

import torch

from kvasir_runtime.core.plan import Chunk
from kvasir_runtime.kernels.decoder_step import ForwardOutput, RowSteps
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.runner.sampling.host_sampler import HostSampler, row_chunk
from kvasir_runtime.runner.sampling.logprobs import LogprobsOwner, PackedLogprobs, wanted_of
from kvasir_runtime.runner.sampling.sampler import SamplingBatch
from kvasir_runtime.runner.state.host_state import HostRowState
from kvasir_runtime.runner.state.row_state import RowState
from kvasir_runtime.runner.step_output import StepOutput


class FastPath:
    """Such steps of one model and its rows."""

    def __init__(self, steps: RowSteps, cache: KvCache) -> None:
        self._steps, self._cache = steps, cache
        self._owners: tuple[LogprobsOwner, ...] = ()

    def begin(self, chunks: Sequence[Chunk], sampling: SamplingBatch) -> bool:
        """Start a step of chunks, some of which sample. False, with nothing done, where it needs the general path."""
        for chunk in chunks:
            if chunk.scores[0] < chunk.scores[1] or chunk.pools[0] < chunk.pools[1]:
                return False
        masks = None if sampling.masks is None else sampling.masks.late_masks()
        if sampling.masks is not None and masks is None:
            return False
        self._owners = owners = sampling.owners
        rows = [owner.chunk_index for owner in owners]
        return self._steps.begin(
            [row_chunk(chunk) for chunk in chunks],
            self._cache,
            greedy=sampling.kind == "greedy",
            masks=masks,
            logprobs=wanted_of(owners, torch.device("cpu"), rows) if owners else None,
        )

    def finish(self) -> StepOutput | ForwardOutput:
        """Take part in the step; what it gave, or the forward pass alone where a mask was late."""
        found = self._steps.finish()
        if isinstance(found, ForwardOutput):
            return found
        packed = found.logprobs
        logprobs = None if packed is None else PackedLogprobs(packed=packed, owners=self._owners)
        return StepOutput(token_ids=found.ids, logprobs=logprobs)


def fast_path_of(
    model: Decoder, rows: RowState, host_sampler: HostSampler | None, cache: KvCache, max_tokens: int
) -> FastPath | None:
    """None on other devices, and with layers or a head that the backend does not compute as one operation."""
    if not isinstance(rows, HostRowState) or host_sampler is None or model.step is None or not model.begins(cache):
        return None
    _, tables, _ = rows.arrays
    vocabulary = model.spec.head == "vocabulary"
    steps = model.step.row_steps(tables, host_sampler.row_sampler, max_tokens) if vocabulary else None
    return None if steps is None else FastPath(steps, cache)
