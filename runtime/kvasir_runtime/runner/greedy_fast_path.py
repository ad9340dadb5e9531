"""Steps in which all rows on the host sample their most likely token, and nothing else is wanted.

Owned by the runner. `Ops.decoder_step` makes the inputs, computes the step and appends the ids in one call; the ids are
those of the general path.
"""

from collections.abc import Sequence

from torch import Tensor

from kvasir_runtime.core.plan import Chunk, SampledTokens, StepPlan, StepResults
from kvasir_runtime.kernels.decoder_step import GreedySteps
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.runner.state.host_state import HostRowState
from kvasir_runtime.runner.state.row_state import RowState


class GreedyFastPath:
    """Greedy steps of one model and its rows."""

    def __init__(self, steps: GreedySteps, cache: Tensor) -> None:
        self._steps, self._cache = steps, cache

    def begin(self, chunks: Sequence[Chunk]) -> bool:
        """Start a step. False, with nothing done, where it needs the general path."""
        for chunk in chunks:
            if not chunk.samples or chunk.scores[0] < chunk.scores[1] or chunk.pools[0] < chunk.pools[1]:
                return False
        return self._steps.begin([(chunk.row, chunk.start, chunk.num_tokens) for chunk in chunks], self._cache)

    def finish(self, plan: StepPlan) -> StepResults:
        """Take part in the step; returns its results."""
        ids = self._steps.finish()
        sampled = tuple(SampledTokens(chunk.row, (token,)) for chunk, token in zip(plan.chunks, ids, strict=True))
        return StepResults(step=plan.step, sampled=sampled)


def fast_path_of(model: Decoder, rows: RowState, cache: Tensor, max_tokens: int) -> GreedyFastPath | None:
    """None on other devices, and with layers or a head that the backend does not compute as one operation."""
    if not isinstance(rows, HostRowState) or model.step is None or not model.begins(cache):
        return None
    steps = model.step.greedy_steps(*rows.arrays, max_tokens) if model.spec.head == "vocabulary" else None
    return None if steps is None else GreedyFastPath(steps, cache)
