"""Where the time of a step goes: laps that engine and runner mark, kept only under `--profile`.

`StepProfiler` itself does nothing, so that a lap costs a call; `engine.chrome_trace` has the one that measures.
"""

from collections.abc import Mapping


class StepProfiler:
    """Laps of one thread, one after another."""

    @property
    def wants_parts(self) -> bool:
        """Whether `parts` is used: counting inside the forward pass is not free."""
        return False

    def start(self) -> None:
        """What passed since the last lap was idle and belongs to none."""

    def lap(self, name: str) -> None:
        """What passed since the last lap, or since start, was spent on this."""

    def parts(self, weights: Mapping[str, int]) -> None:
        """What the lap that ended last consists of, in any unit."""

    def step(self, num_tokens: int, num_sequences: int) -> None:
        """A step is complete; it had so many query tokens of so many sequences."""

    def close(self) -> None:
        """No more laps will come."""
