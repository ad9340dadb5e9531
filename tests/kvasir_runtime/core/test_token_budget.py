"""The budget of a step follows what tokens cost, only while somebody waits for the next token of an answer."""

import random
from collections import deque
from typing import NamedTuple

import msgspec
import pytest

from fakes.runner import FakeRunner
from kvasir_api.options import ServeOptions
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan import SampledTokens, StepResults
from kvasir_runtime.core.request_state import RequestState
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.core.sequence import SequenceState
from kvasir_runtime.core.token_budget import GROWS_AFTER, MOST_WAIT, TokenBudget
from kvasir_runtime.engine.start import limits_of
from kvasir_runtime.wire import EngineRequest, SamplingConfig


def streams(number: int) -> list[SequenceState]:
    """So many answers on their way, and one prompt."""
    request = EngineRequest(request_id="r", prompt=(1, 2, 3), sampling=SamplingConfig(max_tokens=9))
    state = RequestState(request, billed_since=0.0)
    made = [SequenceState(state, b"", [1, 2, 3]) for _ in range(number + 1)]
    for sequence in made[1:]:
        sequence.computed = 2
    return made


def spent(budget: TokenBudget, num_tokens: int, elapsed_s: float) -> TokenBudget:
    """After one more step."""
    budget.begin(0.0)
    budget.end(num_tokens, elapsed_s)
    budget.begin(100.0)
    budget.end(0, 0.0)  # the clock stands at 0 again
    return budget


@pytest.mark.parametrize(
    ("cost_s", "num_streams", "want"),
    [
        (0.0002, 0, 512),  # nobody waits
        (0.0002, 3, 500),
        (0.0004, 3, 250),
        (0.01, 3, 67),  # ten would fit, but the weights are read all the same
        (0.00001, 3, 512),
    ],
)
def test_budget_is_what_fits_into_the_target(cost_s: float, num_streams: int, want: int) -> None:
    budget = TokenBudget(target_s=0.1, max_tokens=512, min_tokens=64)
    assert budget.tokens(streams(num_streams)) == (64 + num_streams if num_streams else 512)  # nothing is measured yet
    spent(budget, 4, 1.0)  # too few tokens to tell their cost
    assert spent(budget, 400, 400 * cost_s).tokens(streams(num_streams)) == want
    assert (
        spent(TokenBudget(target_s=0.0, max_tokens=512, min_tokens=64), 400, 400 * cost_s).tokens(streams(num_streams))
        == 512
    )


def test_recent_steps_count_most_and_a_step_that_waited_is_not_dear() -> None:
    budget, now = TokenBudget(target_s=0.1, max_tokens=10_000, min_tokens=64), 0.0
    for took in (0.01,) * 100 + (0.1,) * 100:
        budget.begin(now)
        budget.begin(now)  # waits for the one before
        for _ in range(2):
            now += took
            budget.end(100, now)
    assert 95 < budget.tokens(streams(1)) < 110


def test_prompts_wait_for_streams_and_not_the_other_way_round() -> None:
    limits = Limits(
        num_blocks=400, block_size=16, max_batch_tokens=512, max_sequences=4, max_model_len=4096, target_step_s=0.1
    )
    scheduler = Scheduler(limits)

    def step(begin: float, end: float) -> int:
        plan = scheduler.plan(begin)
        assert plan is not None
        sampled = tuple(SampledTokens(chunk.row, (7,)) for chunk in plan.chunks if chunk.samples)
        scheduler.commit(StepResults(step=plan.step, sampled=sampled), end)
        return plan.num_tokens

    def submit(name: str, first: int, now: float) -> None:
        prompt = tuple(range(first, first + 1000))
        assert (
            scheduler.submit(EngineRequest(request_id=name, prompt=prompt, sampling=SamplingConfig(max_tokens=50)), now)
            is None
        )

    submit("a", 1, 0.0)
    assert step(0.0, 0.512) == 512  # a millisecond a token, and nobody waits
    assert step(0.512, 1.0) == 488
    submit("b", 5000, 1.0)
    assert step(1.0, 1.1) == 100  # a's next token and 99 of b
    assert step(5.0, 5.05) == 100  # the pause before it is not its cost
    assert step(5.05, 5.1) > 100


