"""Judges whether the engine keeps the time that it announced: whether the replica is ready, and whether it is alive.

Fed by the process a few times a second; knows neither engine nor probes. A message of the engine announces how long the
next one may take; what was not announced is not judged before it took very long.
"""

from collections.abc import Callable
from typing import Final

LOOK_S: Final = 0.25
"""Time between two looks."""
UNANNOUNCED_S: Final = 30.0
"""Expected of an engine that announced nothing."""
STALLED_FACTOR: Final = 3.0
STALLED_S: Final = 1.5
"""Silence of three heartbeats."""
BUSY_S: Final = 10.0
"""The same for an engine on a CPU that computes, waits for a processor or for a disk: the machine is busy."""
DEAD_FACTOR: Final = 10.0
SUSPECT_S: Final = 0.75
"""Silence from which on it is worth looking at the engine's threads."""


class Watchdog:
    """dead_s: least silence of a dead engine; 0 for none that is dead. is_busy: whether the engine's threads compute or
    wait for processor or disk, called for a silent one only; False until the process has set it.

    Silence is what passed between looks, each of which counts for little: if this process was suspended, or busy
    itself, the engine's messages wait to be read, and that time is not counted. Times are monotonic seconds.
    """

    def __init__(self, dead_s: float) -> None:
        self._dead_s = dead_s
        self.is_busy: Callable[[], bool] = lambda: False
        self._looked_at: float | None = None
        self._heard_at = 0.0
        self._silence_s = 0.0
        self.expected_s = UNANNOUNCED_S
        self.stalled = False

    @property
    def stalled_s(self) -> float:
        """Seconds of silence of a stalled engine, 0 of one that keeps its time."""
        return self._silence_s if self.stalled else 0.0

    @property
    def dead(self) -> bool:
        """Whether nothing is to be expected of the engine any more."""
        if not self.stalled or not self._dead_s:
            return False
        return self._silence_s >= max(self._dead_s, DEAD_FACTOR * self.expected_s)

    @property
    def words(self) -> str:
        """What is wrong with a stalled engine."""
        return f"the engine has been silent for {self._silence_s:.0f} s and announced {self.expected_s:.2g} s at most"

    def look(self, now: float, heard_at: float, announced_s: float) -> None:
        """heard_at: when the last message came, which announced the next one within announced_s; 0 for not at all."""
        passed_s = 0.0 if self._looked_at is None else min(now - self._looked_at, 2 * LOOK_S)
        self._looked_at = now
        if heard_at != self._heard_at:
            self._heard_at, self._silence_s, self.stalled = heard_at, 0.0, False
            self.expected_s = announced_s or UNANNOUNCED_S
            return
        self._silence_s += passed_s
        if self._silence_s > SUSPECT_S and not self.stalled:
            least_s = BUSY_S if self.is_busy() else STALLED_S
            self.stalled = self._silence_s >= max(least_s, STALLED_FACTOR * self.expected_s)
