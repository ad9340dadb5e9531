"""The operator's metrics: nothing stays of a service that is gone."""

from fakes.load import decided
from kvasir_operator.loop.telemetry import Telemetry

SERVICE = ("models", "tiny")


def test_nothing_stays_of_a_service_that_is_gone():
    telemetry = Telemetry()
    telemetry.decided(SERVICE, decided())
    telemetry.replicas(SERVICE, wanted=3, ready=2)
    assert "tiny" in telemetry.text().decode()
    telemetry.forget(SERVICE)
    assert "tiny" not in telemetry.text().decode()


def test_a_service_without_autoscaling_keeps_only_its_counts():
    telemetry = Telemetry()
    telemetry.decided(SERVICE, decided())
    telemetry.changed(SERVICE, "kv")
    telemetry.replicas(SERVICE, wanted=3, ready=2)
    telemetry.forget_decisions(SERVICE)
    left = [line.split("{")[0] for line in telemetry.text().decode().splitlines() if "tiny" in line]
    assert left == ["kvasir_service_wanted_replicas", "kvasir_service_ready_replicas"]
