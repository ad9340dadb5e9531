"""Who is admitted: in order, but one that waits for its turn in the budget is passed by those that leave it room."""

import pytest

from fakes.model import FakeModel
from fakes.runner import FakeRunner
from fakes.serving import request, serving
from kvasir_api.cache_groups import LayerAttention
from kvasir_api.state import RuntimeState

NO_EOS = FakeModel(table=tuple(range(1, 61)))
BUDGET = 32


def steps_to_first_token(served, names, max_steps=10_000):
    """In steps, by name."""
    found = {}
    for step in range(1, max_steps):
        served.step()
        found |= {name: step for name in names if name not in found and served.answers[name].tokens}
        if len(found) == len(names):
            return found
    raise AssertionError("some have no token yet")


def long_prompts(count, tokens=20 * BUDGET):
    return [request(f"long{number}", [number + 1] * tokens, max_tokens=4) for number in range(count)]


def endless(**settings):
    runner = FakeRunner(model=NO_EOS, max_model_len=4096)
    return serving(runner=runner, num_blocks=2000, max_batch_tokens=BUDGET, **settings)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_short_prompt_behind_three_long_ones_waits_for_slices_of_them(depth):
    """Each step takes a budget's time. Before, the short prompt waited for 60 steps."""
    served = endless(depth=depth)
    served.submit(*long_prompts(3))
    for _ in range(3):
        served.step()
    served.submit(request("short", [60] * (BUDGET // 4), max_tokens=4))
    first = steps_to_first_token(served, ["short", "long0", "long1", "long2"])
    assert first["short"] <= depth + 1
    assert first["long0"] < first["long1"] < first["long2"] <= 3 * 20 + depth


def test_a_stream_of_short_prompts_delays_a_long_one_to_twice_its_time_at_most():
    served = endless()
    served.submit(*long_prompts(1))
    steps = 0
    while not served.answers["long0"].tokens:
        for number in range(4):
            served.submit(request(f"{steps}/{number}", [60] * 16, max_tokens=1))
        served.step()
        steps += 1
    assert 20 < steps <= 2 * 20 + 1


def test_short_prompts_behind_long_ones_in_a_queue_leave_room_for_the_next():
    """The second long prompt waits for its turn: what passes it leaves it the blocks and the row that it needs."""
    served = endless(max_sequences=3)
    served.submit(*long_prompts(2), *(request(f"short{number}", [60] * 4, max_tokens=900) for number in range(3)))
    served.step()
    assert [join.request_id for join in served.plans[0].joins] == ["long0", "short0"]
    first = steps_to_first_token(served, ["long1"])
    assert first["long1"] <= 45


def test_requests_pass_one_that_waits_for_a_prefix_that_is_being_computed():
    served = endless()
    served.submit(*(request(name, [7] * 400, max_tokens=4) for name in "ab"), request("c", [9] * 8))
    first = steps_to_first_token(served, ["a", "b", "c"])
    assert first["c"] == 1
    assert served.answers["b"].cached_tokens == 396


def test_blocks_that_a_smaller_share_does_not_need_are_given_back():
    """A layer with a window takes blocks chunk by chunk."""
    attentions = (LayerAttention("window", 16),)
    runner = FakeRunner(model=NO_EOS, max_model_len=4096, attentions=attentions)
    served = serving(runner=runner, num_blocks=60, max_batch_tokens=BUDGET, attentions=attentions)
    served.submit(request("long", [1] * 300, max_tokens=4))
    served.step()
    served.submit(*(request(f"short{number}", [60 - number] * 16, max_tokens=4) for number in range(4)))
    while served.step():
        kv = served.scheduler.report(RuntimeState()).kv
        held = {block for kind in served.scheduler._running.values() for block in kind.sequence.blocks.held}
        assert kv.pinned_tokens == 4 * len(held)
    assert all(len(answer.tokens) == 4 for answer in served.answers.values())


def test_the_less_urgent_is_preempted_whichever_came_first():
    served = serving(runner=FakeRunner(model=NO_EOS), num_blocks=9)
    served.submit(request("batch", range(1, 8), max_tokens=20, priority=5))
    served.step()
    served.submit(request("user", range(2, 9), max_tokens=20))
    served.finish()
    assert [join.request_id for plan in served.plans for join in plan.joins] == ["batch", "user", "batch"]
    assert [len(answer.tokens) for answer in served.answers.values()] == [20, 20]


def test_an_urgent_prompt_is_computed_before_a_long_one_that_is_under_way():
    served = endless()
    served.submit(*long_prompts(1))
    served.step()
    served.submit(request("urgent", [60] * 30 * BUDGET, max_tokens=4, priority=-1))
    first = steps_to_first_token(served, ["long0", "urgent"])
    assert first["urgent"] <= 31 < first["long0"]
