"""Steps of rows on the host that sample, and report no logprobs and have no grammar.

Owned by the runner. `Ops.decoder_step` makes the inputs, computes the step, changes logits, samples and appends the ids
in one call; the ids are those of the general path.
"""

from collections.abc import Sequence

from kvasir_runtime.core.plan import Chunk, StepPlan, StepResults
from kvasir_runtime.kernels.decoder_step import RowSteps
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.runner.sampling.host_sampler import HostSampler, row_chunk
from kvasir_runtime.runner.state.host_state import HostRowState
from kvasir_runtime.runner.state.row_state import RowState
from kvasir_runtime.runner.step_output import sampled_tokens


class FastPath:
    """Such steps of one model and its rows."""

    def __init__(self, steps: RowSteps, cache: KvCache) -> None:
        self._steps, self._cache = steps, cache

    def begin(self, chunks: Sequence[Chunk], *, greedy: bool) -> bool:
        """Start a step. False, with nothing done, where it needs the general path. greedy: of all chunks."""
        for chunk in chunks:
            if chunk.scores[0] < chunk.scores[1] or chunk.pools[0] < chunk.pools[1]:
                return False
        return self._steps.begin([row_chunk(chunk) for chunk in chunks], self._cache, greedy=greedy)

    def finish(self, plan: StepPlan) -> StepResults:
        """Take part in the step; returns its results."""
        rows = [chunk.row for chunk in plan.chunks if chunk.samples]
        ids = self._steps.finish()
        sampled = tuple(sampled_tokens(row, token) for row, token in zip(rows, ids, strict=True))
        return StepResults(step=plan.step, sampled=sampled)


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
