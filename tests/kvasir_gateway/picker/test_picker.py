"""The picker's decision: which cluster and endpoints, or which refusal, and what it counts."""

import json

import pytest

from fakes.gateway import pod, service
from kvasir_api.state import ServiceDemand, State
from kvasir_gateway import table as tables
from kvasir_gateway.choose import Policy
from kvasir_gateway.picker.door import Answer
from kvasir_gateway.picker.instruments import Instruments
from kvasir_gateway.picker.picker import Forward, Picker, outcome
from kvasir_gateway.table import Read

BODY = b'{"model": "m", "prompt": "x"}'


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def picker(clock):
    made = Picker(instruments=Instruments(), clock=clock, draw=lambda: 0, policy=Policy(), max_body_bytes=1000)
    pods = [pod("s", "one", ip="10.0.0.1"), pod("s", "two", ip="10.0.0.2")]
    made.table = tables.table([service("s", model="m"), service("empty")], pods)
    made.accepted = frozenset({"default.s", "default.empty"})
    made.reads = {
        "10.0.0.1:8000": Read(state=State(phase="ready", waiting_uncached_tokens=9000), at_s=100.0),
        "10.0.0.2:8000": Read(state=State(phase="ready"), at_s=100.0),
    }
    return made


def refusal(answer):
    assert isinstance(answer, Answer)
    return answer.status, json.loads(answer.body)["error"]["code"]


def test_the_cheapest_endpoint_comes_first(picker):
    assert picker.pick(BODY, "t") == Forward(cluster="default.s", addresses=("10.0.0.2:8000", "10.0.0.1:8000"))


def test_a_request_is_in_flight_until_it_ended(picker, clock):
    picker.pick(BODY, "t")
    clock.now = 107.0
    assert picker.state().services == (
        ServiceDemand(namespace="default", name="empty"),
        ServiceDemand(namespace="default", name="s", inflight=1, requests=1, last_request_age_s=7.0),
    )
    picker.ended("t", status=200, client_left=False)
    assert picker.state().services[1].inflight == 0
    picker.ended("t", status=200, client_left=False)
    assert picker.state().services[1].inflight == 0


def test_no_endpoint_is_refused_and_counted(picker):
    body = b'{"model": "empty"}'
    assert refusal(picker.pick(body, "t")) == (503, "no_ready_replica")
    assert picker.state().services[0].refused == 1
    assert picker.state().services[0].inflight == 0


def test_a_cluster_that_envoy_has_not_accepted_is_not_named(picker):
    picker.accepted = frozenset()
    assert refusal(picker.pick(BODY, "t")) == (503, "no_ready_replica")


def test_all_pods_draining_is_no_endpoint(picker):
    picker.reads = {address: Read(state=State(phase="draining"), at_s=100.0) for address in picker.reads}
    assert refusal(picker.pick(BODY, "t")) == (503, "no_ready_replica")


def test_an_unknown_model_is_counted_for_nobody(picker):
    assert refusal(picker.pick(b'{"model": "other"}', "t")) == (404, "model_not_found")
    assert sum(s.requests for s in picker.state().services) == 0


@pytest.mark.parametrize("length", ["1001", "99999999999999999999"])
def test_a_body_is_refused_by_its_announced_length(picker, length):
    answer = picker.enter("POST", "/v1/completions?x=1", {"content-length": length})
    assert refusal(answer) == (413, "body_too_large")


@pytest.mark.parametrize("length", ["1000", "0", "", "-1", "x"])
def test_other_lengths_are_for_envoy_to_judge(picker, length):
    assert picker.enter("POST", "/v1/completions", {"content-length": length}) is None


@pytest.mark.parametrize(
    ("status", "client_left", "word"),
    [
        (200, False, "ok"),
        (200, True, "aborted"),
        (0, True, "aborted"),
        (0, False, "server_error"),
        (400, False, "client_error"),
        (503, False, "server_error"),
    ],
)
def test_how_a_request_ended_is_one_word(status, client_left, word):
    assert outcome(status, client_left=client_left) == word
