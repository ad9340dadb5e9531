"""Several steps in flight over stages: of disjoint rows, as many in each, and prompts in one of them."""

import itertools
from collections import Counter, deque
from types import SimpleNamespace

import pytest

from fakes.model import FakeModel
from fakes.runner import FakeRunner
from fakes.serving import Serving, request, serving
from kvasir_runtime.core.plan_builder import PlanBuilder
from kvasir_runtime.core.row_pool import RowPool
from kvasir_runtime.core.stage_sets import LEAST_WAIT, MOST_WAIT, TRIAL, SetChoice, StageSets, numbers_of_sets

ENDLESS = FakeModel(table=tuple(range(1, 24)))


def over(stages: int, **limits: object) -> Serving:
    """No time passes, so that no way of planning is faster."""
    limits = {"num_blocks": 400, "max_sequences": 16, "stages": stages, **limits}
    served = serving(depth=stages, runner=FakeRunner(model=ENDLESS), **limits)
    served.tick_s = 0.0
    return served


def streams(served: Serving, count: int, max_tokens: int = 60) -> None:
    served.submit(*[request(f"r{number}", [number + 1], max_tokens=max_tokens) for number in range(count)])


@pytest.mark.parametrize(
    ("stages", "count", "want"),
    [
        (2, 1, [1]),
        (2, 2, [1, 1]),
        (2, 8, [4, 4]),
        (2, 9, [4, 5]),
        (4, 2, [1, 1]),
        (4, 4, [1, 1, 1, 1]),
        (4, 6, [2, 2, 2]),
        (4, 16, [4, 4, 4, 4]),
    ],
)
def test_streams_are_divided_into_sets_of_as_many_rows(stages, count, want):
    served = over(stages)
    streams(served, count)
    for _ in range(12):
        served.step()
    last = [len(plan.chunks) for plan in served.plans[-len(want) :]]
    assert sorted(last) == want


def test_sets_grow_and_shrink_as_streams_come_and_go():
    served = over(2)
    streams(served, 8)
    for _ in range(8):
        served.step()
    for name in ("r0", "r1", "r2", "r3"):
        served.scheduler.abort(name, served.now)
    for _ in range(6):
        served.step()
    assert sorted(len(plan.chunks) for plan in served.plans[-2:]) == [2, 2]
    served.submit(*[request(f"s{number}", [number + 1], max_tokens=60) for number in range(2)])
    for _ in range(6):
        served.step()
    assert sorted(len(plan.chunks) for plan in served.plans[-2:]) == [3, 3]


def test_a_stream_alone_has_the_plans_that_it_has_without_stages():
    alone, staged = over(1), over(4)
    for served in (alone, staged):
        served.submit(request("a", list(range(1, 80)), max_tokens=9))
        served.finish()
    assert staged.plans == alone.plans


def test_a_prompt_is_in_one_step_in_flight_and_the_other_sets_go_on():
    served = over(2)
    streams(served, 8)
    for _ in range(8):
        served.step()
    served.submit(request("long", list(range(1, 150)), max_tokens=4))
    before = len(served.plans)
    for _ in range(8):
        served.step()
        assert sum(plan.num_tokens > len(plan.chunks) for plan, _ in served.flight) <= 1
    kinds = [plan.num_tokens > len(plan.chunks) for plan in served.plans[before:]]
    assert kinds[:6] in ([True, False] * 3, [False, True] * 3)
    served.finish()
    assert len(served.answers["long"].tokens) == 4


def test_a_row_is_free_when_the_last_plan_that_names_it_was_collected():
    rows = RowPool(3, waits=True)
    first, second, third = rows.take(3)
    rows.give_up([first, second], 4)
    rows.give_up([third], 0)
    assert (rows.free, rows.take_leaves()) == ([third], (third,))
    rows.settle(3)
    assert (rows.free, rows.take_leaves()) == ([third], ())
    rows.settle(4)
    assert (rows.free, rows.take_leaves()) == ([third, second, first], (first, second))


def test_a_request_of_many_rows_has_its_turn_beside_older_ones():
    """Behind four streams and one of four rows there is no room for another of four in half of the rows."""
    sets, flying, served = StageSets(2), Flying(), Counter()
    kinds = [running("a", 1), running("b", 1), running("c", 1), running("d", 1), running("e", 4), running("f", 4)]
    for step in range(1, 25):
        for kind in sets.due(PlanBuilder(step=step, budget=100), kinds, flying):
            served[kind.name] += 1
    assert served["f"] >= 8


def running(name, num_rows):
    sequence = SimpleNamespace(tokens=[0], in_flight=0, computed=0)
    return SimpleNamespace(name=name, num_rows=num_rows, sequence=sequence, need=lambda budget: 0)


class Flying(list):
    has_prompts = False


class Pipeline:
    """Seconds of steps: all stages take weights_s, and row_s for each row; rank 0 plans and samples for host_s."""

    def __init__(self, stages: int, weights_s: float, row_s: float, host_s: float) -> None:
        self.cost = (weights_s / stages, row_s / stages, host_s)
        self.free_at = [0.0] * stages

    def launch(self, rows: int, now: float) -> tuple[float, float]:
        """When rank 0 goes on, and when the result of the step is there."""
        weights_s, row_s, _ = self.cost
        at = now
        for stage, free_at in enumerate(self.free_at):
            at = self.free_at[stage] = max(at, free_at) + weights_s + row_s * rows
        return self.free_at[0], at


