"""Folds repeated events into one object with a count, and says when a write is due; `recorder` writes."""

from dataclasses import dataclass, field, replace

REPEAT_WRITE_S = 10.0


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
    """One event object: its name, how often it happened, when first, when last written (seconds since 1970)."""

    name: str
    count: int
    first: float
    written: float


@dataclass(slots=True)
class Aggregator:
    """Counts notes. The same note about the same object is one event, written at most every REPEAT_WRITE_S."""

    entries: dict[Note, Entry] = field(default_factory=dict)

    def due(self, note: Note, *, now: float) -> Entry | None:
        """Count the note; returns the entry when it must be written now (count 1: create it)."""
        known = self.entries.get(note)
        if known is None:
            entry = Entry(name=f"{note.name}.{int(now * 1e9):x}", count=1, first=now, written=now)
            self.entries[note] = entry
            return entry
        entry = replace(known, count=known.count + 1)
        is_due = now - known.written >= REPEAT_WRITE_S
        self.entries[note] = replace(entry, written=now) if is_due else entry
        return self.entries[note] if is_due else None

    def forget(self, uid: str) -> None:
        """Drop what is known of an object that is gone."""
        for note in [note for note in self.entries if note.uid == uid]:
            del self.entries[note]
