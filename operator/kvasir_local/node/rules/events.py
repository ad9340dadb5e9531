"""Folds repeated events into one object with a count, and says when a write is due; `recorder` writes."""

from dataclasses import dataclass, field, replace

REPEAT_WRITE_S = 10.0
SIMILAR_LIMIT = 10
COMBINED = "(combined from similar events)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something that happened to an object, or to the part of it that `field` names (may be empty)."""

    kind: str
    namespace: str
    name: str
    uid: str
    field: str
    reason: str
    message: str
    warning: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One event object: its name and message, how often it happened, when first, when last written (epoch seconds)."""

    name: str
    message: str
    count: int
    first: float
    written: float


@dataclass(slots=True)
class Aggregator:
    """Counts notes. The same note about the same object is one event, written at most every REPEAT_WRITE_S.

    Notes that differ in their message alone, such as probes that quote a clock, are combined after SIMILAR_LIMIT.
    """

    entries: dict[Note, Entry] = field(default_factory=dict)
    similar: dict[Note, int] = field(default_factory=dict)

    def due(self, note: Note, *, now: float) -> Entry | None:
        """Count the note; returns the entry when it must be written now (count 1: create it)."""
        group = replace(note, message="")
        if note not in self.entries and self.similar.get(group, 0) >= SIMILAR_LIMIT:
            note = replace(note, message=COMBINED)
        known = self.entries.get(note)
        if known is None:
            name = f"{note.name}.{int(now * 1e9):x}"
            entry = Entry(name=name, message=note.message, count=1, first=now, written=now)
            self.entries[note] = entry
            self.similar[group] = self.similar.get(group, 0) + 1
            return entry
        entry = replace(known, count=known.count + 1)
        is_due = now - known.written >= REPEAT_WRITE_S
        self.entries[note] = replace(entry, written=now) if is_due else entry
        return self.entries[note] if is_due else None

    def forget(self, uid: str) -> None:
        """Drop what is known of an object that is gone."""
        self.entries = {note: entry for note, entry in self.entries.items() if note.uid != uid}
        self.similar = {group: count for group, count in self.similar.items() if group.uid != uid}
