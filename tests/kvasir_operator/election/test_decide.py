"""What a candidate does with a Lease, as a table."""

import pytest

from kvasir_operator.election.decide import LEASE_S, RENEW_DEADLINE_S, LeaseRecord, decide, valid_s


def record(holder: str, duration_s: float = LEASE_S) -> LeaseRecord:
    return LeaseRecord(holder=holder, duration_s=duration_s, transitions=3, version="7")


@pytest.mark.parametrize(
    ("lease", "unchanged_s", "verb"),
    [
        (None, 0.0, "create"),
        (record("me"), 0.0, "renew"),
        (record("me"), 1e6, "renew"),
        (record(""), 0.0, "take"),
        (record("other"), 0.0, "wait"),
        (record("other"), LEASE_S - 0.01, "wait"),
        (record("other"), LEASE_S, "take"),
        (record("other", duration_s=60), LEASE_S, "wait"),
    ],
)
def test_decide(lease: LeaseRecord | None, unchanged_s: float, verb: str) -> None:
    found = decide(lease, me="me", unchanged_s=unchanged_s)
    assert found.verb == verb
    assert found.why


@pytest.mark.parametrize(
    ("renewed", "now", "left_s"),
    [(None, 0.0, 0.0), (5.0, 5.0, 10.0), (5.0, 8.5, 6.5), (5.0, 15.0, 0.0), (5.0, 65.0, 0.0)],
)
def test_a_holder_may_write_only_so_long(renewed: float | None, now: float, left_s: float) -> None:
    assert valid_s(now, renewed) == left_s


def test_the_holder_stops_before_others_may_begin() -> None:
    assert RENEW_DEADLINE_S < LEASE_S
