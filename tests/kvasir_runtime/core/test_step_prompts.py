"""Blocks are held for what a prompt computes in a step, so that none is preempted for what would be given back."""

import pytest

from fakes.model import FakeModel
from fakes.runner import FakeRunner
from fakes.serving import request, serving
from kvasir_api.cache_groups import LayerAttention
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.step_prompts import expected_shares, lacking

NO_EOS = FakeModel(table=tuple(range(1, 61)))
WINDOW = 128
BUDGET = 128


def windowed(depth, num_blocks):
    """Blocks of 4 tokens; a prompt that is computed whole steps at a time holds up to 65."""
    attentions = (LayerAttention("window", WINDOW),)
    runner = FakeRunner(model=NO_EOS, max_model_len=2048, attentions=attentions)
    limits = {"num_blocks": num_blocks, "max_batch_tokens": BUDGET, "attentions": attentions}
    return serving(depth=depth, runner=runner, **limits)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_blocks", [120, 150, 180, 240])
def test_prompts_that_pass_one_another_preempt_none_of_them(depth, num_blocks):
    """Each one is shorter than those before it, and all of them share the steps."""
    served = windowed(depth, num_blocks)
    lengths = [1000 - 110 * number for number in range(8)]
    served.submit(*(request(str(number), [number + 1] * count) for number, count in enumerate(lengths)))
    served.finish()
    computed = sum(chunk.num_tokens for plan in served.plans for chunk in plan.chunks)
    assert served.scheduler.report(RuntimeState()).totals.preemptions == 0
    assert computed == sum(lengths) + 8 * 7  # of 8 tokens of an answer the last one is not computed


def test_what_a_step_is_expected_to_give_is_what_it_gives():
    served = windowed(1, 240)
    served.submit(request("decodes", [1] * 4, max_tokens=100), request("long", [2] * 900), request("short", [3] * 300))
    for _ in range(2):  # all of them are admitted
        served.step()
    for _ in range(3):
        running = list(served.scheduler._running.values())
        lacks = {kind.request.request_id: lacking(kind) for kind in running}
        expected = expected_shares(running, BUDGET)
        served.step()
        computed = {name: lacks[name] - lacking(served.scheduler._requests[name]) for name in expected}
        assert expected == computed
        assert expected == {"long": 64, "short": 63}


def test_the_first_prompt_has_a_token_where_decoding_takes_the_step():
    served = windowed(1, 240)
    served.submit(request("long", [2] * 900), request("decodes", [1] * 4, max_tokens=100))
    served.step()
    running = list(served.scheduler._running.values())
    assert expected_shares(running, 1) == {"long": 1}
    assert expected_shares(running[1:], 1) == {}
