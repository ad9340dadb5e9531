"""The catalogue: names, goals, specs that the API server would accept, loads within their bounds."""

import pytest

from kvasir_operator.simulation.scenarios import FIGURES, named

ALL = list(named().values())


def test_every_scenario_has_a_name_of_its_own_and_goals():
    assert len({s.name for s in ALL}) == len(ALL) >= 12
    assert all(s.goals and set(s.goals) <= set(FIGURES) and s.about for s in ALL)


@pytest.mark.parametrize("scenario", ALL, ids=lambda s: s.name)
def test_a_load_stays_within_its_bound_and_its_spec_is_valid(scenario):
    loads = [scenario.load(at) for at in range(0, int(scenario.seconds), 7)]
    assert 0 < max(loads) <= scenario.most_load
    assert scenario.autoscaling.max_replicas == scenario.most
    assert scenario.capacity.requests_per_s > 0
    assert scenario.steady or max(scenario.need(at) for at in range(0, int(scenario.seconds), 7)) <= scenario.most
