"""How long a step will take at most, from the steps before it: what the engine announces, and its watchdog judges by.

Pure: seconds are given. Owned by the engine's loop.
"""

from typing import Final

from kvasir_runtime.core.plan import StepPlan

UNKNOWN_S: Final = 30.0
"""Expected of a step that no measured one is like: the first, and on CUDA the first of its size, which may compile."""
NEWS: Final = 0.2
"""Weight of a new measurement: one slow step, as after the process was stopped, is forgotten within some twenty."""

StepSize = tuple[int, int]
"""How many bits the number of a step's query tokens has, and that of the pairs of query and key in its attention."""


def step_size(plan: StepPlan) -> StepSize:
    """The size of a plan."""
    chunks = plan.chunks
    pairs = sum([chunk.num_tokens * (chunk.start + chunk.num_tokens) for chunk in chunks])
    return plan.num_tokens.bit_length(), pairs.bit_length()


class StepTimes:
    """Mean seconds of steps by their size.

    A step costs a constant, so much for each query token and so much for each pair. None of these is negative, so a
    step of n times the tokens and pairs of another, n at least 1, takes at most n times as long.
    """

    __slots__ = ("_compiles", "_means")

    def __init__(self, *, compiles: bool) -> None:
        """compiles: kernels are compiled when a step of a new size needs them first."""
        self._compiles = compiles
        self._means: dict[StepSize, float] = {}

    def observe(self, size: StepSize, elapsed_s: float) -> None:
        """A step of this size took so long; one without tokens or seconds is not counted."""
        if elapsed_s <= 0 or not size[0]:
            return
        known = self._means.get(size)
        self._means[size] = elapsed_s if known is None else known + NEWS * (elapsed_s - known)

    def expected_s(self, size: StepSize) -> float:
        """Upper bound of a step's seconds, by the measured step that bounds it best.

        What no measured step is like is bounded by UNKNOWN_S, or by twice the longest where that is more.
        """
        if (known := self._means.get(size)) is not None:
            return 2 * known  # sizes of the same number of bits are within a factor of 2
        unlike = max(UNKNOWN_S, 2 * max(self._means.values(), default=0.0))
        if self._compiles:
            return unlike
        tokens, pairs = size
        bounds = [
            mean * (1 << max(0, tokens - of_tokens + 1, pairs - of_pairs + 1))
            for (of_tokens, of_pairs), mean in self._means.items()
        ]
        return min([unlike, *bounds])
