"""Steps in which all rows on the host sample, and nothing is wanted beside temperature and filters.

Owned by the runner. `Ops.decoder_step` makes the inputs, computes the step, samples and appends the ids in one call;
the ids are those of the general path.
"""

from collections.abc import Sequence

from torch import Tensor

from kvasir_runtime.core.plan import Chunk, StepPlan, StepResults
from kvasir_runtime.kernels.decoder_step import RowSteps
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.runner.state.host_state import HostRowState
from kvasir_runtime.runner.state.row_state import RowState
from kvasir_runtime.runner.step_output import sampled_tokens


class FastPath:
    """Such steps of one model and its rows."""

    def __init__(self, steps: RowSteps, cache: Tensor) -> None:
        self._steps, self._cache = steps, cache

    def begin(self, chunks: Sequence[Chunk], *, greedy: bool) -> bool:
        """Start a step. False, with nothing done, where it needs the general path. greedy: of all chunks."""
        for chunk in chunks:
            if not chunk.samples or chunk.scores[0] < chunk.scores[1] or chunk.pools[0] < chunk.pools[1]:
                return False
        rows = [(chunk.row, chunk.start, chunk.num_tokens) for chunk in chunks]
        return self._steps.begin(rows, self._cache, greedy=greedy)

    def finish(self, plan: StepPlan) -> StepResults:
        """Take part in the step; returns its results."""
        ids = self._steps.finish()
        sampled = tuple(sampled_tokens(chunk.row, token) for chunk, token in zip(plan.chunks, ids, strict=True))
        return StepResults(step=plan.step, sampled=sampled)


def fast_path_of(model: Decoder, rows: RowState, cache: Tensor, max_tokens: int) -> FastPath | None:
    """None on other devices, and with layers or a head that the backend does not compute as one operation."""
    if not isinstance(rows, HostRowState) or model.step is None or not model.begins(cache):
        return None
    steps = model.step.row_steps(*rows.arrays, max_tokens) if model.spec.head == "vocabulary" else None
    return None if steps is None else FastPath(steps, cache)
