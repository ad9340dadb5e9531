"""The demo's row sums what the pods said, and its plain line carries the same numbers as its table."""

from kvasir_api.state import KvState, RequestTotals, RuntimeState
from kvasir_local.demo import table, view
from kvasir_local.demo.load import LoadTotals

STATUS = {
    "desiredReplicas": 3,
    "readyReplicas": 2,
    "autoscaling": {"message": "kv requests 3"},
    "conditions": [{"type": "Ready", "status": "True", "reason": "MinimumAvailable"}],
}
READINGS = (
    RuntimeState(
        running=4,
        waiting=1,
        kv=KvState(capacity_tokens=64, pinned_tokens=32, cached_tokens=16, free_tokens=16),
        totals=RequestTotals(generation_tokens=10),
    ),
    RuntimeState(
        running=2,
        kv=KvState(capacity_tokens=64, pinned_tokens=16, free_tokens=48),
        totals=RequestTotals(generation_tokens=5),
    ),
)


def test_summary_adds_the_readings() -> None:
    assert view.summary(STATUS, READINGS) == view.Snapshot(
        wanted=3,
        ready=2,
        running=6,
        waiting=1,
        pinned_tokens=48,
        cached_tokens=16,
        free_tokens=64,
        reason="kv requests 3",
    )


def test_summary_of_a_service_that_says_nothing_yet() -> None:
    assert view.summary({}, ()).wanted == 0


def test_condition_is_found_by_type() -> None:
    assert view.condition(STATUS, "Ready")["reason"] == "MinimumAvailable"
    assert view.condition(STATUS, "Stalled") == {}


def test_plain_line_has_every_number_and_the_reason() -> None:
    row = table.cells(12.4, "load", view.summary(STATUS, READINGS), 99.6, LoadTotals(finished=7, broken=1))
    line = table.plain(row, "kv requests 3")
    for part in (
        "12 s",
        "replicas 2 of 3",
        "48/16/64",
        "running 6",
        "waiting 1",
        "tokens/s 100",
        "7/1",
        "kv requests 3",
    ):
        assert part in line
