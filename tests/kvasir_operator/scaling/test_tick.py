"""A tick in each mode: what is decided and what it starts from."""

import pytest

from kvasir_api.autoscaling import Autoscaling
from kvasir_api.state import KvState, RuntimeState
from kvasir_operator.scaling.decide import ScalingState
from kvasir_operator.scaling.tick import TickInputs, tick
from kvasir_operator.scaling.window import EMPTY, ScaledReplica

BUSY = RuntimeState(phase="ready", kv=KvState(capacity_tokens=1000, pinned_tokens=950), running=8)
INPUTS = TickInputs(at=10.0, pods=(ScaledReplica(uid="a", name="a", reading=BUSY),))


@pytest.mark.parametrize(
    ("mode", "wanted", "before"), [("Active", 2, 1), ("Advisory", 2, 1), ("Paused", 1, 1), ("External", 3, 3)]
)
def test_modes(mode, wanted, before):
    spec, state = Autoscaling(mode=mode), ScalingState(wanted=1, since=0.0)
    result = tick(spec, EMPTY, state, INPUTS, by_hand=3)
    assert result.decision is not None
    assert (result.state.wanted, result.decision.before, result.decision.raw) == (wanted, before, 2)


def test_without_autoscaling_the_load_is_watched_and_nothing_is_decided():
    result = tick(None, EMPTY, ScalingState(wanted=1, since=0.0), INPUTS, by_hand=3)
    assert result.decision is None
    assert (result.state.wanted, result.state.since, len(result.window.samples)) == (3, 10.0, 1)
