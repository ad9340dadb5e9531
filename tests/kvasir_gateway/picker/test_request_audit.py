"""What is known of a request when it is over: one line each, and limits that count what it took."""

import json

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from fakes.clock import Now
from fakes.gateway import grant
from kvasir_api.ended_requests import EndedRequest
from kvasir_gateway.picker.request_audit import UNSETTLED_S, RequestAudit, RequestOrigin

TEAM = grant("team", "k", tokens_per_minute=1000)
POD, OTHER = "10.0.0.1:8000", "10.0.0.2:8000"


class Audited:
    """An audit, what it wrote, and what it settled."""

    def __init__(self, *, writes=True):
        self.clock, self.written, self.settled = Now(), [], []
        self.audit = RequestAudit(clock=self.clock, settle=lambda grant, more: self.settled.append((grant.name, more)))
        self.audit.write = self.written.append if writes else None

    def came(self, name="a", *, tenant=TEAM, tokens=10.0):
        origin = RequestOrigin(
            request_id=f"client-{name}",
            path="/v1/chat/completions",
            service="models.chat",
            model="org/chat",
            grant=tenant,
            tokens=tokens,
            at=1_000_000_000.0,
            at_s=self.clock(),
        )
        self.audit.began(name, origin)

    def went(self, name="a", *, after=0.0, address=POD, relayed=""):
        self.clock.now += after
        self.audit.forwarded(name, address, relayed=relayed)

    def ended(self, name="a", *, after=0.0, status=200, outcome="ok", address=""):
        self.clock.now += after
        self.audit.ended(name, status=status, outcome=outcome, address=address)

    def took(self, name="a", *, prompt=30, completion=5):
        used = EndedRequest(
            id=name, prompt_tokens=prompt, cached_tokens=4, completion_tokens=completion, first_token_s=0.25
        )
        self.audit.take([used])

    @property
    def lines(self):
        return [json.loads(line) for line in self.written]


@pytest.fixture
def audited():
    return Audited()


def test_what_no_replica_got_takes_no_tokens(audited):
    audited.came(tokens=10.0)
    audited.ended(after=60.0, status=503, outcome="server_error")
    assert audited.settled == [("team", -10.0)]
    audited.came("limited", tokens=900.0)
    audited.audit.not_counted("limited")
    audited.ended("limited", status=429, outcome="client_error")
    assert audited.settled == [("team", -10.0)], "none were taken, so none are given back"
    assert [line["outcome"] for line in audited.lines] == ["refused", "refused"]


def test_a_line_has_who_where_and_how_much(audited):
    audited.came()
    audited.went(after=0.5)
    audited.ended(after=2.0)
    assert audited.lines == []
    assert audited.audit.awaited() == {POD}
    audited.took()
    assert audited.lines == [
        {
            "audit": "request",
            "time": "2001-09-09T01:46:40.000+00:00",
            "request_id": "client-a",
            "namespace": "models",
            "service": "chat",
            "tenant": "team",
            "model": "org/chat",
            "path": "/v1/chat/completions",
            "endpoint": POD,
            "status": 200,
            "outcome": "ok",
            "prompt_tokens": 30,
            "cached_tokens": 4,
            "completion_tokens": 5,
            "wait_s": 0.5,
            "first_token_s": 0.25,
            "duration_s": 2.5,
        }
    ]
    assert audited.written[0].endswith(b"}\n")
    assert audited.audit.awaited() == frozenset()
    assert audited.settled == [("team", 25.0)]


def test_what_a_backend_has_not_counted_is_estimated(audited):
    audited.came(tokens=10.0)
    audited.went()
    audited.ended(outcome="aborted")
    audited.audit.take([EndedRequest(id="a", completion_tokens=5)], counts_prompt=False)
    assert [(line["prompt_tokens"], line["completion_tokens"]) for line in audited.lines] == [(10, 5)]
    assert audited.settled == [("team", 5.0)]


def test_a_report_may_come_before_the_end(audited):
    audited.came()
    audited.went()
    audited.took()
    assert audited.lines == []
    audited.ended()
    assert [line["completion_tokens"] for line in audited.lines] == [5]


