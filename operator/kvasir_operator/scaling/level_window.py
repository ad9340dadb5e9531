"""The largest level of a stretch of time, in memory that does not grow with it: a queue that only falls.

Called by `decide.py`. A level that a newer one reaches can never be the largest again, so it is dropped; what stays
falls strictly, and there are no more entries than levels (Lemire 2006, "Streaming maximum-minimum filter").
"""

from msgspec import Struct


class LevelWindow(Struct, frozen=True, kw_only=True):
    """entries: (seconds, level), rising in time and strictly falling in level."""

    entries: tuple[tuple[float, int], ...] = ()

    @property
    def largest(self) -> int | None:
        """The largest level that is kept; None for none."""
        return self.entries[0][1] if self.entries else None

    def since(self, at: float) -> "LevelWindow":
        """Without what was seen at that time or before."""
        if not self.entries or self.entries[0][0] > at:
            return self
        return LevelWindow(entries=tuple(entry for entry in self.entries if entry[0] > at))

    def extended(self, at: float, level: int) -> "LevelWindow":
        """With one more level, seen at `at`, which is later than all before."""
        return LevelWindow(entries=(*(entry for entry in self.entries if entry[1] > level), (at, level)))
