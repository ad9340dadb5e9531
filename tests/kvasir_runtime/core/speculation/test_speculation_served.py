"""Drafts in a scheduler that serves: states of layers, prompts beside, rows and blocks, and what is reported."""

import pytest

from fakes.drafter import AlwaysDrafter
from fakes.model import FakeModel
from fakes.runner import FakeRunner
from fakes.serving import Serving, request, serving
from kvasir_api.cache_groups import LayerAttention
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.core.speculation.drafters import Draft


def repeating(speculation: str, **limits) -> Serving:
    """A model that answers the same token for ever."""
    settings = {name: value for name, value in limits.items() if name in FakeRunner.__dataclass_fields__}
    runner = FakeRunner(model=FakeModel(table=(5,)), **settings)
    return serving(runner=runner, speculation=speculation, **limits)


@pytest.mark.parametrize("sampling", [{}, {"min_tokens": 5, "logprobs": 2}])
def test_a_text_that_repeats_itself_has_drafts(sampling):
    served = repeating("suffix")
    served.submit(request("r", [1, 2], max_tokens=30, **sampling))
    served.finish()
    assert served.scheduler.report(RuntimeState()).totals.drafted_tokens > 0


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_drafts_of_a_model_with_a_state_end_before_a_border(prefix_cache):
    """There it is kept; and of the blocks that a chunk goes over, those before its end are not there for a shorter."""
    attentions = (LayerAttention("state"),)
    served = repeating("suffix", attentions=attentions, block_size=16, prefix_cache=prefix_cache)
    served.submit(request("r", [1, 2], max_tokens=60))
    served.finish()
    chunks = [chunk for plan in served.plans for chunk in plan.chunks]
    assert sum(len(chunk.drafts) > 4 for chunk in chunks) > 1
    ends = {chunk.start + chunk.num_tokens for chunk in chunks if chunk.drafts}
    assert not any(end % 16 == 0 for end in ends)
    assert {16, 32, 48} <= {chunk.start + chunk.num_tokens for chunk in chunks if not chunk.drafts}


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("block_size", [1, 2, 4, 16])
def test_a_chunk_over_a_border_has_no_drafts_where_there_are_states(block_size, prefix_cache):
    """The rest of a prompt is one too. Of several blocks a state has the last alone."""
    attentions = (LayerAttention("state"),)
    limits = {"attentions": attentions, "block_size": block_size, "prefix_cache": prefix_cache, "max_batch_tokens": 20}
    served = repeating("suffix", num_blocks=256, **limits)
    served.scheduler = Scheduler(served.scheduler.limits, drafter=WrongAtTheEnd())
    for number, length in enumerate((37, 45)):
        served.submit(request(str(number), [5] * length, max_tokens=40))
        for _ in range(9):
            served.step()
        served.scheduler.inject(str(number), (7,) * 8)
    served.finish()
    drafted = [chunk for plan in served.plans for chunk in plan.chunks if chunk.drafts]
    assert bool(drafted) is (block_size > 2)
    for chunk in drafted:
        assert chunk.start // block_size == (chunk.start + chunk.num_tokens) // block_size


def test_tokens_that_are_injected_end_drafts_that_were_to_follow_those_before():
    """They would make a chunk end at a border with drafts, whose state others were to go on from."""
    attentions = (LayerAttention("state"),)
    served = repeating("suffix", attentions=attentions, block_size=16)
    served.submit(request("r", [5] * 17, max_tokens=40))
    served.step()
    sequence = served.scheduler._requests["r"].sequence
    injected = (7,) * 8
    served.scheduler.inject("r", injected)
    served.step()
    assert served.plans[-1].inserts[0].tokens == injected
    (chunk,) = served.plans[-1].chunks
    assert (chunk.start + chunk.num_tokens, chunk.drafts) == (len(sequence.tokens) - 1, ())
    served.finish()
    asked = [*sequence.tokens, 3]
    served.submit(request("next", asked, max_tokens=3))
    served.finish()
    assert served.answers["next"].cached_tokens == 16 * (len(sequence.tokens) // 16)


def test_behind_a_wrong_draft_what_a_state_has_read_is_computed_again_with_the_next_drafts():
    served = repeating("suffix", attentions=(LayerAttention("state"),), block_size=64)
    served.scheduler = Scheduler(served.scheduler.limits, drafter=WrongAtTheEnd())
    served.submit(request("r", [1, 2], max_tokens=60))
    served.finish()
    chunks = [chunk for plan in served.plans[1:] for chunk in plan.chunks]
    # Each step gives two right drafts and a token. Behind 16 that were computed again there is a step without drafts.
    known = [(chunk.start, chunk.num_tokens - len(chunk.drafts), len(chunk.drafts)) for chunk in chunks[:8]]
    assert known == [(2, 1, 3), (2, 4, 3), (2, 7, 3), (2, 10, 3), (2, 13, 3), (2, 16, 3), (2, 19, 0), (21, 1, 3)]
    assert served.answers["r"].tokens == [5] * 60


class WrongAtTheEnd:
    """Two right drafts and a wrong one."""

    def propose(self, history, most):
        tokens = (5, 5, 7)[:most]
        return Draft(tokens, (1.0,) * len(tokens), 8)


def drafted(plan):
    return [len(chunk.drafts) for chunk in plan.chunks]


def test_a_step_that_admits_a_prompt_has_no_drafts():
    served = repeating("suffix", max_batch_tokens=64)
    served.submit(request("a", [1, 2], max_tokens=100))
    while not any(sum(drafted(plan)) for plan in served.plans):
        served.step()
    served.submit(request("b", range(10, 50)))
    served.step()
    plan = served.plans[-1]
    assert [chunk.num_tokens for chunk in plan.chunks] == [1, 40]
    served.finish()
    assert sum(drafted(served.plans[-1])) > 0


def test_streams_have_drafts_while_requests_wait_for_a_row():
    served = repeating("suffix", max_batch_tokens=4, max_sequences=1)
    served.submit(request("a", [1, 2], max_tokens=60), request("b", [1, 2]))
    while len(served.answers["a"].tokens) < 50:
        served.step()
    assert drafted(served.plans[-1]) == [3]


@pytest.mark.parametrize("num_blocks", [5, 6])
def test_no_request_loses_its_row_for_a_draft(num_blocks):
    """With 5 blocks the last is for the next token of `a`, which has no drafts; those of `b` would end in it."""
    served = repeating("suffix", num_blocks=num_blocks, block_size=16, max_batch_tokens=64)
    served.scheduler = Scheduler(served.scheduler.limits, drafter=AlwaysDrafter())
    served.submit(request("a", range(100, 132), max_tokens=2), request("b", range(28), max_tokens=8))
    served.finish()
    assert served.scheduler.report(RuntimeState()).totals.preemptions == 0
    assert [len(one.tokens) for one in served.answers.values()] == [2, 8]
    assert drafted(served.plans[1]) == [0, 6 if num_blocks == 6 else 0]


def test_state_says_what_was_drafted_and_kept():
    served = repeating("ngram")
    served.submit(request("r", [1, 2], max_tokens=12))
    served.finish()
    said = served.scheduler.report(RuntimeState()).speculation
    assert said.drafter == "ngram"
    assert said.draft_tokens > 0
    assert said.acceptance_fraction == 1
