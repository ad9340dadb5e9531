"""The arithmetic behind the benchmark's tables."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench import ceilings, limits, page, probes, results
from bench.limits import Ceilings
from bench.scaling import Try, point
from bench.shapes import SHAPES, Work, drawable, tokenizer_of, work
from kvasir_runtime.bench.workload import WORDS, WorkloadRequest
from kvasir_runtime.kernels.cpu.library import library

TOP = Ceilings(read=1e9, products={1: 1e9, 32: 4e9, 512: 8e9})


def test_work_of_the_small_shape() -> None:
    """131 million weights with the input embedding, which no step multiplies."""
    assert work(SHAPES["small"]).weights == 124_256_256
    assert work(SHAPES["small"]).kv_width == 12 * 2 * 4 * 64


@pytest.mark.parametrize(("rows", "rate"), [(1, 1e9), (31, 1e9), (32, 4e9), (511, 4e9), (4096, 8e9)])
def test_rate_is_of_the_nearest_measured_rows(rows: int, rate: float) -> None:
    assert TOP.rate(rows) == rate


def test_of_two_measurements_the_better_rate_counts_each_by_itself() -> None:
    slow_memory = Ceilings(read=1.0, products={1: 5.0, 32: 9.0})
    slow_products = Ceilings(read=3.0, products={1: 4.0, 32: 10.0})
    better = Ceilings(read=3.0, products={1: 5.0, 32: 10.0})
    assert slow_memory.or_better(slow_products) == slow_products.or_better(slow_memory) == better


def test_memory_is_read_in_every_way_that_the_processor_has() -> None:
    """Four weights of 8 MiB, as many bytes of numbers; every way runs."""
    found, ways = library(), ceilings.ways_to_read(32 << 20)
    own = set()
    if found is not None:
        own |= {"loads"} if probes.library(found.isa).has("ceiling_read") else set()
        own |= {"products"}
    assert {name: num_bytes for name, (num_bytes, _) in ways.items()} == dict.fromkeys({"sum", *own}, 32 << 20)
    assert float(ways["sum"][1]()) == 8 << 20  # type: ignore[arg-type]
    for _, read in ways.values():
        read()


def test_a_step_takes_the_longer_of_reading_and_multiplying() -> None:
    cost = Work(weights=1_000_000, kv_width=1, attention=1)
    assert limits.step(1, cost, 4, TOP, seen=0) == pytest.approx(4e-3)
    assert limits.step(1, cost, 1, TOP, seen=0) == pytest.approx(2e-3)
    assert limits.step(1, cost, 1, TOP, seen=1_500_000) == pytest.approx(4e-3)


def test_a_crowd_computes_the_shared_prefix_once() -> None:
    cost = Work(weights=1_000_000, kv_width=1, attention=0)
    tasks = [WorkloadRequest(prompt="", words=512 + 8, output_tokens=3)] * 4
    seconds = limits.crowd(tasks, 512, 4, cost, 2, TOP)
    assert seconds == pytest.approx((512 + 4 * 8) * 2e6 / 8e9 + 2 * 8e-3)


def test_the_last_answers_of_a_crowd_run_alone() -> None:
    """Three requests in two places: two steps of two rows, one of one row. A step reads 1 MB and 4 kB a row."""
    cost = Work(weights=1_000_000, kv_width=0, attention=0, vocabulary=1000)
    tasks = [WorkloadRequest(prompt="", words=0, output_tokens=tokens) for tokens in (3, 3, 2)]
    fast = replace(TOP, products={1: 1e15})
    assert limits.crowd(tasks, 0, 2, cost, 1, fast) == pytest.approx(2 * 1.008e-3 + 1.004e-3)
    assert limits.crowd(tasks[:1], 0, 2, cost, 1, replace(fast, read=1e15, products={1: 1e9})) == pytest.approx(4e-3)


def test_the_steps_of_a_crowd_attend() -> None:
    """A prompt of 4 has 10 pairs, and a step behind it 5: of one multiplication each. Behind a prefix of 3 with 6 pairs
    each of two prompts of 2 has 9, and each row of the step 6.
    """
    cost = Work(weights=0, kv_width=0, attention=1)
    task = WorkloadRequest(prompt="", words=4, output_tokens=2)
    assert limits.crowd([task], 0, 1, cost, 1, replace(TOP, products={1: 1.0})) == pytest.approx(15)
    tasks = [WorkloadRequest(prompt="", words=5, output_tokens=2)] * 2
    assert limits.crowd(tasks, 3, 2, cost, 1, replace(TOP, products={1: 1.0})) == pytest.approx(6 + 2 * 9 + 2 * 6)


def test_a_crowd_reads_the_keys_of_each_and_those_of_the_prefix_once() -> None:
    """Two steps of 4 x 9 and 4 x 10 tokens and 512 each, of 1 kB each in 16 bits, at 1 GB/s."""
    cost = Work(weights=0, kv_width=500, attention=0)
    tasks = [WorkloadRequest(prompt="", words=512 + 8, output_tokens=3)] * 4
    assert limits.crowd(tasks, 512, 4, cost, 2, TOP) == pytest.approx((4 * 19 + 2 * 512) * 1e3 / 1e9)


def test_a_point_is_the_try_with_the_median_share_of_what_its_own_memory_allows() -> None:
    """A step of 1 MB takes 1, 2 or 4 ms at these rates, and 32 rows of multiplying 16 ms."""
    cost = Work(weights=1_000_000, kv_width=0, attention=0)
    tries = [Try(rate=rate, before=read, after=read / 1.05) for rate, read in ((900, 1e9), (300, 5e8), (200, 2.5e8))]
    assert all(one.steady for one in tries)
    assert not Try(rate=1, before=1e9, after=1.2e9).steady
    found = point(1, tries, cost, 1, replace(TOP, products={1: 1e12}))
    assert found == {"streams": 1, "rate": 200, "ceiling": pytest.approx(250), "bound": "memory", "read": 2.5e8}
    busy = point(32, tries[:1], cost, 1, TOP)
    assert (busy["ceiling"], busy["bound"]) == (pytest.approx(32 / 16e-3), "products")


def test_ratio_is_to_the_best_peer_and_above_one_when_better() -> None:
    engines = {
        "ours": [{"w1_tpot": 2.0, "w2_rate": 30.0}] * 3,
        "slow": [{"w1_tpot": 8.0, "w2_rate": 10.0}],
        "fast": [{"w1_tpot": 4.0, "w2_rate": 40.0}],
    }
    found = results.ratios(engines, "ours", ["slow", "fast"])
    assert found == {"w1_tpot": 2.0, "w2_rate": 0.75}


def test_table_has_medians_fractions_and_the_best_in_bold() -> None:
    engines = {"a": [{"w1_tpot": 0.010}, {"w1_tpot": 0.030}, {"w1_tpot": 0.020}], "b": [{"w1_tpot": 0.040}]}
    table = results.side_by_side(engines, {"a": {"w1_tpot": 0.005}})
    assert table.splitlines()[2] == "| W1 time per output token, one stream, ms | **20** (0.25) | 40 |"


def test_sampled_figures_are_compared_with_the_greedy_ones_of_the_same_engine() -> None:
    engines = {
        "a": [{"w1_sampled_tpot": 0.02, "w1_tpot": 0.01, "w2_sampled_rate": 90.0, "w2_rate": 100.0}],
        "b": [{"w1_tpot": 0.01, "w2_sampled_rate": 50.0, "w2_rate": 100.0}],
    }
    assert results.of_greedy(engines).splitlines() == [
        "W1 sampled, time per output token, one stream, of greedy: a 0.50.",
        "W2 sampled, 32 mixed, of greedy: a 0.90, b 0.50.",
    ]
    assert results.of_greedy({"a": [{"w1_tpot": 0.01}]}) == ""


def test_every_id_of_a_large_vocabulary_has_a_text_of_its_own() -> None:
    shape = replace(SHAPES["medium"], vocab_size=20_000)
    tokenizer = tokenizer_of(shape)
    texts = [tokenizer.decode([token]) for token in range(shape.vocab_size)]
    assert len(set(texts[10_000:])) == 10_000
    assert int(drawable(tokenizer, shape).sum()) > 19_600
    assert len(tokenizer.encode(" ".join(WORDS)).ids) == len(WORDS)


def test_a_tenth_slower_than_committed_stands_out() -> None:
    said = results.compared({"w1_tpot": 0.5, "w2_rate": 0.5}, {"w1_tpot": 0.6, "w2_rate": 0.5})
    assert [line.endswith("slower") for line in said.splitlines()[1:]] == [True, False]


def test_figures_of_other_processors_and_shapes_stay() -> None:
    amd = {"processor": "AMD", "shapes": {"small": {"date": 1}, "wide": {"date": 1}}}
    intel = {"processor": "Intel", "shapes": {"small": {"date": 2}}}
    again = {"processor": "AMD", "shapes": {"small": {"date": 3}}}
    runs = page.kept([intel, amd], again)
    assert [run["processor"] for run in runs] == ["AMD", "Intel"]
    assert runs[0]["shapes"] == {"small": {"date": 3}, "wide": {"date": 1}}


def test_a_page_has_a_section_for_each_processor(tmp_path: Path) -> None:
    """The newest first, each shape with the day and the command that measured it."""
    (tmp_path / "cpu.md").write_text("\n".join(page.MEASURED))
    found = {"read": 2e9, "rounds": {"Kvasir": [{"w2_rate": 30.0}]}, "limits": {"Kvasir": {"w2_rate": 60.0}}}
    for name, day in (("AMD", "2026-11-21"), ("Intel", "2026-11-30")):
        shape = {"date": day, "command": "make bench-peers", **found}
        page.write(tmp_path, {"processor": name, "import_s": 1.0, "import_rss": 2**20, "shapes": {"small": shape}})
    lines = (tmp_path / "cpu.md").read_text().splitlines()
    assert [line for line in lines if line.startswith(("###", "Measured"))] == [
        "### Intel",
        "#### small, 1 round, memory 2 GB/s",
        "Measured 2026-11-30 by `make bench-peers`.",
        "### AMD",
        "#### small, 1 round, memory 2 GB/s",
        "Measured 2026-11-21 by `make bench-peers`.",
    ]
    assert "| W2 32 mixed, tokens/s | **30** (0.50) |" in lines
