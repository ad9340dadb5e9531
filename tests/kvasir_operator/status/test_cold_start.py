"""The last start of a replica with its parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.situations import again, findings, replica
from kvasir_api.state import RuntimeState, StartupSeconds
from kvasir_api.status import ColdStart
from kvasir_operator.status.compose import compose, document

MEASURED = RuntimeState(start=StartupSeconds(process_s=3.6, weights_s=4.3, load_s=20.4, warm_s=5.2))


def started(name, ready_at, *, reading=MEASURED, **fields):
    times = {"created": 100.0, "scheduled_at": 102.0, "mounted_at": 105.0, "started_at": 110.0, "ready_at": ready_at}
    return replica("ready", name=name, reading=reading, **{**times, **fields})


def test_the_last_start_is_told_with_its_parts():
    found = findings(started("a", 140.0), started("b", 145.0), started("c", 150.0, restarts=1))
    cold = compose(found)[0].cold_start
    assert cold == ColdStart(
        seconds=45,
        schedule_seconds=2,
        weights_seconds=7,
        image_seconds=5,
        process_seconds=4,
        load_seconds=20,
        warm_seconds=5,
        other_seconds=2,
    )
    kept = compose(again(found, replica("loading")))[0].cold_start
    assert kept == cold
    assert compose(findings(replica("loading")))[0].cold_start is None
    assert "coldStart" not in document(compose(findings(replica("loading")))[0])


def test_a_start_of_seconds_is_told_where_they_went():
    """A small model: neither the image nor the weights take half a second."""
    times = {"created": 100.0, "scheduled_at": 100.0, "mounted_at": 100.0, "started_at": 101.0}
    reading = RuntimeState(start=StartupSeconds(process_s=2.2, weights_s=0.001, load_s=0.2, warm_s=0.4))
    cold = compose(findings(replica("ready", ready_at=104.0, reading=reading, **times)))[0].cold_start
    told = cold.model_dump(by_alias=True, exclude_none=True)
    assert told == {"seconds": 4, "imageSeconds": 1, "processSeconds": 2, "otherSeconds": 1}


@pytest.mark.parametrize(("unready_s", "seconds"), [(0.0, 40), (50.0, 90), (7_200.0, 44), (86_400.0, 44)])
def test_a_replica_that_was_unready_meanwhile_did_not_start_later(unready_s, seconds):
    """Ready 30 s after its container ran, and again when its probe succeeded hours later."""
    cold = compose(findings(started("a", 140.0 + unready_s)))[0].cold_start
    assert cold.seconds == seconds


@pytest.mark.parametrize(
    ("said", "weights", "load"),
    [
        (1e300, 1_000_000_003, 1_000_000_000),
        (float("inf"), 1_000_000_003, 1_000_000_000),
        (float("nan"), 3, None),
        (-5.0, 3, None),
    ],
)
def test_what_a_runtime_says_of_its_start_never_exceeds_what_status_takes(said, weights, load):
    reading = RuntimeState(start=StartupSeconds(weights_s=said, load_s=said))
    cold = compose(findings(started("a", 140.0, reading=reading)))[0].cold_start
    assert (cold.weights_seconds, cold.load_seconds) == (weights, load)


@given(st.lists(st.floats(0, 4000), min_size=7, max_size=7), st.floats(0, 59))
def test_the_parts_of_a_start_sum_up_to_the_whole(first, rest):
    parts = [*first, rest]
    process, fetch, load, warm = parts[3:7]  # after schedule, volumes and image; nothing reports the rest
    times = [100.0, *(round(100 + sum(parts[:n])) for n in (1, 2, 3, 8))]
    reading = RuntimeState(start=StartupSeconds(process_s=process, weights_s=fetch, load_s=load, warm_s=warm))
    names_ = ("created", "scheduled_at", "mounted_at", "started_at", "ready_at")
    cold = compose(findings(replica("ready", reading=reading, **dict(zip(names_, times, strict=True)))))[0].cold_start
    told = cold.model_dump(exclude={"seconds"}, exclude_none=True)
    assert 0 not in told.values()
    assert cold.seconds <= sum(told.values()) <= cold.seconds + 3
    assert cold.seconds == times[4] - 100
