"""A decision as metrics: each of its inputs, signals and bounds."""

from typing import get_args, get_type_hints

from fakes.load import decided
from kvasir_api.control_plane_metrics import OPERATOR
from kvasir_api.status import ScalingChange
from kvasir_operator.loop.decision_metrics import OF_A_DECISION, DecisionMetrics
from kvasir_operator.loop.telemetry import Telemetry
from kvasir_operator.scaling.decide import LIMITS
from kvasir_operator.scaling.demand import SIGNALS
from kvasir_operator.scaling.idle import ReplicaFloor

SERVICE = ("models", "tiny")


def test_every_input_and_bound_of_a_decision_is_a_metric():
    telemetry = Telemetry()
    telemetry.decided(SERVICE, decided())
    told = telemetry.text().decode()
    of = '{namespace="models",service="tiny"'
    for line in (
        f"kvasir_service_required_replicas{of}}} 3.0",
        'kvasir_service_replica_bounds{bound="max",namespace="models",service="tiny"} 8.0',
        'kvasir_service_load{input="pinned_tokens",namespace="models",service="tiny"} 2000.0',
        'kvasir_service_load{input="horizon_seconds",namespace="models",service="tiny"} 60.0',
        'kvasir_service_scaling_limited{limited_by="rate",namespace="models",service="tiny"} 0.0',
    ):
        assert line in told


def test_the_metrics_of_decisions_are_declared_and_made_once():
    names = [family.name for family in DecisionMetrics(OPERATOR).collect()]
    assert sorted(names) == sorted(OF_A_DECISION)
    told = Telemetry().text().decode()
    assert all(told.count(f"# TYPE {name} gauge") == 1 for name in names)


def test_help_names_every_signal_and_limit():
    """kvasir_api declares the metric and the status field, the operator what they may be."""
    limited = next(metric.help for metric in OPERATOR if metric.name == "kvasir_service_scaling_limited")
    assert words(limited.split(": ")[-1]) == list(LIMITS)
    told = str(ScalingChange.model_fields["signal"].description)
    signals, bounds = (words(part.split(")")[0]) for part in told.split("(")[1:])
    assert signals == list(SIGNALS)
    assert bounds == ["ceiling", *get_args(get_type_hints(ReplicaFloor)["why"])]


def words(listed: str) -> list[str]:
    return listed.rstrip(".").split(", ")
