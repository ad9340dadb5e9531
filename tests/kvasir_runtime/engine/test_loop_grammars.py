"""Requests whose grammars are being compiled: they wait outside, others go on, and whoever leaves is forgotten."""

import pytest

from fakes.clients import CLIENT, FakeClients
from fakes.grammars_compiled import FakeGrammars
from fakes.model import FakeModel
from fakes.runner import FakeRunner
from fakes.serving import request
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.engine.loop import Engine
from kvasir_runtime.wire import Abort, Grammar, Hello, Submit

LIMITS = Limits(num_blocks=64, block_size=4, max_batch_tokens=32, max_sequences=8, max_model_len=256)


def submit(name, text="", **sampling):
    grammar = Grammar(kind="regex", text=text) if text else None
    return Submit(request(name, (1, 2, 3), max_tokens=4, grammar=grammar, **sampling))


def run(script, questions=None, **clients):
    grammars = FakeGrammars(dict(questions or {}))
    told = FakeClients([[Hello()], *script], patience_s=0.01, **clients)
    runner = FakeRunner(model=FakeModel(table=tuple(range(1, 61))), grammars=grammars)
    Engine(scheduler=Scheduler(LIMITS), runner=runner, clients=told, state=RuntimeState()).run()
    return told, grammars


def ends(told):
    return [event.request_id for event in told.events() if event.finish_reason is not None]


@pytest.mark.parametrize("questions", [0, 1, 30])
def test_others_go_on_meanwhile_and_it_is_answered_when_ready(questions):
    told, grammars = run([[submit("guided", "a"), submit("plain")]], {"a": questions})
    assert sorted(ends(told)) == ["guided", "plain"]
    if questions == 30:
        assert ends(told)[0] == "plain"
    first = next(event for event in told.events() if event.request_id == "guided" and event.token_ids)
    assert first.queue_s >= 0
    assert grammars.held == {}


def test_what_cannot_be_compiled_is_told_to_its_client_alone():
    told, grammars = run([[submit("a", "bad a"), submit("b", "good")]], {"bad a": 3})
    found = {event.request_id: event for event in told.events() if event.finish_reason}
    assert (found["a"].finish_reason, found["a"].message) == ("error", "bad a is bad")
    assert found["b"].finish_reason in {"length", "stop", "error"}
    assert grammars.held == {}


def test_one_that_left_is_not_queued():
    told, grammars = run([[submit("a", "slow")], [Abort("a")], [submit("b")]], {"slow": 5})
    assert ends(told) == ["b"]
    assert grammars.held == {}


def test_the_same_id_twice_is_refused_once():
    told, grammars = run([[submit("a", "slow"), submit("a", "slow")]], {"slow": 5})
    reasons = [event.message for event in told.events() if event.finish_reason == "error"]
    assert "a request with the id a has not ended yet" in reasons
    assert len(ends(told)) == 2
    assert grammars.held == {}


def test_a_request_that_can_never_run_is_refused_after_it_was_parked():
    told, grammars = run([[Submit(request("a", (), grammar=Grammar(kind="regex", text="x")))]])
    assert [event.message for event in told.events()] == ["the prompt is empty"]
    assert grammars.held == {}


def test_a_client_that_is_gone_has_nothing_parked():
    told, grammars = run([[(b"api-1", submit("a", "slow"))], [submit("b")]], {"slow": 9}, gone={b"api-1"})
    assert told.steps(CLIENT)
    assert grammars.held == {}
