"""What is attainable at all: rules that know the load."""

from kvasir_api.state import ServiceDemand
from kvasir_operator.simulation import traffic
from kvasir_operator.simulation.fleet import FleetView
from kvasir_operator.simulation.reference_rules import REFERENCES, references
from kvasir_operator.simulation.scenarios import Scenario
from kvasir_operator.simulation.simulate import row

SCENARIO = Scenario(name="a", about="", load=traffic.step(0.5, 1.5, at=300), most_load=1.5, seconds=600.0, most=9)


def at(now, *, ready=1, held=0):
    gateway = ServiceDemand(namespace="default", name="simulated", held=held)
    return FleetView(now=now, ready=ready, starting=0, wanted=ready, gateway=gateway)


def test_an_oracle_has_pods_when_they_are_needed():
    oracle, _ = references(SCENARIO)
    assert [oracle.wanted(at(now)) for now in (0, 250, 300 - 40, 400)] == [1, 1, 2, 2]


def test_who_knows_the_present_load_starts_as_many_as_there_may_be_while_any_is_missing():
    _, present = references(SCENARIO)
    assert [present.wanted(at(299)), present.wanted(at(300)), present.wanted(at(340, ready=9, held=3))] == [1, 9, 9]
    assert present.wanted(at(400, ready=9)) == 2


def test_all_are_named():
    assert tuple(rule.name for rule in references(SCENARIO)) == REFERENCES


def test_an_oracle_meets_the_objective_at_the_hours_that_it_is_reckoned_with():
    found = row("step", "oracle").measured
    assert found["objective_met_fraction"] == 1.0
    assert 0.98 < found["replica_hours_of_oracle"] < 1.02
