"""Every line of the benchmark for cards runs on a CPU: the real engine, server and peers with a tiny model.

Figures mean nothing here and none is judged; what is judged is that each section ends, says all its cells, keeps them,
and lets itself be cut.
"""

import json
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from bench.gpu import book, children, page, run
from bench.gpu.book import Book, Cell, measured
from bench.gpu.decode import Steady
from bench.gpu.inprocess import Late, Served, prompt
from bench.gpu.models import provided
from bench.gpu.prefill import OneByOne
from bench.gpu.section import Context
from bench.gpu.sizes import DRY
from fakes.overlapping import Overlapping
from fakes.recording import OPS, Recordings
from kvasir_runtime.runner.startup.build import build


def ran(file: Path, sections: str, *more: str) -> Book:
    run.main(["--dry", "--one-process", "--json", str(file), "--sections", sections, *more])
    return book.load(json.loads(file.read_text()))


def names(found: Book, section: str) -> dict[str, str]:
    return {cell.name: cell.status for cell in found.cells if cell.section == section}


@pytest.mark.parametrize(
    ("section", "cells", "absent"),
    [
        ("ceilings", 6, ()),
        ("decode", 7, ("decode, fp8", "decode, fp8 and its cache")),
        ("prefill", 5, ()),
        ("kernels", 19, ()),
        ("serving", 2, ()),
        ("peers", 4, ()),
        ("crossover", 8, ()),
        ("graphs", 4, ()),
        ("pauses", 3, ()),
        ("long", 6, ()),
        ("sweep", 8, ()),
    ],
)
def test_a_section_says_all_its_cells(tmp_path: Path, section: str, cells: int, absent: tuple[str, ...]) -> None:
    found = ran(tmp_path / "b.json", section)
    said = names(found, section)
    wrong = {name: status for name, status in said.items() if status not in ("measured", "void")}
    assert set(wrong) <= set(absent), [cell.why for cell in found.cells]
    assert len(said) >= cells - len(absent)
    assert found.ended[section].startswith("done")
    assert "wrong" not in page.text(found)
    if section == "peers":
        assert found.value("peers", "3 requests of mixed lengths, ours") > 0


def test_starts_are_measured_with_and_without_a_plan(tmp_path: Path) -> None:
    """Of the real server, which keeps the plan of its first start."""
    context = Context(sizes=DRY, device="cpu", folder=tmp_path, book=Book(), until=time.monotonic() + 100)
    cells = list(run.section("start")(context))
    assert [cell.status for cell in cells] == ["measured"] * 3, [cell.why for cell in cells]
    (plan,) = (tmp_path / "plans").iterdir()
    assert json.loads(plan.read_text())["measured"]["peak_bytes"] >= 0


def test_floors_follow_from_the_ceilings_of_the_same_run(tmp_path: Path) -> None:
    file = tmp_path / "b.json"
    ran(file, "ceilings")
    document = json.loads(file.read_text())
    for cell in document["cells"]:
        cell["median"] = 1e3 if cell["unit"] != "s" else cell["median"]  # a card so slow that no cell can be right
    file.write_text(json.dumps(document))
    found = ran(file, "prefill", "--add")
    voided = [cell for cell in found.cells if cell.section == "prefill" and cell.floor]
    assert len(voided) == 4
    assert {cell.status for cell in voided} == {"void"}
    assert "void" in page.text(found)


def test_a_section_of_a_process_keeps_what_it_had_when_it_was_cut(tmp_path: Path) -> None:
    """The child says two cells and then hangs, with a child of its own."""
    script = (
        "import os, subprocess, sys, time\n"
        "pipe = os.fdopen(int(os.environ['KVASIR_BENCH_PIPE']), 'w')\n"
        "print('noise that is no cell')\n"
        "for n in range(2):\n"
        "    pipe.write(f'cell {n}\\n'); pipe.flush()\n"
        "held = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "pipe.write(f'{held.pid}\\n'); pipe.flush()\n"
        "time.sleep(600)\n"
    )
    lines: list[str] = []
    limit_s = 1.0
    while len(lines) < 3:  # until it was not cut before a busy machine had started it
        lines.clear()
        how = children.ended(
            [sys.executable, "-c", script], limit_s, lambda line: lines.append(line.strip()), {}, grace_s=0.5
        )
        assert how.said == "cut: the time was over"
        limit_s *= 2
    assert lines[:2] == ["cell 0", "cell 1"]
    deadline = time.monotonic() + 60  # it was sent a SIGKILL, which a busy machine carries out later
    while _runs(Path(f"/proc/{lines[2]}/stat")):
        assert time.monotonic() < deadline, "the child of the section outlived it"
        time.sleep(0.01)


