"""Rules of peers against what their documentation says they do."""

import pytest

from kvasir_api.state import KvState, MeasuredRates, RuntimeState
from kvasir_operator.simulation.fleet import FleetView
from kvasir_operator.simulation.peer_rules import PEERS, HpaRule, KnativeRule, KubeAiRule, active, peers


def view(now, *, running=0, wanted=1, ready=None, **reading):
    ready = wanted if ready is None else ready
    state = RuntimeState(
        kv=KvState(capacity_tokens=1000, **{k: v for k, v in reading.items() if k == "pinned_tokens"}),
        running=running,
        rates=MeasuredRates(prefill_tokens_per_s=1000.0),
        **{k: v for k, v in reading.items() if k != "pinned_tokens"},
    )
    return FleetView(now=now, ready=ready, starting=0, wanted=wanted, readings=(("a", state),))


def test_an_hpa_divides_the_total_by_the_target():
    hpa = HpaRule(name="hpa", metrics=((active, 10.0),))
    assert hpa.wanted(view(0, running=35, wanted=2)) == 4
    assert hpa.wanted(view(15, running=42, wanted=4)) == 4  # within the tolerance
    assert hpa.wanted(view(30, running=400, wanted=4)) == 8  # four pods or 100 % in a period


def test_an_hpa_goes_down_to_the_highest_of_five_minutes():
    hpa = HpaRule(name="hpa", metrics=((active, 10.0),))
    assert hpa.wanted(view(0, running=40, wanted=4)) == 4
    assert [hpa.wanted(view(at, running=10, wanted=4)) for at in (15, 300, 315)] == [4, 4, 1]


def test_knative_panics_and_does_not_come_down_meanwhile():
    rule = KnativeRule(concurrency=10.0)
    for tick in range(30):
        assert rule.wanted(view(2.0 * tick, running=7)) == 1
    assert rule.wanted(view(60.0, running=60, wanted=1)) >= 3
    assert rule.wanted(view(62.0, running=0, wanted=4)) == 4


def test_kubeai_takes_the_mean_of_ten_minutes():
    rule = KubeAiRule(target=100.0)
    decided = [rule.wanted(view(10.0 * tick, running=300, wanted=1)) for tick in range(30)]
    assert decided.index(2) == 20  # 200 s of 300 requests are a mean of 100 over ten minutes


@pytest.mark.parametrize(("name", "reading"), [("keda", {"waiting": 12}), ("llm-d", {"pinned_tokens": 900})])
def test_the_others_read_their_own_signal(name, reading):
    rule = {r.name: r for r in peers(16.0)}[name]
    quiet = {r.name: r for r in peers(16.0)}[name]
    assert rule.wanted(view(0, **reading)) > quiet.wanted(view(0)) == 1


def test_all_are_named():
    assert tuple(rule.name for rule in peers(16.0)) == PEERS
