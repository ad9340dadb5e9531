"""A clock that stands still until a test moves it."""


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
