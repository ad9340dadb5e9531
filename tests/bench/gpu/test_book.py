"""Cells, ratios, floors and the page: what is void, what is met, and what nobody measured."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from bench.gpu import book, crossover, decode, floors, http_loads, idle, kernels, page, prefill
from bench.gpu.book import Book, Cell, Goal, measured
from bench.gpu.floors import Ceilings
from bench.gpu.pauses import Interrupted
from bench.gpu.sizes import FULL, LLAMA_8B
from bench.shapes import work
from kvasir_api.state import RuntimeState
from kvasir_runtime.kernels.backends import ops_for
from kvasir_runtime.wire import EngineOutput, StepOutputs, Submit, ToEngine

TOP = Ceilings(read=4.3e12, flops=790e12)
WORK = work(LLAMA_8B)
HEAD = 128_256 * 4096


@pytest.mark.parametrize(
    ("values", "floor", "more", "ratio", "status"),
    [
        ([2.0, 4.0, 3.0], 1.5, False, 0.5, "measured"),
        ([1.0], 1.0, False, 1.0, "measured"),
        ([1.0], 1.01, False, 1.01, "void"),
        ([80.0], 100.0, True, 0.8, "measured"),
        ([101.0], 100.0, True, 1.01, "void"),
        ([1.0], 0.0, False, None, "measured"),
    ],
)
def test_a_ratio_above_one_voids_the_cell(
    values: list[float], floor: float, more: bool, ratio: float | None, status: str
) -> None:
    cell = measured("s", "c", values, floor=floor, more=more)
    assert cell.ratio == (None if ratio is None else pytest.approx(ratio))
    assert cell.status == status
    assert ("void" in book.line(cell)) == (status == "void")


@pytest.mark.parametrize(
    ("goal", "value", "met"),
    [
        (Goal(sense="ratio", value=0.85), 1.1, True),
        (Goal(sense="ratio", value=0.95), 1.1, False),
        (Goal(sense="at most", value=1.1), 1.1, True),
        (Goal(sense="at most", value=1.0), 1.1, False),
        (Goal(sense="at least", value=1.2), 1.1, False),
        (Goal(), 1.1, None),
        (Goal(sense="at most", value=9.0), 0.9, None),  # void: nothing is met by a wrong measurement
    ],
)
def test_goals_are_judged_by_their_sense(goal: Goal, value: float, met: bool | None) -> None:
    assert measured("s", "c", [value], floor=1.0, goal=goal).met is met


def test_spreads_are_said_where_they_are_wide() -> None:
    even = measured("s", "c", [float(100 + n % 3) for n in range(50)])
    uneven = measured("s", "c", [float(100 + n) for n in range(50)])
    assert "spread" not in book.line(even)
    assert "spread 33%" in book.line(uneven)
    assert measured("s", "c", []).status == "failed"


def test_a_book_is_what_was_saved(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "b.json"
    run = Book(about={"date": "d"}, ended={"s": "done"})
    run.add(measured("s", "c", [1.0, 2.0], floor=1.0, goal=Goal(sense="ratio", value=0.5), note="n"))
    run.add(book.skipped("s", "d", "no time"))
    run.add(measured("s", "c", [4.0], floor=1.0))  # again: the newer one counts
    book.save(run, file)
    again = book.load(json.loads(file.read_text()))
    assert (again.about, again.ended) == (run.about, run.ended)
    assert {cell.name: cell.ratio for cell in again.cells} == {"c": 0.25, "d": None}
    assert (again.value("s", "c"), again.value("s", "d"), again.value("s", "e")) == (4.0, 0.0, 0.0)
    assert [path.name for path in file.parent.iterdir()] == ["b.json"]
    with pytest.raises(ValueError, match="schema 2, expected 1"):
        book.load({"schema": 2})


@pytest.mark.parametrize(
    ("batch", "context", "weights", "kv_bytes", "ms"),
    [(1, 1024, 2.0, 2, 3.52), (1, 8192, 2.0, 2, 3.74), (64, 1024, 2.0, 2, 5.49), (256, 1024, 2.0, 2, 12.85)],
)
def test_floors_of_steps_are_those_worked_out_by_hand(
    batch: int, context: int, weights: float, kv_bytes: int, ms: float
) -> None:
    found = floors.step(batch, context, WORK, WORK.weights * weights, kv_bytes, TOP)
    assert found * 1e3 == pytest.approx(ms, rel=0.01)


@pytest.mark.parametrize(("tokens", "ms"), [(128, 3.49), (1024, 18.4), (8192, 167), (32_768, 935)])
def test_floors_of_prompts_are_those_worked_out_by_hand(tokens: int, ms: float) -> None:
    found = floors.prefill(tokens, 0, WORK, HEAD, WORK.weights * 2.0, TOP)
    assert found * 1e3 == pytest.approx(ms, rel=0.02)


def test_the_floor_of_a_load_is_that_worked_out_by_hand() -> None:
    found = floors.load(256, 1000, 1000, WORK, HEAD, WORK.weights * 2.0, 2, TOP)
    assert found == pytest.approx(12_080, rel=0.02)


def test_without_ceilings_there_is_no_floor() -> None:
    nothing = floors.ceilings_of(Book(), "bfloat16")
    assert not nothing.known
    assert floors.step(1, 1, WORK, 1, 2, nothing) == floors.prefill(1, 0, WORK, 1, 1, nothing) == 0.0


def test_gaps_are_what_no_step_fills() -> None:
    busy = [(5.0, 6.0), (0.0, 2.0), (1.0, 1.5), (3.0, 4.0), (3.5, 4.5)]
    assert idle.gaps(busy, counted=1.0) == pytest.approx(1.0 + 0.5)
    assert idle.gaps(busy, counted=0.4) == pytest.approx(0.5)  # the later two of five
    trace = {"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 2e6, "dur": 1e6}, {"ph": "X", "cat": "cpu_op"}, {}]}
    assert idle.intervals(trace, idle.ON_CARD) == [(2.0, 3.0)]


def test_the_page_names_what_was_not_measured_and_how_to() -> None:
    text = page.text(None)
    assert "Nobody has measured a card yet" in text
    assert text.count("unmeasured: `make bench-gpu") == len(page.GOALS)


def test_the_page_shows_a_run_as_it_was() -> None:
    name = "decode, bfloat16, 1 x 1024"
    about = {"date": "2030-01-01", "card": "C", "driver": "1", "versions": "v", "command": "make bench-gpu"}
    run = Book(about=about, ended={"decode": "cut: the time was over after 170 s"})
    run.add(measured("decode", name, [4e-3], floor=3.5e-3, goal=Goal(sense="ratio", value=0.85)))
    run.add(measured("decode", "decode, bfloat16, 64 x 1024", [4e-3], floor=5e-3))
    run.add(book.skipped("decode", "decode, bfloat16, 256 x 1024", "no time was left"))
    run.add(book.failed("kernels", "attention, decode, 64 x 8192", "a | broken\nkernel"))
    text = page.text(run)
    assert "| 0.85 of the floor | 4 ms, met | 0.88 |" in text
    assert "void: 1.25 of the floor" in text
    assert "unmeasured (no time was left): `make bench-gpu" in text
    assert "failed: a / broken kernel" in text
    assert "The section ended early: cut" in text
    assert "### Serving over HTTP\n\nunmeasured" in text


def test_the_page_that_is_committed_is_what_its_results_say(tmp_path: Path) -> None:
    """`python -m bench.gpu.page` writes it."""
    kept = page.FOLDER / "gpu.json"
    run = book.load(json.loads(kept.read_text())) if kept.exists() else None
    (tmp_path / "gpu.md").write_text((page.FOLDER / "gpu.md").read_text())
    page.write(tmp_path, run)
    assert (tmp_path / "gpu.md").read_text() == (page.FOLDER / "gpu.md").read_text()
    (tmp_path / "gpu.md").write_text("no marks")
    with pytest.raises(ValueError, match="must hold"):
        page.write(tmp_path, run)


def test_every_goal_of_the_page_is_a_cell_that_a_full_run_makes() -> None:
    made = {("decode", f"decode, {FULL.dtype}, {b} x {c}") for b, c in FULL.decode}
    made |= {("decode", f"decode, {q}, {b} x {c}") for q in decode.VARIANTS for b, c in FULL.decode}
    made |= {
        ("decode", f"device idle in a step, 1 x {FULL.decode[0][1]}"),
        ("decode", "kv cache, pinned without a token"),
    }
    made |= {("prefill", f"prefill, {FULL.dtype}, {tokens}") for tokens in FULL.prefill}
    made |= {("prefill", f"cold over {FULL.prefix}")}
    made |= {("serving", f"{c} clients over HTTP, {i} in, {o} out") for c, _, i, o in FULL.crowds}
    made |= {("serving", f"first token over HTTP, {FULL.first_token[0]} tokens")}
    made |= {("serving", f"first token of {c} clients over HTTP, {i} in, {o} out") for c, _, i, o in FULL.crowds}
    made |= {("long", f"prefill, {FULL.dtype}, {FULL.long_prompt}"), ("long", f"cold over {FULL.far_prefix}")}
    for clients in FULL.sweep:
        made |= {("sweep", f"{of}{clients} clients over HTTP, fp8") for of in ("", "first token of ")}
    cpu = torch.device("cpu")
    every = {cell.name for cell in kernels.cells(kernels.Scale(), ops_for(cpu), cpu, torch.bfloat16)}
    made |= {("kernels", name) for name in every}
    assert {(row.section, row.cell) for row in page.GOALS} <= made
    assert set(decode.GOALS) <= {(q, *cell) for q in (FULL.dtype, *decode.VARIANTS) for cell in FULL.decode}
    assert set(prefill.GOALS) <= set(FULL.prefill)
    assert set(http_loads.CROWD_GOALS) == {(clients, prompt, answer) for clients, _, prompt, answer in FULL.crowds}
    assert set(http_loads.FP8_GOALS) <= {(clients, *FULL.sweep_lengths) for clients in FULL.sweep}
    assert set(kernels.GOALS) <= every


@pytest.mark.parametrize(
    ("ours", "other", "want"),
    [
        ((1.0, 2.0, 5.0), (2.0, 3.0, 4.0), 64),
        ((1.0, 4.0, 5.0), (2.0, 3.0, 4.0), 8),
        ((3.0, 2.0, 3.0), (2.0, 3.0, 4.0), 0),  # slower with few alone
        ((1.0, 2.0, 3.0), (2.0, 3.0, 4.0), 0),
        ((3.0, 4.0, 5.0), (2.0, 3.0, 4.0), 1),
    ],
)
def test_sixteen_bits_are_quicker_from_where_they_stay_so(
    ours: tuple[float, ...], other: tuple[float, ...], want: int
) -> None:
    tokens = (1, 8, 64)
    measured_ones = (dict(zip(tokens, each, strict=True)) for each in (ours, other))
    assert crossover.first_quicker(tokens, *measured_ones) == want


def test_gaps_of_streams_are_told_from_those_under_prompts() -> None:
    script = Interrupted([(1, 2)] * 2, [(3,) * 9] * 2, budget=8, warm=1, steps=2)
    first, second = names_of(script.begin())
    now, sent = 0.0, list[str]()
    for gap in (1.0, 1.0, 1.0, 1.0, 5.0, 7.0):
        now += gap
        outputs = [EngineOutput(request_id=name, token_ids=(5,)) for name in (first, second)]
        outputs += [EngineOutput(request_id=one, token_ids=(5,), finish_reason="length") for one in sent]
        answer = script.heard(StepOutputs(tuple(outputs), RuntimeState()), now)
        sent = names_of(answer or ())
    assert answer is None
    assert (script.alone, script.beside, script.wrong) == ([1.0] * 4, [5.0, 5.0, 7.0, 7.0], "")
    ended = EngineOutput(request_id=first, token_ids=(), finish_reason="length")
    assert script.heard(StepOutputs((ended,), RuntimeState()), now) is None
    assert "a stream ended" in script.wrong


def names_of(messages: Sequence[ToEngine]) -> list[str]:
    return [message.request.request_id for message in messages if isinstance(message, Submit)]


def test_cells_are_of_their_shape_only() -> None:
    cell = Cell(section="s", name="n", goal=Goal(sense="at most", value=1.0))
    assert book.cell_of(json.loads(json.dumps(book.document_of(cell)))) == cell
