"""What a run on a card measured, cell by cell: which ratios hold, what is void, and the file that keeps it all.

Pure but for `save`. A cell is one number with its spread, the floor that the same run's ceilings give it, and a goal.
The file is written whole after every cell, so that a run that is cut keeps what it has.
"""

import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

SCHEMA: Final = 1
WIDE: Final = 0.05
"""A spread of p10 to p90 above this share of the median is said: such a figure is no figure yet."""

Status = Literal["measured", "void", "skipped", "failed"]
Sense = Literal["ratio", "at least", "at most", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is aimed at: a ratio to the floor, or a value that is to be reached or not to be exceeded."""

    sense: Sense = ""
    value: float = 0.0


NO_GOAL: Final = Goal()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """unit: of median and floor: s, tokens/s, B/s, FLOP/s, x (times), fraction. more: a larger value is better.

    floor: the best that the ceilings of the run allow, 0 where there is none. why: for what was not measured, or void.
    """

    section: str
    name: str
    unit: str = "s"
    median: float = 0.0
    p10: float = 0.0
    p90: float = 0.0
    n: int = 0
    floor: float = 0.0
    more: bool = False
    goal: Goal = NO_GOAL
    status: Status = "measured"
    why: str = ""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Of the floor, 1 at best; None where there is no floor or no value."""
        if self.status not in ("measured", "void") or not self.floor or not self.median:
            return None
        return self.median / self.floor if self.more else self.floor / self.median

    @property
    def spread(self) -> float:
        """p10 to p90 as a share of the median."""
        return (self.p90 - self.p10) / self.median if self.median else 0.0

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where there is none, or nothing to judge."""
        if not self.goal.sense or self.status != "measured":
            return None
        if self.goal.sense == "ratio":
            return self.ratio is not None and self.ratio >= self.goal.value
        return self.median >= self.goal.value if self.goal.sense == "at least" else self.median <= self.goal.value


def measured(section: str, name: str, values: Sequence[float], **rest: Any) -> Cell:
    """A cell of several readings. Void where its ratio is above 1: then the benchmark is wrong, not the engine."""
    if not values:
        return Cell(section=section, name=name, status="failed", why="no reading", **_shape(rest))
    ordered = sorted(values)
    cell = Cell(
        section=section,
        name=name,
        median=statistics.median(ordered),
        p10=ordered[int(0.1 * (len(ordered) - 1))],
        p90=ordered[-1 - int(0.1 * (len(ordered) - 1))],
        n=len(ordered),
        **rest,
    )
    if cell.ratio is not None and cell.ratio > 1.0:
        return _with(cell, status="void", why=f"{cell.ratio:.2f} of the floor: the measurement is wrong")
    return cell


def skipped(section: str, name: str, why: str) -> Cell:
    """A cell that there was no time, or no library, for."""
    return Cell(section=section, name=name, status="skipped", why=why)


def failed(section: str, name: str, why: str) -> Cell:
    """A cell that broke."""
    return Cell(section=section, name=name, status="failed", why=" ".join(why.split())[-400:])


def _shape(rest: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in rest.items() if name in ("unit", "more", "goal", "floor")}


def _with(cell: Cell, **changes: Any) -> Cell:
    kept = {name: getattr(cell, name) for name in Cell.__dataclass_fields__}
    return Cell(**{**kept, **changes})


@dataclass(slots=True, kw_only=True)
class Book:
    """One run. about: date, card, driver, versions, command, sizes. ended: how each section ended, and when."""

    about: dict[str, str] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)

    def add(self, cell: Cell) -> None:
        """A newer one of the same name replaces the older."""
        self.cells = [one for one in self.cells if (one.section, one.name) != (cell.section, cell.name)] + [cell]

    def find(self, section: str, name: str) -> Cell | None:
        """A measured cell."""
        for cell in self.cells:
            if (cell.section, cell.name) == (section, name) and cell.status == "measured":
                return cell
        return None

    def value(self, section: str, name: str) -> float:
        """The median of a measured cell, 0 without one."""
        cell = self.find(section, name)
        return cell.median if cell else 0.0

    def document(self) -> dict[str, Any]:
        """For JSON; ratios are written beside what they follow from, for readers of the file."""
        cells = [asdict(cell) | {"ratio": cell.ratio, "met": cell.met} for cell in self.cells]
        return {"schema": SCHEMA, "about": self.about, "ended": self.ended, "cells": cells}


def load(document: Mapping[str, Any]) -> Book:
    """The book of a document. Raises ValueError for another schema."""
    if document.get("schema") != SCHEMA:
        raise ValueError(f"schema {document.get('schema')!r}, expected {SCHEMA}")
    return Book(
        about=dict(document["about"]),
        cells=[cell_of(each) for each in document["cells"]],
        ended=dict(document["ended"]),
    )


def document_of(cell: Cell) -> dict[str, Any]:
    """What `cell_of` reads."""
    return asdict(cell)


def cell_of(document: Mapping[str, Any]) -> Cell:
    """One cell as `asdict` gave it."""
    known = {name: document[name] for name in Cell.__dataclass_fields__ if name in document}
    return Cell(**{**known, "goal": Goal(**document["goal"])})


def save(book: Book, file: Path) -> None:
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    with os.fdopen(descriptor, "w") as stream:
        stream.write(json.dumps(book.document(), indent=1) + "\n")
    Path(temporary).replace(file)


def line(cell: Cell) -> str:
    """One line of the table that a run prints."""
    if cell.status in ("skipped", "failed"):
        return f"{cell.name:44} {cell.status}: {cell.why}"
    ratio = "" if cell.ratio is None else ("void" if cell.status == "void" else f"{cell.ratio:.2f}")
    floor = said(cell.floor, cell.unit) if cell.floor else ""
    judged = {None: "", True: "met", False: "below the goal"}[cell.met]
    wide = f" spread {cell.spread:.0%}" if cell.spread > WIDE else ""
    return (
        f"{cell.name:44} {said(cell.median, cell.unit):>14} {floor:>14} {ratio:>6} {judged}{wide} {cell.note}".rstrip()
    )


def said(value: float, unit: str) -> str:
    """A value for people."""
    for name, factor in {"s": (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))}.get(unit, ()):
        if value >= factor or name == "us":
            return f"{value / factor:.4g} {name}"
    for name, factor in (("T", 1e12), ("G", 1e9)):
        if unit in ("B/s", "FLOP/s") and value >= factor:
            return f"{value / factor:.3g} {name}{unit}"
    return f"{value:.0%}" if unit == "fraction" and value >= 0.1 else f"{value:,.4g} {unit}"
