"""What a service's replicas counted before the last minute: ticks that are joined into stretches, and sums over them.

Called by `window.py` with each tick that has become older than a minute. Most stretches change no more, and sums over
them are read in each tick, so the sums are kept.
"""

from bisect import bisect_right
from collections.abc import Iterable
from operator import attrgetter
from typing import Final, NamedTuple

from msgspec import Struct

from kvasir_operator.scaling.arrival_spread import ArrivalSpread
from kvasir_operator.scaling.load_counts import LoadCounts, added, total

JOINED_S: Final = 10.0
"""A stretch grows by the next tick while it is no longer than this with it."""


class Stretch(NamedTuple):
    """at: seconds of a steady clock, of its end."""

    at: float
    counts: LoadCounts


class PastLoad(Struct, frozen=True, kw_only=True):
    """closed: stretches that grow no more, from the oldest to the newest. open: the one after them; None before any
    stretch. total, spread: of the closed ones."""

    closed: tuple[Stretch, ...] = ()
    open: Stretch | None = None
    total: LoadCounts = LoadCounts()
    spread: ArrivalSpread = ArrivalSpread()

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """All of them, from the oldest to the newest."""
        return (*self.closed, self.open) if self.open is not None else ()

    @property
    def counts(self) -> LoadCounts:
        """Of all of them together."""
        return added(self.total, self.open.counts) if self.open is not None else self.total

    def extended(self, ticks: Iterable[Stretch]) -> "PastLoad":
        """With ticks that came later, from the oldest to the newest."""
        past = self
        for tick in ticks:
            past = past._followed(tick)
        return past

    def until(self, at: float) -> tuple[LoadCounts, ...]:
        """Counts of the stretches that ended by then."""
        if self._begins_after(at):
            return ()
        stretches = self.stretches
        return tuple([stretch.counts for stretch in stretches[: bisect_right(stretches, at, key=_AT)]])

    def since(self, at: float) -> "PastLoad":
        """Without the stretches that ended by then. The sums are taken again, so that no error of rounding adds up."""
        if self._begins_after(at):
            return self
        if self.open is None or self.open.at <= at:
            return PastLoad()
        closed = self.closed[bisect_right(self.closed, at, key=_AT) :]
        counts = [stretch.counts for stretch in closed]
        return PastLoad(closed=closed, open=self.open, total=total(counts), spread=ArrivalSpread().extended(*counts))

    def _begins_after(self, at: float) -> bool:
        first = self.closed[0] if self.closed else self.open
        return first is None or first.at > at

    def _followed(self, tick: Stretch) -> "PastLoad":
        before = self.open
        if before is None:
            return PastLoad(open=tick)
        if before.counts.span_s + tick.counts.span_s <= JOINED_S:
            longer = Stretch(tick.at, added(before.counts, tick.counts))
            return PastLoad(closed=self.closed, open=longer, total=self.total, spread=self.spread)
        return PastLoad(
            closed=(*self.closed, before),
            open=tick,
            total=added(self.total, before.counts),
            spread=self.spread.extended(before.counts),
        )


_AT: Final = attrgetter("at")
