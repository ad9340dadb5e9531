"""Clocks that stand still until a test moves them."""


class FakeClock:
    """Steady and wall seconds; `advance` moves both, `jump` only the wall, as a corrected clock does."""

    def __init__(self, *, wall: float = 1_800_000_000.0) -> None:
        self._steady, self._wall = 1000.0, wall

    def steady(self) -> float:
        return self._steady

    def wall(self) -> float:
        return self._wall

    def advance(self, seconds: float) -> None:
        self._steady += seconds
        self._wall += seconds

    def jump(self, seconds: float) -> None:
        self._wall += seconds


class Now:
    """Where the clock is a function: seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now
