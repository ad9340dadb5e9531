"""What a busy machine makes of drafts, and what it costs to try those of a model again, in virtual time."""

import pytest

from fakes.draft_world import COSTS, World, running


class Busy:
    """Costs that are others in each so many steps. period: 0 for as long as `is_busy` says."""

    def __init__(self, idle, busy, period=0):
        self.idle, self.busy, self.period, self.steps, self.is_busy = idle, busy, period, 0, False
        self.plain_s = 0.0

    def __call__(self, num_sequences, num_drafts):
        is_busy = self.steps // self.period % 2 if self.period else self.is_busy
        self.steps += 1
        cost = self.busy if is_busy else self.idle
        self.plain_s = cost(num_sequences, 0)
        return cost(num_sequences, num_drafts)


BUSY = {
    "all twice": lambda n, m: 2 * COSTS["memory"](n, m),
    "drafts half a step": lambda n, m: 0.03 * (1 + 0.5 * m),
    "drafts a step": lambda n, m: 0.03 * (1 + m),
    "five times": lambda n, m: 5 * COSTS["both"](n, m),
}


@pytest.mark.parametrize("rate", [0.4, 0.9])
@pytest.mark.parametrize("busy", BUSY)
def test_after_a_busy_time_drafts_are_what_they_were(busy, rate):
    """Within some 500 steps, the longest rest and what a trial waits for; what such steps took keeps none off."""
    always = World(1, COSTS["memory"], [rate])
    always.run(500)
    costs = Busy(COSTS["memory"], BUSY[busy])
    world = World(1, costs, [rate])
    world.run(300)
    costs.is_busy = True
    world.run(1000)
    costs.is_busy = False
    world.run(500)
    assert world.run(1000) >= 0.9 * always.run(1000)


@pytest.mark.parametrize("rate", [0.0, 0.4, 0.9])
def test_where_drafts_become_dear_they_end(rate):
    """Two steps of each number of drafts that was used show that."""
    costs = Busy(COSTS["memory"], lambda n, m: 0.012 * (1 + m))
    world = World(1, costs, [rate])
    world.run(300)
    costs.is_busy = True
    world.run(50)
    assert world.run(300) >= 0.98 / 0.012


@pytest.mark.parametrize("period", [60, 400])
@pytest.mark.parametrize("busy", BUSY)
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_a_machine_that_is_busy_now_and_then_makes_answers_hardly_slower(busy, period, rate):
    costs = Busy(COSTS["memory"], BUSY[busy], period)
    world, plain_s = World(1, costs, [rate]), 0.0
    for _ in range(3000):
        world.step()
        plain_s += costs.plain_s
    # What each change costs is most of it where drafts pay, then cost a step each, and then pay again.
    most = 1.05 if (busy, period) == ("drafts a step", 60) else 1.02
    assert world.seconds <= plain_s * most * world.tokens / 3000


@pytest.mark.parametrize("num_sequences", [1, 4])
@pytest.mark.parametrize("factor", [1.3, 2.0, 4.0, 8.0])
def test_a_model_whose_drafts_are_never_right_costs_less_than_two_percent(num_sequences, factor):
    """factor: what a step with a draft takes in one without, the draft model's part included."""

    def step_s(n, m):
        return COSTS["memory"](n, m) * (factor if m else 1)

    world = World(num_sequences, step_s, [0.0] * num_sequences, "model")
    world.run(300)
    verified = world.speculation._counters.drafted_tokens
    assert world.run(3000) >= 0.98 * num_sequences / step_s(num_sequences, 0)
    assert world.speculation._counters.drafted_tokens > verified


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.6, 0.8])
@pytest.mark.parametrize("num_sequences", [16, 64])
def test_a_model_that_would_have_to_read_all_of_them_is_tried_for_few_of_many(num_sequences, rate):
    """Where steps are bound by arithmetic no draft pays, and the model takes a sixth of the other one's for a token."""
    step_s = COSTS["arithmetic"]
    world = World(num_sequences, step_s, [rate] * num_sequences, "model", read_s=0.00017)
    plain = num_sequences / step_s(num_sequences, 0)
    assert world.run(150) >= 0.9 * plain  # it is tried, for four times as many sequences each time
    assert world.run(3000) >= 0.97 * plain
    assert world.speculation._num_steps["model"] > 0


