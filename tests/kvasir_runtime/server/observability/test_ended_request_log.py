"""What gateways read of the requests that ended here."""

import pytest

from kvasir_api import names
from kvasir_runtime.server.observability.ended_request_log import MOST_KEPT, EndedRequestLog
from kvasir_runtime.server.observability.tracing import RequestTrace

TRACE = RequestTrace(prompt_tokens=7, cached_tokens=4, completion_tokens=3, first_token_s=0.5)


def headers(name):
    return [(b"host", b"x"), (names.HEADER_INFLIGHT_ID.encode(), name.encode())]


def filled(*ids):
    log = EndedRequestLog("me")
    for name in ids:
        log.add(headers(name), TRACE)
    return log


def ids(found):
    return [one.id for one in found.requests]


def test_a_request_of_a_gateway_is_kept_with_what_it_took():
    found = filled("a").after(0, "")
    (one,) = found.requests
    assert (found.instance, found.last) == ("me", 1)
    assert (one.id, one.prompt_tokens, one.cached_tokens, one.completion_tokens, one.first_token_s) == (
        "a",
        7,
        4,
        3,
        0.5,
    )


@pytest.mark.parametrize("sent", [[], [(b"x-other", b"a")], headers(""), headers("a" * 65)])
def test_others_are_not_kept(sent):
    log = EndedRequestLog("me")
    log.add(sent, TRACE)
    assert log.after(0, "").requests == ()


@pytest.mark.parametrize(
    ("after", "instance", "wanted"),
    [(0, "me", "abc"), (2, "me", "c"), (3, "me", ""), (2, "another", "abc"), (9, "me", "abc")],
)
def test_a_reader_gets_what_is_new(after, instance, wanted):
    assert ids(filled(*"abc").after(after, instance)) == list(wanted)


def test_only_the_last_are_kept():
    log = filled(*(str(number) for number in range(MOST_KEPT + 5)))
    assert ids(log.after(0, "me"))[0] == "5"
    assert len(log.after(0, "me").requests) == MOST_KEPT
    assert ids(log.after(MOST_KEPT + 3, "me")) == [str(MOST_KEPT + 3), str(MOST_KEPT + 4)]
