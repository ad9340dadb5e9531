"""Where a rollout heads, as data: decided in `rollout`, told in `status`."""

from dataclasses import dataclass
from typing import Literal

Phase = Literal["", "Progressing", "Canary", "Held", "Paused", "RolledBack"]
Strategy = Literal["", "Surge", "InPlace", "BlueGreen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutTarget:
    """revision: the one to bring to the wanted number. cap: most replicas of it for now, None for no bound.

    step: of the canary, from 1; 0 outside of one. since: epoch seconds at which the step's replicas were ready, None
    before. rolled_back: the revision that was given up, empty when none was. strategy: how replicas are replaced now,
    which is not always as the spec says; empty while none are. why: for people, empty when nothing is held.
    """

    revision: str
    cap: int | None = None
    phase: Phase = ""
    step: int = 0
    since: float | None = None
    rolled_back: str = ""
    strategy: Strategy = ""
    why: str = ""

    @property
    def holding(self) -> bool:
        """Whether standing still is what was asked for, so that no deadline runs."""
        return self.phase in ("Canary", "Held", "Paused", "RolledBack")
