"""Stretches of load: which count, and that neither idleness nor a start is taken for slowness."""

from typing import Any

import pytest

from kvasir_api.state import DecodeTotals, RuntimeState
from kvasir_operator.observed.decode_rate import DecodeRate, MeanStep, followed
from kvasir_operator.observed.replica import Replica

WINDOW_S = 60.0


def pod(steps: int = 0, *, step_s: float = 0.02, rows: int = 2, phase: Any = "ready", silent: bool = False) -> Replica:
    """One that has decoded for two sequences of 50 tokens each."""
    decoded = DecodeTotals(steps=steps, seconds=steps * step_s, rows=steps * rows, kv_tokens=steps * rows * 50)
    return Replica(name="p", uid="u", phase=phase, reading=None if silent else RuntimeState(decoded=decoded))


def told(*moments: tuple[float, Replica]) -> DecodeRate | None:
    found: dict[str, DecodeRate] = {}
    for now, replica in moments:
        found = followed(found, [replica], now=now, window_s=WINDOW_S)
    return found.get("u")


MEAN = MeanStep(step_s=pytest.approx(0.02), rows=2.0, kv_tokens=100.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("moments", "evidence"),
    [
        # A start settles first, whatever it does meanwhile; then a stretch of 1000 steps in 20 s counts.
        ([(0, pod()), (30, pod(500)), (60, pod(3000)), (90, pod(3500)), (120, pod(4000))], (MEAN,)),
        ([(0, pod()), (60, pod(3000)), (120, pod(4000)), (180, pod(5000))], (MEAN, MEAN)),
        ([(0, pod()), (60, pod()), (120, pod(1000)), (180, pod(2000)), (240, pod(3000))], (MEAN, MEAN)),
        # Idle, or nearly: 700 steps are 14 s, less than a quarter of the stretch.
        ([(0, pod()), (60, pod()), (120, pod()), (900, pod())], ()),
        ([(0, pod()), (60, pod()), (120, pod(700))], ()),
        # What comes later completes the stretch.
        ([(0, pod()), (60, pod()), (120, pod(700)), (150, pod(800))], (MEAN,)),
        # Too few steps, however long: each may have met anything.
        ([(0, pod()), (60, pod()), (120, pod(19, step_s=2.0))], ()),
        # A stretch of ten times the length begins anew.
        ([(0, pod()), (60, pod()), (660, pod(700)), (700, pod(800)), (720, pod(1400))], ()),
        # A restarted process counts from nought, and settles again.
        ([(0, pod()), (60, pod(1000)), (100, pod(10)), (150, pod(2000))], ()),
        ([(0, pod()), (60, pod(1000)), (100, pod(10)), (160, pod(2000)), (220, pod(3000))], (MEAN,)),
        # Silence is no slowness, and a replica that drains is not judged any more.
        ([(0, pod()), (60, pod()), (90, pod(silent=True)), (120, pod(1000))], (MEAN,)),
        ([(0, pod()), (60, pod()), (120, pod(1000, phase="draining"))], ()),
        ([(0, pod()), (60, pod()), (120, pod(1000)), (130, pod(9000, phase="draining"))], (MEAN,)),
    ],
)
def test_what_counts_as_a_stretch_of_load(moments: Any, evidence: tuple[MeanStep, ...]) -> None:
    pace = told(*moments)
    assert pace is not None
    assert pace.evidence == evidence


@pytest.mark.parametrize("replica", [pod(phase="loading"), pod(silent=True), pod(phase="draining")])
def test_who_was_never_ready_has_no_pace(replica: Replica) -> None:
    assert told((0, replica), (60, replica)) is None


def test_who_is_gone_is_forgotten() -> None:
    known = {"u": DecodeRate(since=0.0)}
    assert followed(known, [], now=1.0, window_s=WINDOW_S) == {}