def _runs(stat: Path) -> bool:
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_section_that_breaks_is_said_with_its_last_words() -> None:
    how = children.ended([sys.executable, "-c", "raise SystemExit('no such card')"], 60.0, print, {})
    assert how.said == "failed with 1: ...no such card"


def test_a_section_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "b.json"
    assert run.main(["--dry", "--json", str(file), "--sections", "ceilings"]) in (0, 1)
    found = book.load(json.loads(file.read_text()))
    assert found.value("ceilings", "reading") > 0
    assert found.ended["ceilings"].startswith("done")


def test_what_there_was_no_time_for_is_said(tmp_path: Path) -> None:
    found = ran(tmp_path / "b.json", "ceilings,decode,serving", "--budget", "0")
    assert not found.cells
    assert set(found.ended.values()) == {"skipped: the time was over"}


def test_cells_that_there_was_no_time_for_are_said(tmp_path: Path) -> None:
    for section in ("decode", "prefill", "serving", "start", "kernels", "peers", *run.MORE):
        context = Context(sizes=DRY, device="cpu", folder=tmp_path, book=Book(), until=0.0)
        cells = list(run.section(section)(context))
        assert cells
        assert {cell.status for cell in cells} == {"skipped"}
    assert not list(tmp_path.iterdir())


def test_a_failed_gate_leaves_the_rest_unmeasured(tmp_path: Path) -> None:
    file = tmp_path / "b.json"
    kept = Book(about={"date": "d"})
    kept.add(book.failed("gate", "kernels agree with their references", "they do not"))
    book.save(kept, file)
    found = ran(file, "ceilings", "--add")
    assert found.ended["ceilings"] == "skipped: the gate failed"


def test_the_gate_runs_tests_and_counts_them(tmp_path: Path) -> None:
    context = Context(sizes=DRY, device="cpu", folder=tmp_path, book=Book(), until=1e6, clock=lambda: 0.0)
    (cell,) = run.section("gate")(context)
    assert cell.status == "measured", cell.why
    assert cell.median == 2


def test_a_load_that_takes_too_long_ends_and_leaves_the_engine_fit(tmp_path: Path) -> None:
    served = Served(provided(tmp_path / "m", DRY.shape, torch.device("cpu")), DRY, "cpu")
    ids = list(range(3, 40))
    with pytest.raises(Late, match="not done within 0 s"):
        served.run(OneByOne([ids] * 50), 0.0)
    script = OneByOne([ids] * 3)
    served.run(script, 60.0)
    assert len(script.seconds) == 2
    assert script.cached == [32, 32]


def test_loads_follow_one_another_on_rows_and_graphs_of_a_device(tmp_path: Path) -> None:
    """As on a card: rows on the device, steps launched ahead and recorded, one engine after the other on one runner."""
    model = provided(tmp_path / "m", DRY.shape, torch.device("cpu"))
    on_device = partial(build, device_stream=Overlapping(), new_capturer=Recordings, ops=OPS)
    served = Served(model, DRY, "cpu", build=on_device, max_sequences=4, max_batch_tokens=64)
    assert served.runner.facts.kernels.endswith(", graphs")
    for seed in range(2):
        steady = Steady([prompt(20, DRY.shape.vocab_size, (seed, n)) for n in range(3)], 512, 2, 4)
        served.run(steady, 60.0)
        assert steady.contexts == [22.0, 23.0, 24.0, 25.0, 26.0]
        one_by_one = OneByOne([prompt(40, DRY.shape.vocab_size, (seed, "alone", n)) for n in range(3)])
        served.run(one_by_one, 60.0)
        assert len(one_by_one.seconds) == 2
    served.close()


def test_unknown_sections_and_absent_cards_are_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no section 'speed'; there are gate, ceilings"):
        run.main(["--dry", "--sections", "speed", "--json", str(tmp_path / "b.json")])
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit, match="torch finds none; --dry runs every line on a CPU"):
            run.main(["--json", str(tmp_path / "b.json")])


def broken(_: Context) -> Iterator[Cell]:
    yield measured("decode", "one", [1.0])
    raise RuntimeError("an illegal memory access")


def test_a_section_that_raises_costs_itself_only(tmp_path: Path) -> None:
    kept = Book()
    keeping = run.Keeping(book=kept, file=tmp_path / "b.json", sizes=DRY, device="cpu", folder=tmp_path)
    run.run_all(
        keeping,
        ["decode", "ceilings"],
        1e6,
        lambda name, context: [broken, run.section(name)][name == "ceilings"](context),
    )
    assert kept.ended["decode"].startswith("failed: RuntimeError: an illegal memory access")
    assert kept.value("decode", "one") == 1.0
    assert kept.ended["ceilings"].startswith("done")
    assert book.load(json.loads((tmp_path / "b.json").read_text())).ended == kept.ended
