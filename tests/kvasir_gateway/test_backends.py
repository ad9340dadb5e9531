"""What the relay reports of external backends, and how long one rests that failed."""

import msgspec
import pytest

from kvasir_api.ended_requests import EndedRequest
from kvasir_gateway import backends
from kvasir_gateway.backends import BackendGrant, BackendHealth, RelayReport

REPORT = RelayReport(
    backends=(BackendGrant(name="openai", namespaces=("models",)), BackendGrant(name="b", anonymous=True)),
    ended=(EndedRequest(id="x", prompt_tokens=7),),
    resting=("models/r/openai",),
)


def test_a_report_is_read_as_it_was_written():
    assert backends.decode(backends.encode(REPORT)) == REPORT
    assert backends.decode(b"{}") == RelayReport()


@pytest.mark.parametrize("document", [b"[]", b'{"backends": [{"name": "A/B"}]}', b'{"ended": [{"id": 1}]}', b"x"])
def test_what_no_relay_writes_is_refused(document):
    with pytest.raises(msgspec.MsgspecError):
        backends.decode(document)


@pytest.mark.parametrize(
    ("namespaces", "serves"), [((), False), (("a",), True), (("b",), False), (("*",), True), (("b", "*"), True)]
)
def test_a_backend_is_for_the_namespaces_that_it_names(namespaces, serves):
    assert BackendGrant(name="x", namespaces=namespaces).serves("a") is serves


def failed(health, service, *, began_s, now_s):
    health.observe(service, failed=True, began_s=began_s, now_s=now_s)


def test_each_further_failure_rests_it_for_twice_as_long_and_an_answer_ends_that():
    health, now_s = BackendHealth(), 100.0
    assert health.resting(now_s) == ()
    for rest_s in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        failed(health, "a/r/x", began_s=now_s, now_s=now_s)
        assert health.resting(now_s + rest_s - 0.1) == ("a/r/x",)
        assert health.resting(now_s + rest_s) == ()
    health.observe("a/r/x", failed=False, began_s=now_s, now_s=now_s)
    assert health.resting(now_s) == ()
    failed(health, "a/r/x", began_s=now_s, now_s=now_s)
    assert health.resting(now_s + 1.0) == ()


def test_failures_of_requests_that_ran_together_count_once():
    health = BackendHealth()
    for number in range(7):
        failed(health, "a/r/x", began_s=0.1 * number, now_s=2.0 + 0.1 * number)
    assert health.resting(2.9) == ("a/r/x",)
    assert health.resting(3.0) == (), "a second after the first"
    health.observe("a/r/x", failed=False, began_s=0.0, now_s=2.8)
    assert health.resting(2.9) == ("a/r/x",), "it was sent before the failure"
    failed(health, "a/r/x", began_s=3.0, now_s=4.0)
    assert health.resting(5.9) == ("a/r/x",)


def test_failures_under_one_route_rest_it_under_no_other():
    health = BackendHealth()
    failed(health, "a/r/x", began_s=0.0, now_s=0.0)
    assert health.resting(0.5) == ("a/r/x",)


def test_the_failures_that_are_known_have_a_bound():
    health = BackendHealth()
    for number in range(backends.MOST_RESTING + 1):
        failed(health, f"a/r/x{number}", began_s=0.0, now_s=0.0)
    found = health.resting(0.5)
    assert (len(found), found[0]) == (backends.MOST_RESTING, "a/r/x1")
