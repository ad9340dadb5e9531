"""The whole engine on one card in ten minutes: `make bench-gpu`. Prints cells as they come and keeps them as JSON.

Each section is a process of its own, so that its memory is free for the next one and a crash costs one section. What
came until the time is over is kept; sections and cells that there was no time for are said. `--dry` runs every line on
a CPU with a tiny model; its figures mean nothing. `--write` puts the results into docs/benchmarks.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module, metadata
from pathlib import Path
from typing import Final

import torch

from bench.gpu import book, models, page
from bench.gpu.book import Book, Cell
from bench.gpu.children import Ended, ended
from bench.gpu.section import Context, Section
from bench.gpu.sizes import DRY, FULL, Sizes

ROOT: Final = Path(__file__).parents[3]
BUDGET_S: Final = 545.0
"""Of ten minutes: a section that is cut may take the rest to stop."""
RESULTS: Final = ROOT / ".kvasir" / "bench-gpu.json"
SECTIONS: Final[Mapping[str, tuple[str, str, float]]] = {
    "gate": ("bench.gpu.gate", "cells", 130.0),
    "ceilings": ("bench.gpu.ceilings", "cells", 40.0),
    "decode": ("bench.gpu.decode", "grid", 170.0),
    "prefill": ("bench.gpu.prefill", "grid", 70.0),
    "serving": ("bench.gpu.http_loads", "crowds", 150.0),
    "start": ("bench.gpu.http_loads", "starts", 90.0),
    "kernels": ("bench.gpu.kernels", "grid", 80.0),
    "peers": ("bench.gpu.peers", "cells", 150.0),
    "crossover": ("bench.gpu.crossover", "cells", 60.0),
    "graphs": ("bench.gpu.graphs", "cells", 110.0),
    "pauses": ("bench.gpu.pauses", "cells", 70.0),
    "long": ("bench.gpu.prefill", "longest", 200.0),
    "sweep": ("bench.gpu.http_loads", "sweep", 220.0),
}
"""Where each is, and the most of the budget that it may take; in the order in which they run."""
MORE: Final = ("crossover", "graphs", "pauses", "long", "sweep")
"""Which `--sections more` measures, in ten minutes of its own; `all` are the others."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 when the gate or a section failed."""
    asked = _arguments(arguments)
    if asked.child:
        return _child(asked)
    sizes = DRY if asked.dry else FULL
    if not asked.dry and not torch.cuda.is_available():
        raise SystemExit("bench-gpu measures a CUDA device, and torch finds none; --dry runs every line on a CPU")
    chosen = _chosen(asked.sections)
    found = _begun(asked, sizes)
    until = time.monotonic() + asked.budget
    with models.room(models.num_bytes(sizes.shape)) as folder:
        keeping = Keeping(book=found, file=asked.json, sizes=sizes, device=asked.device, folder=folder)
        run_all(keeping, chosen, until, in_this_process if asked.one_process else None)
    print(f"kept in {asked.json}")
    if asked.write:
        page.write(ROOT / "docs" / "benchmarks", found)
    return int(any(cell.status in ("failed", "void") for cell in found.cells) or not _all_ended(found, chosen))


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """A run that is going on. file: where every cell is kept as soon as it is there; folder: for models."""

    book: Book
    file: Path
    sizes: Sizes
    device: str
    folder: Path

    def keep(self, cell: Cell) -> None:
        """Say it and save it."""
        self.book.add(cell)
        self.save()
        print(book.line(cell), flush=True)

    def save(self) -> None:
        """All of the book."""
        book.save(self.book, self.file)

    def context(self, until: float) -> Context:
        """For a section. until: by the clock that all processes share."""
        return Context(sizes=self.sizes, device=self.device, folder=self.folder, book=self.book, until=until)


Here = Callable[[str, Context], Iterator[Cell]]


def run_all(keeping: Keeping, chosen: Sequence[str], until: float, here: Here | None = None) -> None:
    """Each section in turn, in processes of their own or here; after a failed gate nothing is worth measuring."""
    ends = keeping.book.ended
    for name in chosen:
        left = until - time.monotonic()
        if left <= 0:
            ends[name] = "skipped: the time was over"
        elif name != "gate" and any(one.section == "gate" and one.status == "failed" for one in keeping.book.cells):
            ends[name] = "skipped: the gate failed"
        else:
            print(f"\n{name}", flush=True)
            limit, began = min(left, SECTIONS[name][2]), time.monotonic()
            how = _run_here(name, keeping, began + limit, here) if here else _run_apart(name, keeping, limit)
            ends[name] = f"{how.said} after {time.monotonic() - began:.0f} s"
        if not ends[name].startswith("done"):
            print(f"{name}: {ends[name]}", flush=True)
        keeping.save()


