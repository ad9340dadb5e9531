"""Slow replicas: judged by the batches that they computed, with hysteresis, never without evidence."""

from typing import Any

import pytest

from fakes.manifests import service
from fakes.models import facts
from fakes.situations import findings, replica
from kvasir_api.inspection import roofline
from kvasir_api.options import RuntimeOptions
from kvasir_api.roofline import Card
from kvasir_operator.observed.decode_rate import DecodeRate, MeanStep
from kvasir_operator.status.compose import compose, document
from kvasir_operator.status.inputs import StatusInputs

H100 = Card(memory_bytes_per_s=3350 * 10**9, flops_per_s=989 * 10**12)
POSSIBLE = roofline(facts(), RuntimeOptions(), H100)
assert POSSIBLE is not None


def at(percent: float, *, rows: float = 8.0, kv_tokens: float = 8192.0) -> MeanStep:
    """A stretch that reached so much of what is possible for its batch."""
    assert POSSIBLE is not None
    return MeanStep(step_s=POSSIBLE.step_s(rows, kv_tokens) * 100 / percent, rows=rows, kv_tokens=kv_tokens)


def found(*evidence: MeanStep, was: bool = False, **fields: Any) -> StatusInputs:
    """One ready replica with these stretches, the service having been told slow before or not."""
    obj = service(generation=3) | {"status": {"capacity": {"slowReplicas": ["p"]}}} if was else None
    given = {"asked": "new", "roofline": POSSIBLE, "slow_below_percent": 40, **fields}
    decode_rates = {"u": DecodeRate(since=0.0, evidence=evidence)}
    return findings(replica("ready", name="p", uid="u"), obj=obj, decode_rates=decode_rates, **given)


def slow(given: StatusInputs) -> tuple[list[str], str]:
    """Names in the status, and the reason of Degraded; both or neither."""
    status, _ = compose(given)
    degraded = [c.reason for c in status.conditions if c.type == "Degraded"]
    return status.capacity.slow_replicas, "".join(degraded)


SLOW, WELL = (["p"], "SlowDecode"), ([], "")


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        (found(at(30), at(30)), SLOW),
        (found(at(39), at(1)), SLOW),
        (found(at(30)), WELL),  # for one stretch anything may be
        (found(at(30), at(41)), WELL),
        (found(at(41), at(30)), WELL),
        (found(), WELL),
        # What was slow is so until it is clearly not.
        (found(at(30), at(45), was=True), SLOW),
        (found(at(45), was=True), SLOW),
        (found(at(51), was=True), WELL),
        (found(was=True), SLOW),
        (found(at(90), was=True, slow_below_percent=90), SLOW),
        (found(at(101), was=True, slow_below_percent=90), WELL),
        # Nothing to compare with, or not wanted.
        (found(at(1), at(1), slow_below_percent=0), WELL),
        (found(at(1), at(1), roofline=None), WELL),
        (found(at(1), was=True, roofline=None), WELL),
        # Replicas of another revision may be on another device.
        (found(at(1), at(1), asked="other"), WELL),
        (found(at(1), at(1), asked=""), SLOW),
    ],
)
def test_who_is_slow(given: StatusInputs, verdict: tuple[list[str], str]) -> None:
    assert slow(given) == verdict


def test_the_verdict_survives_the_operators_restart_and_ends_with_the_replica() -> None:
    status, _ = compose(found(at(30), at(30)))
    kept = service(generation=3) | {"status": document(status)}
    again = {"obj": kept, "asked": "new", "roofline": POSSIBLE, "slow_below_percent": 40}
    assert slow(findings(replica("ready", name="p", uid="u"), **again)) == SLOW
    assert slow(findings(replica("ready", name="q", uid="v"), **again)) == WELL
    assert slow(findings(replica("loading", name="p", uid="u"), **again)) == WELL


def test_the_condition_has_the_numbers() -> None:
    status, _ = compose(found(at(25), at(25)))
    (degraded,) = [c for c in status.conditions if c.type == "Degraded"]
    assert degraded.message == (
        "1 of 1 ready replicas decode slower than 40 percent of what AcceleratorClass h100 allows: p, 25 percent: "
        "43 tokens/s for each of 8 requests with 8200 tokens of context together, where 170 are possible"
    )


def test_a_small_batch_or_a_long_context_is_no_slowness() -> None:
    """Both decode far fewer tokens per second than a full batch, and are as fast as they can be."""
    for evidence in (at(80, rows=1.0, kv_tokens=100.0), at(80, rows=4.0, kv_tokens=400_000.0)):
        assert slow(found(evidence, evidence)) == WELL


def test_speed_is_told_beside_the_forecast_and_kept_while_idle() -> None:
    status, _ = compose(found(at(50), at(72)))
    told = status.capacity
    assert (told.stream_tokens_per_second, told.batch_tokens_per_second, told.decode_percent) == (120, 980, 70)
    kept = service(generation=3) | {"status": document(status)}
    idle, _ = compose(findings(replica("ready", name="p", uid="u"), obj=kept))
    assert idle.capacity.decode_percent == 70
    assert idle.capacity.stream_tokens_per_second == 120


def test_speed_is_measured_where_nothing_is_possible_to_compare_with() -> None:
    status, _ = compose(found(at(72), roofline=None))
    assert (status.capacity.stream_tokens_per_second, status.capacity.decode_percent) == (120, None)
