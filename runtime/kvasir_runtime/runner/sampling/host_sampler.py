"""Sampling for rows on the host by `Ops.row_sampler`: what each request changes in its logits, and the call.

Owned by the runner, which applies every plan; the fast path shares the rows. It takes the place of `logits_processors`
where the backend has that operation.
"""

from collections.abc import Sequence

from torch import Tensor

from kvasir_runtime.core.plan import Chunk, Join, StepPlan
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.kernels.row_sampler import IdMasks, LogitsEdits, RowChunk, RowSampler
from kvasir_runtime.runner.state.host_state import HostRowState
from kvasir_runtime.runner.state.row_state import RowState


class HostSampler:
    """The rows of one runner."""

    def __init__(self, row_sampler: RowSampler, eos_token_ids: Sequence[int]) -> None:
        self.row_sampler, self._eos_token_ids = row_sampler, eos_token_ids
        self._edited: set[int] = set()

    def apply(self, plan: StepPlan) -> None:
        """Take over what the requests that join change in their logits."""
        for row in (*plan.leaves, *(fork.row for fork in plan.forks)):
            self.row_sampler.edit(row, None)
            self._edited.discard(row)
        for join in plan.joins:
            edits = edits_of(join, self._eos_token_ids)
            self.row_sampler.edit(join.row, edits)
            (self._edited.add if edits.any else self._edited.discard)(join.row)

    def affect(self, sampling_chunks: Sequence[Chunk]) -> bool:
        """Whether the requests of these chunks change logits, apart from answers that may not end yet."""
        return bool(self._edited) and any(chunk.row in self._edited for chunk in sampling_chunks)

    def sample(self, logits: Tensor, sampling_chunks: Sequence[Chunk], masks: IdMasks) -> Tensor:
        """(samples,) int64 ids, not appended. logits and masks: as in `RowSampler.sample`."""
        return self.row_sampler.sample(logits, [row_chunk(chunk) for chunk in sampling_chunks], masks)


def host_sampler_of(ops: Ops, rows: RowState, eos_token_ids: Sequence[int]) -> HostSampler | None:
    """None on other devices, and where the backend has no such operation."""
    if ops.row_sampler is None or not isinstance(rows, HostRowState):
        return None
    tokens, _, draws = rows.arrays
    return HostSampler(ops.row_sampler(tokens, draws), eos_token_ids)


def edits_of(join: Join, eos_token_ids: Sequence[int]) -> LogitsEdits:
    """What a request changes in its logits. Where it forbids all ids its lowest allowed one remains, or EOS."""
    sampling, fallback = join.sampling, None
    if sampling.allowed_token_ids:
        fallback = min(sampling.allowed_token_ids)
    elif sampling.bad_words:
        fallback = min(eos_token_ids, default=0)
    return LogitsEdits(
        allowed=sorted(set(sampling.allowed_token_ids)),
        stops=tuple({*eos_token_ids, *sampling.stop_token_ids}),
        biases=dict(sampling.logit_bias),
        words=sampling.bad_words,
        repetition_penalty=sampling.repetition_penalty,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        prompt_tokens=join.prompt_tokens,
        fallback=fallback,
    )


def row_chunk(chunk: Chunk) -> RowChunk:
    """As `kernels.row_sampler` takes it."""
    num_samples = 1 + len(chunk.drafts) if chunk.samples else 0
    return RowChunk(chunk.row, chunk.start, chunk.num_tokens, num_samples, chunk.min_tokens_left)