def in_this_process(name: str, context: Context) -> Iterator[Cell]:
    """The section's own cells."""
    return section(name)(context)


def _run_here(name: str, keeping: Keeping, until: float, here: Here) -> Ended:
    try:
        for cell in here(name, keeping.context(until)):
            keeping.keep(cell)
    except Exception as error:  # noqa: BLE001 -- as in a process, which it would end alone
        return Ended(said=f"failed: {type(error).__name__}: {error}")
    return Ended(said="done")


def _run_apart(name: str, keeping: Keeping, limit: float) -> Ended:
    command = [sys.executable, "-m", "bench.gpu.run", "--child", name, "--folder", str(keeping.folder)]
    until = time.monotonic() + limit  # what it takes to import torch counts
    command += ["--json", str(keeping.file), "--until", f"{until:.1f}", "--device", keeping.device]
    if keeping.sizes.name == "dry":
        command.append("--dry")
    keeping.save()  # the section reads the ceilings there
    return ended(command, limit, lambda line: keeping.keep(book.cell_of(json.loads(line))), {"PYTHONPATH": _path()})


def _child(asked: argparse.Namespace) -> int:
    """One section: every cell is a line of JSON on a pipe that nothing else writes into."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers of the section are stopped
    sizes = DRY if asked.dry else FULL
    found = book.load(json.loads(asked.json.read_text()))
    keeping = Keeping(book=found, file=asked.json, sizes=sizes, device=asked.device, folder=asked.folder)
    with os.fdopen(int(os.environ["KVASIR_BENCH_PIPE"]), "w") as pipe:
        for cell in section(asked.child)(keeping.context(asked.until)):
            pipe.write(json.dumps(book.document_of(cell)) + "\n")
            pipe.flush()
    return 0


def section(name: str) -> Section:
    """Imported when it runs: torch's profiler and compiler, aiohttp and the engine are none of the parent's."""
    module, function, _ = SECTIONS[name]
    found: Section = getattr(import_module(module), function)
    return found


def _begun(asked: argparse.Namespace, sizes: Sizes) -> Book:
    """A new book, or the one that is there, to which sections are added."""
    if asked.add and asked.json.exists():
        return book.load(json.loads(asked.json.read_text()))
    card = "cpu" if asked.dry else torch.cuda.get_device_name()
    about = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "card": card,
        "driver": _driver(),
        "versions": f"torch {torch.__version__}, triton {_version('triton')}, python {platform.python_version()}",
        "command": "make bench-gpu" + (f' BENCH_ARGS="{" ".join(sys.argv[1:])}"' if sys.argv[1:] else ""),
        "sizes": sizes.name,
        "precision": sizes.dtype,
    }
    return Book(about=about)


def _driver() -> str:
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def _path() -> str:
    """Children import this package and the engine from where we did."""
    return os.pathsep.join([str(ROOT / "tests"), *filter(None, sys.path)])


def _chosen(names: str) -> list[str]:
    groups = {"all": [name for name in SECTIONS if name not in MORE], "more": MORE}
    wanted = [name for each in names.split(",") for name in groups.get(each, (each,))]
    unknown = [name for name in wanted if name not in SECTIONS]
    if unknown:
        raise SystemExit(f"no section {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    return [name for name in SECTIONS if name in wanted]


def _all_ended(found: Book, chosen: Sequence[str]) -> bool:
    return all(found.ended.get(name, "").startswith(("done", "skipped: the time")) for name in chosen)


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", default="all", help=f"all, more, or some of {', '.join(SECTIONS)}")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for all; later cells are skipped")
    parser.add_argument("--json", type=Path, default=RESULTS, help="keep the results here")
    parser.add_argument("--add", action="store_true", help="add to the results that are there")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/gpu.json and the tables of gpu.md")
    parser.add_argument("--dry", action="store_true", help="a tiny model on a CPU, to see that every line runs")
    parser.add_argument("--one-process", action="store_true", help="run sections in this process, for debuggers")
    parser.add_argument("--device", default="", help=argparse.SUPPRESS)
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    asked = parser.parse_args(given)
    asked.device = asked.device or ("cpu" if asked.dry else "cuda")
    return asked


if __name__ == "__main__":
    sys.exit(main())
