"""Whether a tick reads what the one before read, and what of it a reconcile would act upon."""

import pytest
from msgspec.structs import replace

from kvasir_api.state import RuntimeState
from kvasir_api.status import Capacity
from kvasir_operator.loop.scaler_memory import Look, ParsedService, ScalerMemory, digest_of_pods
from kvasir_operator.observed.replica import Replica
from kvasir_operator.scaling.decide import ScalingState
from kvasir_operator.scaling.pressure import LoadPressure
from kvasir_operator.scaling.tick import TickInputs

PARSED = ParsedService(
    service={}, autoscaling=None, by_hand=1, revision="", cold_start_s=None, capacity=Capacity(), max_sequences=1
)
A, B = (Replica(name=name, uid=name, phase="ready", reading=RuntimeState()) for name in "ab")
SILENT, UNPLACED = Replica(name="c", phase="ready"), TickInputs(at=0.0, unplaced_s=3.0)


@pytest.mark.parametrize(
    ("before", "now", "inputs", "parsed", "stands"),
    [
        ((A, B), (A, B), TickInputs(at=0.0), PARSED, True),
        ((), (), TickInputs(at=0.0), PARSED, True),
        ((A, B), (A,), TickInputs(at=0.0), PARSED, False),
        ((A, B), (A, replace(B)), TickInputs(at=0.0), PARSED, False),  # parsed again: its pod or reading is another
        ((A, B), (A, B), TickInputs(at=0.0), replace(PARSED), False),
        ((A, SILENT), (A, SILENT), TickInputs(at=0.0), PARSED, False),  # soon it counts as missing
        ((A, B), (A, B), UNPLACED, PARSED, False),  # it waits for longer each time
    ],
)
def test_what_was_read_stands_while_the_objects_are_the_same(before, now, inputs, parsed, stands):
    look = Look(inputs=inputs, parsed=PARSED, replicas=before, pods=digest_of_pods(before))
    assert look.stands(parsed, now) is stands


def test_a_digest_changes_with_what_a_status_shows_and_not_with_each_number():
    memory = ScalerMemory(uid="u", state=ScalingState(wanted=1, since=0.0))
    before = memory.digest_with(digest_of_pods((A,)))
    busy = replace(A, reading=RuntimeState(running=3))
    memory.pressure = LoadPressure(preemptions=0.0, imbalance=0.04)
    assert memory.digest_with(digest_of_pods((busy,))) == before
    assert memory.digest_with(digest_of_pods((replace(A, phase="draining"),))) != before
    memory.pressure = LoadPressure(preemptions=1.0)
    assert memory.digest_with(digest_of_pods((A,))) != before