def test_a_replica_that_reports_nothing_is_not_awaited_for_long(audited):
    audited.came()
    audited.went()
    audited.ended()
    audited.clock.now += UNSETTLED_S - 0.1
    audited.audit.expire()
    assert audited.lines == []
    audited.clock.now += 0.1
    audited.audit.expire()
    assert [(line["prompt_tokens"], line["first_token_s"]) for line in audited.lines] == [(-1, -1.0)]
    audited.took()
    assert (len(audited.lines), audited.settled) == (1, [])


@pytest.mark.parametrize(
    ("status", "outcome", "wanted"),
    [(429, "client_error", "refused"), (503, "server_error", "refused"), (0, "aborted", "aborted")],
)
def test_a_request_that_no_replica_got_has_its_line_at_once(audited, status, outcome, wanted):
    audited.came()
    audited.ended(status=status, outcome=outcome)
    assert [(line["outcome"], line["endpoint"], line["wait_s"]) for line in audited.lines] == [(wanted, "", -1.0)]


def test_an_end_that_comes_before_its_beginning_has_its_line(audited):
    audited.ended(status=0, outcome="aborted")
    audited.came()
    audited.went()
    assert [(line["outcome"], line["endpoint"]) for line in audited.lines] == [("aborted", "")]
    assert audited.audit._followed == {}, "nothing is kept of it"


def test_a_retry_at_another_replica_is_told_by_envoy(audited):
    audited.came()
    audited.went()
    audited.ended(address=OTHER)
    assert audited.audit.awaited() == {OTHER}


def test_a_stream_that_went_on_elsewhere_took_what_the_last_replica_counted(audited):
    audited.came("outer")
    audited.went("one", relayed="outer")
    audited.took("one", completion=5)
    audited.ended("one", address=POD)
    audited.went("two", address=OTHER, relayed="outer")
    audited.ended("outer", address="")
    assert audited.lines == []
    audited.took("two", completion=12)
    assert [(line["completion_tokens"], line["endpoint"]) for line in audited.lines] == [(12, OTHER)]
    assert audited.settled == [("team", 25.0), ("team", 7.0)]


def test_an_envoy_that_is_gone_ends_what_it_had(audited):
    audited.came("old")
    audited.went("old")
    audited.clock.now += 5
    audited.came("new")
    audited.audit.ended_before(audited.clock.now)
    audited.clock.now += UNSETTLED_S
    audited.audit.expire()
    assert [(line["request_id"], line["outcome"]) for line in audited.lines] == [("client-old", "server_error")]


def test_without_a_log_only_limits_of_tokens_are_followed():
    audited = Audited(writes=False)
    for name, tenant in (("a", TEAM), ("b", grant("free", "f")), ("c", None)):
        audited.came(name, tenant=tenant)
        audited.went(name)
        audited.ended(name)
    assert audited.audit.awaited() == {POD}
    for name in "abc":
        audited.took(name)
    assert (audited.settled, audited.written) == ([("team", 25.0)], [])


IDS = st.sampled_from("abcd")


class Requests(RuleBasedStateMachine):
    """Whatever order messages come in: a request has one line, and its tenant is charged what was counted last."""

    def __init__(self):
        super().__init__()
        self.audited = Audited()
        self.begun: dict[str, float] = {}
        self.charged: dict[str, float] = {}

    @rule(name=IDS)
    def come(self, name):
        if name not in self.begun:
            self.begun[name] = 10.0
            self.audited.came(name)

    @rule(name=IDS)
    def go(self, name):
        self.audited.went(name)

    @rule(name=IDS, status=st.sampled_from([0, 200, 503]))
    def end(self, name, status):
        self.audited.ended(name, after=1.0, status=status)

    @rule(name=IDS, tokens=st.integers(0, 50))
    def take(self, name, tokens):
        self.audited.took(name, prompt=tokens, completion=0)

    @rule(seconds=st.sampled_from([0.5, 6.0]))
    def expire(self, seconds):
        self.audited.clock.now += seconds
        self.audited.audit.expire()

    def teardown(self):
        names = [line["request_id"] for line in self.audited.lines]
        assert len(names) == len(set(names)) <= len(self.begun)
        for line in self.audited.lines:
            assert line["duration_s"] >= 0
        total = sum(more for _, more in self.audited.settled)
        assert total >= -10.0 * len(self.begun)


TestRequests = Requests.TestCase
