"""The measurement of neighbours, for seconds: every scenario runs against a real server, that leaves nothing."""

import sys

import pytest

from bench import gateway, marked_page, neighbours, overload
from bench import neighbour_scenarios as scenarios
from bench.neighbour_scenarios import Figure
from fakes import checkpoints
from fakes.api_process import HERE, api_process

pytestmark = pytest.mark.xdist_group("neighbours")  # its process is shared by the tests of this file

PAGES = [
    pytest.param(neighbours.catalogue(1), neighbours.PAGE, neighbours.MARKS, id="neighbours"),
    pytest.param(gateway.catalogue(1), gateway.PAGE, gateway.MARKS, id="gateway"),
]
FAKE = (sys.executable, str(HERE / "serve_fake.py"))


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """One whose arithmetic costs nothing."""
    model = checkpoints.write(tmp_path_factory.mktemp("models") / "endless")
    args = ("--max-model-len", "4096", "--kv-cache-tokens", "32768", "--max-sequences", "64")
    with api_process(model, *args, command=FAKE) as server:
        yield neighbours.target_of(server, "endless")


def by_name(figures):
    return {figure.name: figure.value for figure in figures}


async def test_streams_at_once_end_whole(target):
    found = by_name(await scenarios.streams(target, count=20, seconds=0.3, max_tokens=20))
    assert found["broken"] == 0
    assert found["streams that ended"] >= 20


async def test_clients_that_go_away_leave_nothing(target):
    found = await scenarios.aborts(target, count=60, at_once=16, longest_s=0.05)
    assert {figure.name: figure.value for figure in found if figure.value > 0} == {}
    assert all(figure.is_met for figure in found)


async def test_slow_readers_and_long_prompts_are_measured_beside_others(target):
    slow = await scenarios.slow_readers(target, count=4, bytes_per_s=10, others=2, max_tokens=40, slow_tokens=3000)
    long = await scenarios.long_prompts(target, tokens=3000, requests=5, pause_s=0.0)
    for figures in (slow, long):
        *parts, ratio = figures
        assert all(part.value > 0 for part in parts)
        assert ratio.value == pytest.approx(parts[1].value / parts[0].value)
        assert ratio.goal


async def test_overload_is_measured_with_the_real_client(target):
    load = overload.Load(prompt_tokens=8, max_tokens=2)
    found = by_name(await overload.storm(target, load, seconds=0.4, settle_s=0.2, factor=1.5))
    assert found["capacity"] > 0
    assert found["answered during the storm"] > 0
    found = by_name(await overload.goodput(target, load, seconds=0.4, factor=1.5))
    assert found["best goodput at any load"] >= found["goodput"] > 0


def test_the_page_keeps_what_did_not_run():
    def figure(scenario, value, *, is_met=True):
        return Figure(scenario=scenario, name="broken", value=value, goal="0", is_met=is_met)

    page = f"# Head\n{neighbours.MARKS[0]}\n\n{neighbours.MARKS[1]}\nTail\n"
    first = {"added": [figure("200 streams", 0)], "b": [figure("b", 1.25, is_met=False)]}
    page = neighbours.rewritten(page, first, 1)
    page = neighbours.rewritten(page, {"streams": [figure("2,000 streams", 0)]}, 1)
    page = neighbours.rewritten(page, {"added": [figure("20 streams", 3, is_met=False)]}, 0.5)
    rows = [row for row in page.splitlines() if row.startswith("| ")]
    assert rows == [
        "| scenario | load | figure | measured | goal | met |",
        "| b | b | broken | 1.25 | 0 | no |",
        "| streams | 2,000 streams | broken | 0 | 0 | yes |",
        "| added | 20 streams | broken | 3 | 0 | no |",
    ]
    assert page.startswith("# Head\n")
    assert page.endswith("\nTail\n")
    whole, half = (line for line in page.splitlines() if line.startswith("- "))
    assert whole.endswith(": b, streams")
    assert half.endswith(", at 0.5 of the full length: added")


@pytest.mark.parametrize(("known", "page", "marks"), PAGES)
def test_each_row_of_a_page_is_of_a_scenario_that_can_be_measured_again(known, page, marks):
    head, _, rows = marked_page.split(page.read_text(), marks)[1].partition(neighbours.HEADER)
    listed = [name for line in head.split("\n") if line for name in line.rpartition(": ")[2].split(", ")]
    assert sorted(listed) == sorted({row.split(" | ")[0].removeprefix("| ") for row in rows.splitlines()})
    assert set(listed) <= set(known)


def test_quantiles_are_values_that_were_measured():
    assert scenarios.quantile(0.99, [float(n) for n in range(100)]) == 99.0
    assert scenarios.quantile(0.5, [3.0, 1.0, 2.0]) == 2.0
    with pytest.raises(ValueError, match="no value was measured"):
        scenarios.quantile(0.5, [])