def card_step_s(num_tokens: int) -> float:
    """Of a model of 8 billion parameters on an H200: the weights are read in 4.5 ms, then 22 us a token."""
    return 0.0045 + 22e-6 * max(0, num_tokens - 200)


def test_on_a_card_streams_never_wait_longer_than_the_target_for_prompts() -> None:
    """Two plans in flight, as on CUDA, and short prompts first, so that nothing tells what a token costs."""
    options = ServeOptions(model="m", max_sequences=64)
    facts = FakeRunner(num_blocks=20_000, block_size=16, max_model_len=40_000, max_rows=64, max_batch_tokens=8192).facts
    scheduler = Scheduler(limits_of(options, msgspec.structs.replace(facts, device="NVIDIA H200")))
    chance, now, flying, waited, sizes = random.Random(3), 0.0, deque(), [], []
    for number in range(40):
        length = 20 if number < 16 else chance.randint(1, 30_000)
        prompt = tuple(chance.choices(range(1000), k=length))
        sampling = SamplingConfig(max_tokens=2000, ignore_eos=True)
        assert scheduler.submit(EngineRequest(request_id=str(number), prompt=prompt, sampling=sampling), 0.0) is None
    for _ in range(400):
        while len(flying) < 2 and (plan := scheduler.plan(now)) is not None:
            flying.append(plan)
        plan = flying.popleft()
        now += card_step_s(plan.num_tokens)
        if any(chunk.num_tokens == 1 for chunk in plan.chunks):
            waited.append(card_step_s(plan.num_tokens))
            sizes.append(plan.num_tokens)
        sampled = tuple(SampledTokens(chunk.row, (7,)) for chunk in plan.chunks if chunk.samples)
        scheduler.commit(StepResults(step=plan.step, sampled=sampled), now)
    assert max(waited) < 0.055
    assert max(sizes) > 1800, "the budget is used"


class StepCost(NamedTuple):
    """Seconds: of a step, of each of its tokens, and of each pair of query and key in its attention."""

    step_s: float
    token_s: float
    pair_s: float


TINY = StepCost(0.0015, 20e-6, 8e-9)
"""The tiny model of `make bench-neighbours`."""
SLOW = StepCost(0.02, 20e-6, 0.0)
"""One whose weights take most of a step."""
DEAR = StepCost(0.06, 0.3e-3, 2e-8)


class ShortPrompts(NamedTuple):
    """wait_s: the longest time to a first token of theirs. step_s: the longest step, without what other processes took.
    rate: tokens of long prompts per second meanwhile.
    """

    wait_s: float
    step_s: float
    rate: float


def beside_long_prompts(cost: StepCost, *, num_long: int, every_s: float, late: float = 0.0) -> ShortPrompts:
    """Prompts of 16 tokens that come one after the other for 30 s beside prompts of 100,000. late: share of the steps
    that take three times their time, since another process runs.
    """
    limits = Limits(
        num_blocks=30_000,
        block_size=16,
        max_batch_tokens=512,
        max_sequences=8,
        max_model_len=131_072,
        target_step_s=0.1,
    )
    scheduler, now, long, short, due = Scheduler(limits), 0.0, 0, 0, every_s
    waits: list[float] = []
    steps: list[float] = []
    noise = random.Random(5)
    for number in range(num_long):
        prompt = (number, *range(100_000))
        request = EngineRequest(request_id=f"l{number}", prompt=prompt, sampling=SamplingConfig(max_tokens=9))
        assert scheduler.submit(request, 0.0) is None
    open_since: dict[str, float] = {}
    while now < 30.0 and scheduler.has_work:
        if now >= due and not open_since:
            short += 1
            sampling = SamplingConfig(max_tokens=1)
            request = EngineRequest(request_id=str(short), prompt=(short, *range(15)), sampling=sampling)
            assert scheduler.submit(request, due) is None
            open_since[str(short)] = due
        plan = scheduler.plan(now)
        assert plan is not None
        pairs = sum(chunk.num_tokens * (chunk.start + chunk.num_tokens) for chunk in plan.chunks)
        took = cost.step_s + cost.token_s * plan.num_tokens + cost.pair_s * pairs
        steps.append(took)
        now += took * noise.uniform(0.9, 1.1) * (3 if noise.random() < late else 1)
        sampled = tuple(SampledTokens(chunk.row, (7,)) for chunk in plan.chunks if chunk.samples)
        long += sum(chunk.num_tokens for chunk in plan.chunks if chunk.start or not chunk.samples)
        for output in scheduler.commit(StepResults(step=plan.step, sampled=sampled), now):
            if output.request_id in open_since:
                waits.append(now - open_since.pop(output.request_id))
                due = now + every_s
    return ShortPrompts(max(waits[5:], default=0.0), max(steps[100:], default=0.0), long / now)