def tokens_per_s(served: Serving, pipeline: Pipeline, streams_: int, steps: int) -> float:
    """Of so many streams, over the last half of so many steps."""
    streams(served, streams_, max_tokens=100_000)
    flying, now, made, since = deque(), 0.0, 0, 0.0
    for step in range(steps):
        while len(flying) < served.depth and (plan := served.scheduler.plan(now)) is not None:
            results = served.runner.launch(plan)
            now, ready_at = pipeline.launch(len(plan.chunks), now)
            flying.append((results, ready_at))
        results, ready_at = flying.popleft()
        now = max(now, ready_at) + pipeline.cost[2]
        served.scheduler.commit(served.runner.collect(results), now)
        if step == steps // 2:
            made, since = 0, now
        made += len(results.sampled)
    return made / (now - since)


@pytest.mark.parametrize(
    ("stages", "row_s", "host_s", "gain"),
    [
        pytest.param(2, 0.002, 0.0001, 1.4, id="rows take long"),
        pytest.param(4, 0.002, 0.0001, 1.7, id="rows take long, 4 stages"),
        pytest.param(2, 0.0, 0.001, 0.94, id="weights are all"),
        pytest.param(4, 0.0001, 0.004, 0.94, id="rank 0 is busy"),
        pytest.param(4, 0.002, 0.004, 1.25, id="two sets in four stages are best"),
    ],
)
def test_streams_are_divided_where_that_gives_more_tokens_a_second(stages, row_s, host_s, gain):
    """Else no more is lost than trials take."""
    costs = {"weights_s": 0.008, "row_s": row_s, "host_s": host_s}
    size = {"num_blocks": 2000, "max_model_len": 600, "max_sequences": 8}
    one = serving(runner=FakeRunner(model=ENDLESS, max_model_len=600), **size)
    many = serving(depth=stages, runner=FakeRunner(model=ENDLESS, max_model_len=600), stages=stages, **size)
    before = tokens_per_s(one, Pipeline(stages, **costs), 8, 300)
    after = tokens_per_s(many, Pipeline(stages, **costs), 8, 300 if gain < 1 else 500)
    assert after > gain * before


@pytest.mark.parametrize(
    ("stages", "rows", "want"),
    [(2, 3, (2, 1)), (3, 15, (3, 2, 1)), (4, 15, (4, 2, 1)), (4, 3, (3, 2, 1)), (8, 63, (8, 4, 2, 1)), (2, 1, (1,))],
)
def test_numbers_of_sets_that_are_tried(stages, rows, want):
    assert numbers_of_sets(stages, rows) == want


@pytest.mark.parametrize(
    ("tokens", "want"),
    [
        pytest.param({4: 8, 2: 6, 1: 4}, 4, id="as many as stages"),
        pytest.param({4: 6, 2: 8, 1: 4}, 2, id="half as many"),
        pytest.param({4: 4, 2: 3, 1: 8}, 1, id="one, behind one that is slower than the first"),
        pytest.param({4: 8, 2: 8, 1: 8}, 4, id="alike"),
    ],
)
def test_the_number_of_sets_with_most_tokens_a_second_is_kept(tokens, want):
    choice = SetChoice((4, 2, 1))
    for _ in range(3 * TRIAL):
        choice.observe(choice.sets, tokens[choice.sets], 0.01)
    assert (choice.sets, choice.best) == (want, want)


def test_other_numbers_are_tried_again_and_more_seldom_while_all_are_slower():
    """Both others, one behind the other; both were slower before the wait grows."""
    choice, done = SetChoice((4, 2, 1)), []
    for _ in range(8 * LEAST_WAIT + 6 * TRIAL):
        done.append(choice.sets)
        choice.observe(choice.sets, 8 if choice.sets == 4 else 4, 0.01)
    found = [(sets, len(list(steps))) for sets, steps in itertools.groupby(done)]
    first, second = 2 * LEAST_WAIT, 4 * LEAST_WAIT
    assert found == [
        *((4, TRIAL), (2, TRIAL), (1, TRIAL), (4, first), (2, TRIAL), (4, first), (1, TRIAL)),
        *((4, second), (2, TRIAL)),
    ]
    for _ in range(100 * MOST_WAIT):
        choice.observe(choice.sets, 8 if choice.sets == 4 else 4, 0.01)
    assert choice.wait == MOST_WAIT


def test_what_was_slower_takes_over_when_it_is_faster():
    choice, tokens = SetChoice((2, 1)), {2: 8, 1: 4}
    for _ in range(2 * TRIAL):
        choice.observe(choice.sets, tokens[choice.sets], 0.01)
    assert choice.best == 2
    tokens = {2: 4, 1: 8}
    for _ in range(4 * LEAST_WAIT):
        choice.observe(choice.sets, tokens[choice.sets], 0.01)
    assert (choice.sets, choice.best) == (1, 1)


def test_accepted_drafts_count_as_tokens_of_a_step():
    """Each request gives many tokens a step, since its answer repeats itself."""
    served = serving(
        depth=2,
        runner=FakeRunner(model=FakeModel(table=(5,) * 24)),
        stages=2,
        speculation="ngram",
        num_blocks=400,
        max_batch_tokens=64,
    )
    served.submit(*[request(f"r{number}", [5] * 6, max_tokens=100) for number in range(2)])
    for _ in range(12):
        served.step()
    assert any(chunk.drafts for plan in served.plans for chunk in plan.chunks)
    (choice,) = served.scheduler._sets._choices.values()
    assert choice.rates[2].value > 1.5  # of one request in each set