@pytest.mark.parametrize(("num_sequences", "pass_s", "times"), [(4, 0.0, 2.5), (64, 0.0, 1.5), (16, 0.0015, 1.3)])
def test_a_model_that_pays_soon_drafts_for_all(num_sequences, pass_s, times):
    """Where a step costs the same for few rows and for many, and one draft as much as one for each."""
    step_s = COSTS["memory"]
    world = World(num_sequences, step_s, [0.8] * num_sequences, "model", read_s=0.000002, pass_s=pass_s)
    world.run(150)
    assert world.run(200) >= times * num_sequences / step_s(num_sequences, 0)


@pytest.mark.parametrize("num_sequences", [2, 16, 32])
def test_a_model_whose_drafts_are_right_for_new_requests_drafts_for_them(num_sequences):
    step_s = COSTS["memory"]
    world = World(num_sequences, step_s, [0.0] * num_sequences, "model")
    world.run(600)
    world.kinds = [running(100 + number) for number in range(num_sequences)]
    world.rates, world.read = [0.95] * num_sequences, [1] * num_sequences
    world.run(300)
    assert world.run(200) >= 2.0 * num_sequences / step_s(num_sequences, 0)


def test_a_sequence_whose_drafts_are_wrong_keeps_none_from_another_one():
    world = World(2, COSTS["memory"], [0.0, 0.0], "model")
    world.run(600)
    world.rates = [0.0, 0.95]
    world.run(300)
    before = len(world.kinds[1].sequence.tokens)
    world.run(200)
    assert len(world.kinds[1].sequence.tokens) - before >= 2 * 200


@pytest.mark.parametrize("num_unread", [1 << 13, 1 << 16])
def test_a_sequence_that_a_model_has_not_read_keeps_none_from_others(num_unread):
    """As one whose prefix came from elsewhere."""
    world = World(3, COSTS["memory"], [0.9] * 3, "model", read_s=0.000001)
    long = world.kinds[0].sequence
    long.tokens, long.computed = [1] * num_unread, num_unread - 1
    world.run(100)
    before = [len(kind.sequence.tokens) for kind in world.kinds]
    world.run(200)
    assert all(
        len(kind.sequence.tokens) - begun >= 3 * 200 for kind, begun in list(zip(world.kinds, before, strict=True))[1:]
    )


@pytest.mark.parametrize("factor", [1.1, 1.5, 2.0])
def test_a_model_whose_drafts_become_right_is_used_again(factor):
    """Soon where one right draft would pay for its step, else where costs are doubted and several are tried."""

    def step_s(n, m):
        return COSTS["memory"](n, m) * (factor if m else 1)

    always = World(1, step_s, [0.95], "model")
    always.run(300)
    world = World(1, step_s, [0.0], "model")
    world.run(1000)
    world.rates = [0.95]
    world.run_tokens(1400 if factor >= 2 else 300)
    assert world.run(200) >= 0.9 * always.run(200)


@pytest.mark.parametrize("speculation", ["auto", "model"])
@pytest.mark.parametrize("stalled", [3, 4, 20, 300])
def test_one_step_that_is_held_up_keeps_drafts_off_for_a_few_steps_at_most(speculation, stalled):
    """A step with drafts, the first one among them, of five seconds in place of ten milliseconds."""
    steps = iter(range(10_000))

    def step_s(n, m):
        return 5.0 if next(steps) == stalled else COSTS["memory"](n, m)

    always = World(1, COSTS["memory"], [0.9], speculation)
    always.run(stalled + 60)
    world = World(1, step_s, [0.9], speculation)
    world.run(stalled + 60)
    assert world.run(200) >= 0.9 * always.run(200)
