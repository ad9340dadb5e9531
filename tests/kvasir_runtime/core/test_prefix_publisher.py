"""What was published is found by its tenant only, and forgotten for one tenant alone; states where they are of use."""

import pytest

from fakes.model import FakeModel
from fakes.runner import FakeRunner
from fakes.serving import request, serving
from kvasir_api import hashes
from kvasir_api.cache_groups import FULL, LayerAttention
from kvasir_api.state import RuntimeState
from kvasir_runtime.wire import Grammar


def test_a_tenants_blocks_are_forgotten_and_the_others_stay():
    served = serving(runner=FakeRunner(model=FakeModel(table=tuple(range(1, 61)))))
    for salt in (b"a" * 32, b"b" * 32):
        served.submit(request(salt.hex(), range(1, 13), max_tokens=1, salt=salt))
        served.finish()
    before = served.scheduler.report(RuntimeState()).kv
    served.submit(request("runs", range(1, 13), max_tokens=4, salt=b"a" * 32))
    served.step()
    served.scheduler.forget(hashes.owner_of_salt(b"a" * 32))
    served.finish()
    after = served.scheduler.report(RuntimeState()).kv
    assert (before.cached_tokens, after.pinned_tokens, after.free_tokens) == (24, 0, 256 - after.cached_tokens)
    for name, salt, cached in (("x", b"a" * 32, 0), ("y", b"b" * 32, 8)):
        served.submit(request(name, range(1, 13), max_tokens=1, salt=salt))
        served.finish()
        assert served.answers[name].cached_tokens == cached


ENDLESS = FakeModel(table=tuple(range(1, 61)), loses=False)
HYBRID = (FULL, LayerAttention("state"))


def hybrid(depth=1, **limits):
    return serving(depth, FakeRunner(model=ENDLESS, attentions=HYBRID), attentions=HYBRID, **limits)


@pytest.mark.parametrize("grammar", [None, Grammar(kind="json_object")])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [5, 32])
def test_a_chat_goes_on_from_the_last_full_block_of_its_answer(grammar, depth, budget):
    """The last token of an answer is never computed, nor are those that a grammar forces at its end."""
    most_forced = 0 if grammar is None else 3
    served, said = hybrid(depth, max_batch_tokens=budget), list(range(1, 20))
    for turn in range(3):
        name, known = f"turn {turn}", len(said) - 3 if turn else 0
        served.submit(request(name, said, max_tokens=7 + turn, ignore_eos=True, grammar=grammar))
        served.finish()
        answer = served.answers[name]
        assert max(0, known - 1 - most_forced) // 4 * 4 <= answer.cached_tokens <= max(0, known - 1) // 4 * 4
        said += [*answer.tokens, 61, 62, 63]


@pytest.mark.parametrize("grammar", [None, Grammar(kind="json_object")])
def test_the_state_of_a_prompt_that_ends_with_a_block_is_kept(grammar):
    served = hybrid()
    for tail, cached in ((40, 0), (41, 20)):
        served.submit(request(f"r{tail}", [*range(1, 21), *[tail] * 5 * (tail > 40)], max_tokens=1, grammar=grammar))
        served.finish()
        assert served.answers[f"r{tail}"].cached_tokens == cached


@pytest.mark.parametrize("depth", [1, 2])
def test_the_second_prompt_keeps_a_state_where_it_leaves_the_first(depth):
    served, shared = hybrid(depth), list(range(1, 27))
    for tail, cached in ((40, 0), (41, 0), (42, 24), (43, 24)):
        served.submit(request(f"r{tail}", [*shared, *[tail] * 30]))
        served.finish()
        assert served.answers[f"r{tail}"].cached_tokens == cached


def test_of_a_burst_behind_one_prompt_two_compute_it():
    served, shared = hybrid(max_batch_tokens=64), list(range(1, 27))
    served.submit(*(request(f"r{tail}", [*shared, *[tail] * 10]) for tail in range(40, 46)))
    served.finish()
    assert [answer.cached_tokens for answer in served.answers.values()] == [0, 0, 24, 24, 24, 24]


def test_one_large_block_is_worth_waiting_for():
    served = serving(runner=FakeRunner(model=ENDLESS), block_size=64, num_blocks=16)
    served.submit(*(request(f"r{tail}", [*range(1, 65), *[tail] * 9]) for tail in range(3)))
    served.finish()
    assert [answer.cached_tokens for answer in served.answers.values()] == [0, 64, 64]


def test_no_chunk_ends_at_a_border_for_layers_that_keep_everything():
    served = serving(runner=FakeRunner(model=ENDLESS))
    for tail in (40, 41):
        served.submit(request(f"r{tail}", [*range(1, 9), *[tail] * 18], max_tokens=1))
        served.finish()
    assert [[chunk.num_tokens for chunk in plan.chunks] for plan in served.plans] == [[26], [18]]
