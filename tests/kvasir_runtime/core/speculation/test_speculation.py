"""The controller in a world with costs and texts of its own: never slower, and faster where that is possible."""

import pytest

from fakes.draft_world import COSTS, LIMITS, World
from fakes.serving import request
from kvasir_runtime.core.block_tables import BlockTables
from kvasir_runtime.core.plan import UNDRAFTED, SampledTokens, StepResults
from kvasir_runtime.core.plan_builder import LaunchedChunk
from kvasir_runtime.core.speculation.acceptance import class_of
from kvasir_runtime.core.speculation.speculation import DRAFTS_OF_MANY
from kvasir_runtime.wire import Grammar


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("num_sequences", [1, 16, 64])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("limit", [1, 4, 31])
def test_it_is_never_slower_than_without(cost, num_sequences, rate, limit):
    world = World(num_sequences, COSTS[cost], [rate] * num_sequences, limit=limit)
    plain = num_sequences / COSTS[cost](num_sequences, 0)
    world.run(50)
    assert world.run(1600 // num_sequences + 100) >= 0.98 * plain


@pytest.mark.parametrize(("rate", "least"), [(0.5, 1.7), (0.8, 3.0), (0.9, 4.5)])
def test_a_single_stream_is_faster_where_steps_are_bound_by_memory(rate, least):
    world = World(1, COSTS["memory"], [rate])
    world.run(100)
    assert world.run(500) >= least / COSTS["memory"](1, 0)


def test_a_first_step_that_others_slowed_down_keeps_no_drafts_from_being_tried():
    """The first of each number from four on takes four times as long."""
    seen = set[int]()

    def step_s(num_sequences, num_drafts):
        slow = num_drafts >= 4 and num_drafts not in seen
        seen.add(num_drafts)
        return COSTS["both"](num_sequences, num_drafts) * (4 if slow else 1)

    world = World(1, step_s, [0.95])
    world.run(300)
    always = World(1, COSTS["both"], [0.95])
    always.run(300)
    assert world.run(200) >= 0.9 * always.run(200)


def test_the_sequences_that_repeat_themselves_get_the_drafts():
    world = World(8, COSTS["both"], [0.95] * 2 + [0.0] * 6)
    world.run(300)
    given = [0] * 8
    for _ in range(100):
        world.step()
        for place, kind in enumerate(world.kinds):
            given[place] += len(kind.sequence.drafts)
    assert min(given[:2]) > 20 * max(given[2:])


@pytest.mark.parametrize("num_sequences", [1, 4])
def test_drafts_that_are_never_right_are_not_tried_again_at_a_cost(num_sequences):
    """Where a first draft costs a third of a step, one try in 16 steps would take 2 %."""
    world = World(num_sequences, COSTS["dear first"], [0.0] * num_sequences)
    world.run(200)
    verified = world.speculation._counters.drafted_tokens
    assert world.run(2000) >= 0.995 * num_sequences / COSTS["dear first"](num_sequences, 0)
    assert world.speculation._counters.drafted_tokens - verified <= 2


@pytest.mark.parametrize("cost", ["memory", "both", "dear first"])
@pytest.mark.parametrize("seed", range(20))
def test_a_text_that_becomes_another_is_noticed_within_32_tokens(cost, seed):
    """From then on it is as fast as one that has always been so; in virtual time."""
    always = World(1, COSTS[cost], [0.95], seed=seed)
    always.run(300)
    world = World(1, COSTS[cost], [0.95], seed=seed)
    world.run(300)
    world.rates = [0.0]
    world.run_tokens(32)
    plain = 1 / COSTS[cost](1, 0)
    assert world.run(64) >= 0.98 * plain
    world.rates = [0.95]
    world.run_tokens(32)
    assert world.run(200) >= 0.9 * always.run(200) >= 3 * plain


@pytest.mark.parametrize(("of_model", "of_texts"), [(0.95, 0.0), (0.0, 0.95), (0.0, 0.0), (0.8, 0.95)])
def test_beside_a_model_that_drafts_a_text_does_where_that_is_likelier_to_be_right(of_model, of_texts):
    """Nearly as fast as with the better one alone, and never slower than with neither."""
    world = World(1, COSTS["memory"], [of_model], "model", beside=True, texts_rate=of_texts)
    world.run(200)
    alone = World(1, COSTS["memory"], [of_texts])
    alone.run(200)
    model = World(1, lambda n, m: COSTS["memory"](n, m) * (1.5 if m else 1), [of_model], "model")
    model.run(200)
    assert world.run(600) >= 0.9 * max(alone.run(600), model.run(600), 0.98 * 1.09 / COSTS["memory"](1, 0))


def test_beside_a_model_a_text_without_repeats_has_drafts_of_the_model():
    world = World(1, COSTS["memory"], [0.9], "model", beside=True, texts_rate=0.9)
    world.next_token = lambda place: 100 + place
    world.run(100)
    by_model = 0
    for _ in range(50):
        world.step()
        by_model += world.kinds[0].sequence.drafts[:1] == (UNDRAFTED,)
    assert by_model > 40


def test_texts_are_drafted_from_where_drafts_of_a_model_do_not_pay():
    """Each of its drafts takes as long as a thousand steps, which is measured once; then it rests."""
    world = World(1, COSTS["memory"], [0.9], "model", beside=True, texts_rate=0.9)
    for _ in range(2):
        world.step()
    for _ in range(2):
        world.speculation._controller.costs.observe(1, 1, 10.0)
    assert world.run(300) > 4 / COSTS["memory"](1, 0)


def test_a_named_drafter_drafts_in_every_step():
    world = World(3, COSTS["arithmetic"], [0.0] * 3, speculation="suffix")
    world.step()
    assert [len(kind.sequence.drafts) for kind in world.kinds] == [DRAFTS_OF_MANY] * 3


@pytest.mark.parametrize(("num_sequences", "want"), [(1, 30), (2, 60), (3, 40)])
def test_one_or_two_sequences_have_long_drafts_where_these_pay(num_sequences, want):
    world = World(num_sequences, COSTS["memory"], [0.999] * num_sequences)
    world.run(200)
    given = []
    for _ in range(20):
        world.step()
        given.append(sum(len(kind.sequence.drafts) for kind in world.kinds))
    assert max(given) == want


@pytest.mark.parametrize(("step_s", "follows"), [(COSTS["memory"], True), (lambda n, m: 0.001 * (n + 1.2 * m), False)])
def test_a_draft_model_reads_prompts_unless_its_drafts_would_not_pay(step_s, follows):
    world = World(16, step_s, [0.9] * 16, speculation="model")
    world.speculation.draft([], 512, world.pool)
    assert world.speculation.drafter_follows
    world.run(120)
    assert world.speculation.drafter_follows is follows
    assert world.speculation.state.drafter == "model"


def test_state_says_that_no_draft_would_pay_until_one_does():
    world = World(16, COSTS["arithmetic"], [0.9] * 16)
    assert world.speculation.state.why == ""
    world.run(120)
    assert world.speculation.state.why.startswith("by what steps were measured")
    world.step_s = COSTS["memory"]
    world.run(600)  # the rests up to the longest
    assert world.speculation.state.why == ""


@pytest.mark.parametrize(
    ("speculation", "cost", "rate", "want"),
    [
        ("suffix", "memory", 0.0, (False, True, False)),
        ("auto", "arithmetic", 0.0, (True, False, False)),
        ("model", "memory", 0.9, (False, False, True)),
    ],
)
def test_state_counts_what_drafted_for_steps(speculation, cost, rate, want):
    """Of most of them; with a controller a few steps are always without."""
    world = World(1, COSTS[cost], [rate], speculation=speculation)
    world.run(300)
    state = world.speculation.state
    steps = (state.undrafted_steps, state.text_steps, state.model_steps)
    assert sum(steps) == 300
    assert tuple(count > 200 for count in steps) == want


def test_drafts_that_a_model_did_not_make_teach_nothing_and_their_step_costs_what_others_do_not():
    world = World(1, COSTS["memory"], [1.0], speculation="model")
    world.run(10)
    sequence, before = world.kinds[0].sequence, world.speculation.state
    world.speculation.draft(world.kinds, 512, world.pool)
    drafts = len(sequence.drafts)
    assert drafts > 0
    chunk = LaunchedChunk(sequence, sequence.computed, sequence.computed + 1, True, False, False, sequence.drafts)
    cost_s = world.speculation._controller.costs.seconds(1, 0)
    results = StepResults(step=1, sampled=(SampledTokens(0, (1,), undrafted=drafts),))
    world.speculation.collected([chunk], results, 100.0)
    assert world.speculation.state == before
    assert world.speculation._controller.costs.seconds(1, 0) == cost_s


def test_drafts_of_which_a_model_made_some_count_as_the_rest_being_wrong():
    """As of a model of another vocabulary, whose text had fewer tokens of the model. The step cost what it did."""
    world = World(1, COSTS["memory"], [1.0], speculation="model")
    world.run(10)
    sequence = world.kinds[0].sequence
    world.speculation.draft(world.kinds, 512, world.pool)
    drafts, rates = len(sequence.drafts), sequence.speculated.rates
    assert drafts > 3
    place = class_of(sequence.speculated.draft)
    before, cost_s = rates.of(place), world.speculation._controller.costs.seconds(1, drafts)
    chunk = LaunchedChunk(sequence, sequence.computed, sequence.computed + 1, True, False, False, sequence.drafts)
    results = StepResults(step=1, sampled=(SampledTokens(0, (1, 1), undrafted=drafts - 1, accepted=1),))
    for _ in range(2):
        world.speculation.collected([chunk], results, 1.5 * cost_s)
    assert rates.of(place) < before
    assert world.speculation._controller.costs.seconds(1, drafts) > cost_s


def test_a_step_that_computes_a_prompt_has_no_drafts():
    world = World(2, COSTS["memory"], [1.0] * 2, speculation="suffix")
    world.kinds[1].sequence.tokens.extend([1] * 16)
    world.speculation.draft(world.kinds, 512, world.pool)
    assert [kind.sequence.drafts for kind in world.kinds] == [(), ()]


@pytest.mark.parametrize(("budget", "want"), [(512, DRAFTS_OF_MANY), (20, 3), (17, 0), (10, 0)])
def test_tokens_that_a_grammar_forced_keep_no_other_request_from_drafts(budget, want):
    """They come first: drafts have what is left of the step's tokens."""
    world = World(2, COSTS["memory"], [1.0] * 2, speculation="suffix")
    world.kinds[1].sequence.tokens.extend([1] * 15)
    world.speculation.draft(world.kinds, budget, world.pool)
    assert [len(kind.sequence.drafts) for kind in world.kinds] == [want, 0]


@pytest.mark.parametrize(("check", "want"), [("", DRAFTS_OF_MANY), ("{}", 0)])
def test_a_request_whose_grammar_is_checked_has_no_drafts_and_keeps_no_other_from_them(check, want):
    world = World(2, COSTS["memory"], [1.0] * 2, speculation="suffix")
    guided = request("g", [1, 2], grammar=Grammar(kind="json_object", check=check))
    world.kinds[1].request.request = guided
    world.speculation.draft(world.kinds, 512, world.pool)
    assert [len(kind.sequence.drafts) for kind in world.kinds] == [DRAFTS_OF_MANY, want]


def test_a_request_whose_mask_was_late_has_no_drafts_in_the_next_step():
    world = World(2, COSTS["memory"], [1.0] * 2, speculation="suffix")
    world.kinds[0].sequence.deferred = True
    world.speculation.draft(world.kinds, 512, world.pool)
    assert [len(kind.sequence.drafts) for kind in world.kinds] == [0, DRAFTS_OF_MANY]


def test_drafts_take_no_block_that_is_not_there():
    world = World(1, COSTS["memory"], [1.0], speculation="suffix")
    kind = world.kinds[0]
    kind.sequence.blocks = BlockTables(LIMITS.attentions, 16)
    world.pool.take(4094)
    world.speculation.draft([kind], 512, world.pool)
    assert len(kind.sequence.drafts) == DRAFTS_OF_MANY
    world.pool.take(1)
    world.speculation.draft([kind], 512, world.pool)
    assert kind.sequence.drafts == ()