@pytest.mark.parametrize(
    ("cost", "num_long", "most_s"), [(TINY, 1, 0.03), (TINY, 2, 0.03), (SLOW, 2, 0.1), (DEAR, 1, 0.5)]
)
def test_short_prompts_wait_for_short_steps_and_long_ones_go_on(cost: StepCost, num_long: int, most_s: float) -> None:
    found = beside_long_prompts(cost, num_long=num_long, every_s=0.1)
    assert 0 < found.wait_s < most_s
    undisturbed = beside_long_prompts(cost, num_long=num_long, every_s=100.0)
    assert found.rate > 0.5 * undisturbed.rate


@pytest.mark.parametrize(("cost", "most_s", "rate"), [(TINY, 0.014, 1800), (SLOW, 0.035, 9000), (DEAR, 0.24, 500)])
@pytest.mark.parametrize("late", [0.02, 0.1])
def test_steps_with_long_prompts_stay_short_while_other_processes_run(
    cost: StepCost, most_s: float, rate: float, late: float
) -> None:
    found = beside_long_prompts(cost, num_long=1, every_s=0.1, late=late)
    assert found.step_s < most_s
    assert found.rate > rate


def test_what_is_computed_beside_the_copies_of_weights_is_free() -> None:
    budget = TokenBudget(target_s=0.05, max_tokens=8192, min_tokens=256, least_s=0.3)
    assert budget.tokens(streams(3)) == 259
    found = [259]
    for _ in range(4):  # no longer than the copies: the cost of a token is not known yet
        found.append(spent(budget, found[-1], 0.31).tokens(streams(3)))
        assert budget.token_s == 0
    assert found == [259, 518, 1036, 2072, 4144]
    assert spent(budget, 4144, 0.6).token_s == pytest.approx(0.6 / 4144)
    assert budget.tokens(streams(3)) == pytest.approx(2072, abs=1), "what ends with the copies"


def test_a_model_on_its_device_is_budgeted_as_before() -> None:
    budget = TokenBudget(target_s=0.1, max_tokens=512, min_tokens=64)
    assert spent(budget, 400, 0.16).tokens(streams(3)) == 250


def test_a_step_without_memory_halves_those_that_follow_until_many_have_found_it() -> None:
    budget = TokenBudget(target_s=0.0, max_tokens=100, min_tokens=64)
    budget.shrink(90)
    assert budget.tokens(streams(3)) == 45
    budget.shrink(45)
    budget.shrink(22)
    assert budget.tokens([]) == 11
    for want in (11, 22, 44, 88, 100, 100):
        assert budget.tokens([]) == want
        for _ in range(GROWS_AFTER):
            budget.begin(0.0)
            budget.end(1, 0.0)
    budget.shrink(1)
    assert budget.tokens([]) == 1, "something can always be computed"


def test_each_try_of_larger_steps_that_fails_is_followed_by_a_longer_wait() -> None:
    budget, waits = TokenBudget(target_s=0.0, max_tokens=100, min_tokens=64), []
    budget.shrink(100)
    for _ in range(4):
        waits.append(0)
        while budget.tokens([]) == 50:
            waits[-1] += 1
            budget.begin(0.0)
            budget.end(1, 0.0)
        budget.shrink(80)
        assert budget.tokens([]) == 50, "and not half of what failed, since this fitted"
    assert waits == [GROWS_AFTER << number for number in range(4)]
    budget.shrink(50)
    assert budget.tokens([]) == 25
    for _ in range(MOST_WAIT):
        budget.begin(0.0)
        budget.end(1, 0.0)
    budget.shrink(100)
    for want in (50, 100):
        assert budget.tokens([]) == want
        for _ in range(GROWS_AFTER):
            budget.begin(0.0)
            budget.end(1, 0.0)
