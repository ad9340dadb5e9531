"""Ids that are handed to a running request: where they come, how they are computed, and when they are dropped."""

import pytest

from fakes.model import FakeModel
from fakes.runner import FakeRunner
from fakes.serving import request, serving
from kvasir_api.state import RuntimeState

MODEL = FakeModel(table=tuple(range(1, 61)))
HANDED = (90, 91, 92)


def endless(depth=1, **limits):
    return serving(depth, FakeRunner(model=MODEL), **limits)


def answer_after(context, count):
    tokens = list(context)
    for _ in range(count):
        tokens.append(MODEL.next_token(tokens))
    return tokens[len(context) :]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_answer_goes_on_behind_what_was_handed_in(depth):
    served = endless(depth)
    served.submit(request("a", [1, 2], max_tokens=10))
    for _ in range(4):
        served.step()
    served.scheduler.inject("a", HANDED)
    served.finish()
    answer = served.answers["a"]
    (mark,) = set(answer.marks)
    assert len(answer.marks) == 3
    assert 4 <= mark <= 4 + depth
    assert len(answer.tokens) == 10, "what is handed in does not count against max_tokens"
    before = answer.tokens[:mark]
    assert before == answer_after([1, 2], mark)
    assert answer.tokens[mark:] == answer_after([1, 2, *before, *HANDED], 10 - mark)


def test_it_is_computed_as_one_chunk_with_the_last_token():
    served = endless()
    served.submit(request("a", [1, 2], max_tokens=9))
    served.step()
    served.step()
    served.plans.clear()
    served.scheduler.inject("a", HANDED)
    served.step()
    (plan,) = served.plans
    assert [(insert.position, insert.tokens) for insert in plan.inserts] == [(4, HANDED)]
    assert [(chunk.num_tokens, chunk.samples) for chunk in plan.chunks] == [(4, True)]


def test_what_leaves_no_room_is_dropped():
    served = endless(max_model_len=12)
    served.submit(request("a", [1, 2], max_tokens=30))
    served.step()
    served.scheduler.inject("a", tuple(range(100, 110)))
    served.finish()
    answer = served.answers["a"]
    assert (answer.marks, answer.tokens, answer.reason) == ([], answer_after([1, 2], 10), "length")


def test_a_preempted_request_has_it_when_it_comes_back():
    served = endless(2, num_blocks=6, block_size=4, max_model_len=24)
    served.submit(request("a", [1, 2, 3], max_tokens=16), request("b", [4, 5, 6], max_tokens=14))
    while not ((state := served.scheduler.report(RuntimeState())).waiting and state.totals.preemptions):
        served.step()
    served.scheduler.inject("b", HANDED)
    served.finish()
    answer = served.answers["b"]
    mark = answer.marks[0]
    assert answer.tokens[:mark] == answer_after([4, 5, 6], mark)
    assert answer.tokens[mark:] == answer_after([4, 5, 6, *answer.tokens[:mark], *HANDED], 14 - mark)
    assert served.answers["a"].tokens == answer_after([1, 2, 3], 16)


def test_unknown_and_ended_requests_are_ignored():
    served = endless()
    served.submit(request("a", [1, 2], max_tokens=2))
    served.finish()
    served.scheduler.inject("a", HANDED)
    served.scheduler.inject("b", HANDED)
    assert not served.scheduler.has_work
