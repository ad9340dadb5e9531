"""Combines repeated events into one object with a count, and decides when a write is due; `event_recorder` writes."""

from dataclasses import dataclass, field, replace

REPEAT_WRITE_S = 10.0
SIMILAR_LIMIT = 10
COMBINED = "(combined from similar events)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectEvent:
    """An event about an object, or about the field of it that `field` names (may be empty)."""

    kind: str
    namespace: str
    name: str
    uid: str
    field: str
    reason: str
    message: str
    warning: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSeries:
    """One event object: its name and message, how often it happened, when first, when last written (epoch seconds)."""

    name: str
    message: str
    count: int
    first: float
    written: float


@dataclass(slots=True)
class EventAggregator:
    """Counts notes. The same event about the same object is one event, written at most every REPEAT_WRITE_S.

    Notes that differ in their message alone, such as probes that quote a clock, are combined after SIMILAR_LIMIT.
    """

    series_by_event: dict[ObjectEvent, EventSeries] = field(default_factory=dict)
    similar: dict[ObjectEvent, int] = field(default_factory=dict)

    def due(self, event: ObjectEvent, *, now: float) -> EventSeries | None:
        """Count the event; returns the series when it must be written now (count 1: create it)."""
        group = replace(event, message="")
        if event not in self.series_by_event and self.similar.get(group, 0) >= SIMILAR_LIMIT:
            event = replace(event, message=COMBINED)
        known = self.series_by_event.get(event)
        if known is None:
            name = f"{event.name}.{int(now * 1e9):x}"
            series = EventSeries(name=name, message=event.message, count=1, first=now, written=now)
            self.series_by_event[event] = series
            self.similar[group] = self.similar.get(group, 0) + 1
            return series
        series = replace(known, count=known.count + 1)
        is_due = now - known.written >= REPEAT_WRITE_S
        self.series_by_event[event] = replace(series, written=now) if is_due else series
        return self.series_by_event[event] if is_due else None

    def forget(self, uid: str) -> None:
        """Drop what is known of an object that is gone."""
        self.series_by_event = {event: series for event, series in self.series_by_event.items() if event.uid != uid}
        self.similar = {group: count for group, count in self.similar.items() if group.uid != uid}
