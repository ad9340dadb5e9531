"""Sequences of a model with a state that have drafts in a step: as many as there is memory for copies of states."""

import pytest

from fakes.model import FakeModel
from fakes.runner import FakeRunner
from fakes.serving import request, serving
from kvasir_api import state_copies
from kvasir_api.cache_groups import FULL, LayerAttention

STATE = LayerAttention("state")
MIB = 1 << 20


@pytest.mark.parametrize(
    ("attentions", "block_bytes", "rows", "num_bytes"),
    [
        ((FULL, STATE), 0, 8, 0),
        ((FULL, STATE), MIB, 8, 8 * MIB),
        ((FULL, STATE, STATE), 20 * MIB, 6, 240 * MIB),
        ((FULL, *[STATE] * 9), 17 * MIB, 1, 153 * MIB),
        ((STATE,), 300 * MIB, 1, 300 * MIB),
        ((FULL,), MIB, 8, 0),
    ],
)
def test_copies_take_no_more_than_a_bound_or_one_sequence(attentions, block_bytes, rows, num_bytes):
    assert state_copies.num_rows(attentions, block_bytes) == rows
    assert state_copies.num_bytes(attentions, block_bytes) == num_bytes


@pytest.mark.parametrize(("attention", "most"), [(STATE, 2), (FULL, 5)])
def test_so_many_sequences_have_drafts_in_a_step(attention, most):
    limits = {"attentions": (attention,), "block_size": 64, "num_blocks": 256}
    runner = FakeRunner(model=FakeModel(table=(5,)), **limits)
    served = serving(runner=runner, speculation="suffix", block_bytes=128 * MIB, **limits)
    served.submit(*[request(str(number), [1, 2, number], max_tokens=40) for number in range(5)])
    served.finish()
    assert max(sum(bool(chunk.drafts) for chunk in plan.chunks) for plan in served.plans) == most
    assert all(answer.tokens == [5] * 40 for answer in served.answers.values())
