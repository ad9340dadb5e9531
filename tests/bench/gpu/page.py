"""Writes docs/benchmarks/gpu.md between two marks from a run's results; what nobody measured says so, with the command.

`python -m bench.gpu.page` writes it anew from the committed gpu.json, or without one.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from bench import marked_page
from bench.gpu import book
from bench.gpu.book import Book, Cell, Goal, said

MARKS: Final = ("<!-- measured: written by make bench-gpu -->", "<!-- end of measured -->")
COMMAND: Final = "make bench-gpu BENCH_ARGS=--write"
FOLDER: Final = Path(__file__).parents[3] / "docs" / "benchmarks"


class Row(NamedTuple):
    """A figure that is aimed at: where a run has it, and what it should be."""

    title: str
    section: str
    cell: str
    goal: str


GOALS: Final = (
    Row("Decode, bfloat16, 1 sequence of 1,024", "decode", "decode, bfloat16, 1 x 1024", "0.85 of the floor"),
    Row("Decode, bfloat16, 64 of 1,024", "decode", "decode, bfloat16, 64 x 1024", "0.85 of the floor"),
    Row("Decode, bfloat16, 256 of 1,024", "decode", "decode, bfloat16, 256 x 1024", "0.90 of the floor"),
    Row("Decode, fp8, 1 of 1,024", "decode", "decode, fp8, 1 x 1024", "0.72 of the floor"),
    Row("Prefill, bfloat16, 1,024", "prefill", "prefill, bfloat16, 1024", "0.88 of the floor"),
    Row("Prefill, bfloat16, 8,192", "prefill", "prefill, bfloat16, 8192", "0.83 of the floor"),
    Row(
        "256 clients over HTTP, 1,000 in, 1,000 out",
        "serving",
        "256 clients over HTTP, 1000 in, 1000 out",
        "0.78 of the floor",
    ),
    Row("64 clients over HTTP, 128 in, 128 out", "serving", "64 clients over HTTP, 128 in, 128 out", "10,000 tokens/s"),
    Row("First token over HTTP, prompt of 128", "serving", "first token over HTTP, 128 tokens", "at most 10 ms"),
    Row("A follow-up on 32,768 cached tokens against cold", "prefill", "cold over 32768", "60 times"),
    Row("Decode attention alone, 64 of 8,192", "kernels", "attention, decode, 64 x 8192", "0.95 of the floor"),
    Row("The device waits in a step of 1 sequence", "decode", "device idle in a step, 1 x 1024", "at most 100 us"),
    Row("Prefill, bfloat16, 131,072", "long", "prefill, bfloat16, 131072", "0.68 of the floor"),
    Row("A follow-up on 200,000 cached tokens against cold", "long", "cold over 200000", "60 times"),
    Row("64 clients over HTTP, fp8, 128 in, 128 out", "sweep", "64 clients over HTTP, fp8", "17,000 tokens/s"),
    Row(
        "First token of 64 clients, 128 in, 128 out",
        "serving",
        "first token of 64 clients over HTTP, 128 in, 128 out",
        "at most 100 ms",
    ),
    Row(
        "First token of 64 clients, fp8, 128 in, 128 out",
        "sweep",
        "first token of 64 clients over HTTP, fp8",
        "at most 100 ms",
    ),
    Row("Places of the KV cache without a token", "decode", "kv cache, pinned without a token", "at most 4 %"),
)
TITLES: Final = {
    "gate": "Right before quick",
    "ceilings": "Ceilings",
    "decode": "Decode",
    "prefill": "Prefill",
    "serving": "Serving over HTTP",
    "start": "Start",
    "kernels": "Kernels",
    "peers": "Peers",
    "crossover": "From how many tokens on 16 bits are quicker",
    "graphs": "Recorded graphs",
    "pauses": "Pauses of streams under prompts",
    "long": "Long prompts",
    "sweep": "From 1 to 512 clients",
}


def write(folder: Path, run: Book | None) -> None:
    """Replace what is between the marks; a run is kept beside the page. Raises ValueError without the marks."""
    file = folder / "gpu.md"
    page = marked_page.replaced(file.read_text(), MARKS, text(run))
    if run is not None:
        book.save(run, folder / "gpu.json")
    file.write_text(page)


def text(run: Book | None) -> str:
    """Markdown: when, where and how; what is aimed at; every cell by section."""
    return "\n".join(_lines(run))


def _lines(run: Book | None) -> Iterator[str]:
    if run is None:
        yield f"Nobody has measured a card yet. `{COMMAND}` does, in ten minutes on one card, and fills this in."
    else:
        about = run.about
        yield f"Measured {about['date']} on one {about['card']} (driver {about['driver']}; {about['versions']})"
        yield f"by `{about['command']}`. Floors follow from the ceilings of the same run."
    yield from ("", "| what is aimed at | goal | measured | of the floor |", "|---|---|---|---|")
    for row in GOALS:
        yield _goal_line(row, run)
    if run is None:
        return
    for section, title in TITLES.items():
        cells = [cell for cell in run.cells if cell.section == section]
        if not cells:
            yield from (
                "",
                f"### {title}",
                "",
                f'unmeasured: `make bench-gpu BENCH_ARGS="--add --write --sections {section}"`',
            )
            continue
        yield from (
            "",
            f"### {title}",
            "",
            "| cell | median | p10 to p90 | readings | floor | ratio | |",
            "|---|---|---|---|---|---|---|",
        )
        for cell in cells:
            yield _cell_line(cell)
        how = run.ended.get(section, "")
        if how and not how.startswith("done"):
            yield from ("", f"The section ended early: {how}.")


def _goal_line(row: Row, run: Book | None) -> str:
    found = next((c for c in run.cells if (c.section, c.name) == (row.section, row.cell)), None) if run else None
    if found is None or found.status in ("skipped", "failed"):
        why = f" ({found.why})" if found is not None else ""
        return f"| {row.title} | {row.goal} | unmeasured{why}: `{_command(row.section)}` | |"
    if found.status == "void":
        return f"| {row.title} | {row.goal} | void: {found.why} | |"
    ratio = "" if found.ratio is None else f"{found.ratio:.2f}"
    judged = {None: "", True: ", met", False: ", not met"}[found.met]
    return f"| {row.title} | {row.goal} | {said(found.median, found.unit)}{judged} | {ratio} |"


def _cell_line(cell: Cell) -> str:
    if cell.status in ("skipped", "failed"):
        return f"| {cell.name} | {cell.status}: {_plain(cell.why)} | | | | | |"
    spread = f"{said(cell.p10, cell.unit)} to {said(cell.p90, cell.unit)}" if cell.n > 1 else ""
    floor = said(cell.floor, cell.unit) if cell.floor else ""
    ratio = "void" if cell.status == "void" else "" if cell.ratio is None else f"{cell.ratio:.2f}"
    note = _plain(cell.why or cell.note) + _goal(cell.goal)
    return f"| {cell.name} | {said(cell.median, cell.unit)} | {spread} | {cell.n} | {floor} | {ratio} | {note} |"


def _goal(goal: Goal) -> str:
    return f" (goal: {goal.sense} {goal.value:g})" if goal.sense else ""


def _plain(said_of_it: str) -> str:
    return said_of_it.replace("|", "/").replace("`", "'")


def _command(section: str) -> str:
    return f'make bench-gpu BENCH_ARGS="--add --write --sections gate,ceilings,{section}"'


def main() -> int:
    """From what is committed."""
    kept = FOLDER / "gpu.json"
    write(FOLDER, book.load(json.loads(kept.read_text())) if kept.exists() else None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
