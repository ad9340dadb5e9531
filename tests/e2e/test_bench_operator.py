"""The benchmark of the operator, with so few services that it says nothing but that it works."""

import pytest

from bench.operator_scale import MARKS, PAGE, Phase, Run, measure, table, write

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(200)]


async def test_a_small_run_measures_everything(control, tmp_path):
    run = await measure(control, services=10, idle_s=1.0, tmp=tmp_path)
    assert [phase.name for phase in run.phases] == ["create", "idle", "restart", "delete"]
    assert len(run.to_pod) == len(run.to_ready) == 10
    assert all(0 < pod < ready for pod, ready in zip(sorted(run.to_pod), sorted(run.to_ready), strict=True))
    made = run.phases[0]
    assert made.requests["create"] >= 10 * 4, "Service, policy, Deployment, budget"
    assert made.requests["patch"] >= 10 * 3, "revision and status"
    assert made.requests.get("get", 0) < 10, "no child is read before it is created"
    assert made.cpu_s > 0
    assert 0 < made.rss <= made.peak
    restarted = {phase.name: phase.requests for phase in run.phases}["restart"]
    assert set(restarted) <= {"list", "watch", "get"}, "a new operator changes nothing"


def test_the_page_takes_the_figures(tmp_path):
    page = tmp_path / "operator.md"
    page.write_text(PAGE.read_text())
    found = Phase(name="idle", seconds=2.0, requests={"watch": 4}, cpu_s=0.5, rss=5 << 20, peak=6 << 20)
    write(page, Run(services=2, to_pod=[1.0, 2.0], to_ready=[2.0, 4.0], phases=[found]), "make it")
    text = page.read_text()
    assert text.count(MARKS[0]) == text.count(MARKS[1]) == 1
    assert "2 services, measured" in text
    assert "| its first pod | 1.50 s | 1.99 s | 2.00 s |" in text
    assert "| idle | 2.0 | 2.0 | 4 | 0.5 s, 25 % | 5 MiB (6) |" in text
    assert table(Run(services=1, to_pod=[1.0], to_ready=[1.0])).count("1.00 s") == 6
