"""Requests that another engine began: what is left of the answer is what the first engine would have given."""

import msgspec
import pytest

from fakes.model import FakeModel
from fakes.runner import FakeRunner
from fakes.serving import request, serving
from kvasir_api.state import RuntimeState
from kvasir_runtime.wire import BeamSearchConfig, PoolingConfig

MODEL = FakeModel(table=tuple(range(61)))
PROMPT = (5, 6, 7, 8, 9)


def answer(made, depth=1, **limits):
    served = serving(depth, FakeRunner(model=MODEL), **limits)
    served.submit(made)
    served.finish()
    return served.answers[made.request_id]


def resumed(made, generated):
    return msgspec.structs.replace(made, generated=tuple(generated))


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(
    "sampling",
    [
        {"max_tokens": 12},
        {"max_tokens": 12, "temperature": 1.0, "seed": 3},
        {"max_tokens": 30, "min_tokens": 9, "stop_token_ids": (11, 12, 13, 14, 15, 16, 17, 18)},
        {"max_tokens": 200, "ignore_eos": True},
    ],
)
def test_every_cut_of_an_answer_goes_on_as_the_whole_one(sampling, depth):
    made = request("a", PROMPT, **sampling)
    whole = answer(made, depth, max_model_len=40)
    assert len(whole.tokens) > 4
    for cut in range(1, len(whole.tokens)):
        rest = answer(resumed(made, whole.tokens[:cut]), depth, max_model_len=40)
        assert (rest.tokens, rest.reason) == (whole.tokens[cut:], whole.reason)
        assert rest.stop_token_id == whole.stop_token_id


def test_one_that_is_preempted_goes_on_all_the_same():
    whole = [answer(request(name, prompt, max_tokens=14)) for name, prompt in (("a", PROMPT), ("b", (4, 5, 6)))]
    served = serving(2, FakeRunner(model=MODEL), num_blocks=6, block_size=4, max_model_len=24)
    served.submit(
        resumed(request("a", PROMPT, max_tokens=14), whole[0].tokens[:4]),
        resumed(request("b", (4, 5, 6), max_tokens=14), whole[1].tokens[:3]),
    )
    served.finish()
    assert served.scheduler.report(RuntimeState()).totals.preemptions
    assert [served.answers["a"].tokens, served.answers["b"].tokens] == [whole[0].tokens[4:], whole[1].tokens[3:]]


def test_only_new_tokens_are_counted_and_reported():
    made = request("a", PROMPT, max_tokens=12, ignore_eos=True)
    whole = answer(made)
    served = serving(1, FakeRunner(model=MODEL))
    served.submit(resumed(made, whole.tokens[:5]))
    served.step()
    state = served.scheduler.report(RuntimeState())
    assert (state.remaining_tokens, state.expected_tokens) == (6, 6)
    served.finish()
    totals = served.scheduler.report(RuntimeState()).totals
    assert (totals.generation_tokens, totals.prompt_tokens, totals.uncached_prompt_tokens) == (7, 5, 10)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"sampling": {"max_tokens": 3}}, "has 3 tokens already"),
        ({"sampling": {"max_tokens": 30}, "max_model_len": 8}, "has 3 tokens already"),
        ({"sampling": {"prompt_logprobs": 0}}, "only a sampled answer"),
        ({"pooling": PoolingConfig(kind="last")}, "only a sampled answer"),
        ({"beam": BeamSearchConfig(width=2, answers=("a", "b"))}, "only a sampled answer"),
    ],
)
def test_what_cannot_go_on_is_refused(changed, says):
    made = resumed(request("a", PROMPT, **changed.pop("sampling", {})), (1, 2, 3))
    limits = {name: changed.pop(name) for name in ("max_model_len",) if name in changed}
    refused = answer(msgspec.structs.replace(made, **changed), **limits)
    assert refused.reason == "error"
    assert says in refused.message
