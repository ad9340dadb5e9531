"""The benchmark of the operator, with so few services that it says nothing but that it works."""

import pytest

from bench import operator_tick
from bench.operator_scale import MARKS, PAGE, Phase, Run, Times, measure, table, write
from kvasir_local.component_flags import COMPONENTS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(200)]


async def test_a_small_run_measures_everything(control, tmp_path):
    run = await measure(control, services=10, idle_s=1.0, later=2, tmp=tmp_path)
    assert [phase.name for phase in run.phases] == ["create", "idle", "later", "restart", "delete"]
    for times, count in ((run.at_once, 10), (run.later, 2)):
        assert [len(found) for found in (times.to_deployment, times.to_pod, times.to_ready)] == [count] * 3
        assert all(0 < pod < ready for pod, ready in zip(sorted(times.to_pod), sorted(times.to_ready), strict=True))
        assert min(times.to_deployment) > 0
    made = run.phases[0]
    assert made.requests["create"] >= 10 * 4, "Service, policy, Deployment, budget"
    assert made.requests["patch"] >= 10 * 2, "revision and status"
    assert made.requests.get("get", 0) < 10, "no child is read before it is created"
    assert made.cpu_s > 0
    assert set(made.others_s) == {*COMPONENTS, "client and nodes"}
    assert min(made.others_s.values()) >= 0
    assert "| processor seconds beside the operator | etcd | kube-apiserver |" in table(run)
    assert 0 < made.rss <= made.peak
    restarted = {phase.name: phase.requests for phase in run.phases}["restart"]
    assert set(restarted) <= {"list", "watch", "get"}, "a new operator changes nothing"


async def test_a_tick_reads_every_pod_and_reconciles_nothing_that_stays_as_it_is():
    cost = await operator_tick.measure(5, 20, ticks=4)
    assert len(cost.cpu_s) == 4
    assert all(spent > 0 for spent in cost.cpu_s)
    assert cost.unread == 0
    assert cost.rss > 0
    assert "5 services and 20 pods" in operator_tick.sentence(cost)


def test_the_page_takes_the_figures(tmp_path):
    page = tmp_path / "operator.md"
    page.write_text(PAGE.read_text())
    found = Phase(name="idle", seconds=2.0, requests={"watch": 4}, cpu_s=0.5, rss=5 << 20, peak=6 << 20)
    times = Times(to_deployment=[0.5, 1.0], to_pod=[1.0, 2.0], to_ready=[2.0, 4.0])
    write(page, [Run(services=2, at_once=times, phases=[found])], "One tick is short.", "make it")
    text = page.read_text()
    assert text.count(MARKS[0]) == text.count(MARKS[1]) == 1
    assert "by `make it` on" in text
    assert "One tick is short.\n\n### 2 services\n" in text
    assert "| its first pod, all 2 at once | 1.50 s | 1.99 s | 2.00 s |" in text
    assert "one after the other beside them" not in text
    assert "| idle | 2.0 | 2.0 | 4 | 0.5 s, 25.0 % | 5 MiB (6) |" in text
    one = Times(to_deployment=[1.0], to_pod=[1.0], to_ready=[1.0])
    assert table(Run(services=1, at_once=one)).count("1.00 s") == 9
