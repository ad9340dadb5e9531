"""Copies of experts as options: what vLLM's JSON may say, how room is divided, and what contradicts it."""

import pytest

from kvasir_api import eplb
from kvasir_api.eplb import EplbConfig
from kvasir_api.options import ServeOptions


@pytest.mark.parametrize(
    ("text", "ranks", "want"),
    [
        ("", 4, (1, 1, 1, 1)),
        ('{"num_redundant_experts": 8}', 4, (2, 2, 2, 2)),
        ('{"num_redundant_experts": 3}', 2, (1, 2)),
        ('{"num_redundant_experts": 1}', 4, (0, 0, 0, 1)),
    ],
)
def test_room_is_divided_among_ranks(text: str, ranks: int, want: tuple[int, ...]) -> None:
    assert eplb.parsed(text).room(ranks) == want


def test_numbers_that_are_not_given_have_defaults() -> None:
    assert eplb.parsed('{"step_interval": 7}') == EplbConfig(num_redundant_experts=0, window_size=1000, step_interval=7)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "eplbConfig: "),
        ("[]", "eplbConfig: Expected `object`"),
        ('{"window": 3}', "eplbConfig: Object contains unknown field `window`"),
        ('{"window_size": 0}', r"eplbConfig: Expected `int` >= 1 - at `\$\.window_size`"),
        ('{"num_redundant_experts": -1}', "eplbConfig: Expected `int` >= 0"),
    ],
)
def test_a_config_that_says_something_else_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        eplb.parsed(text)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"enable_expert_parallel": False}, "enableEplb needs enableExpertParallel"),
        ({"pipeline_parallel_size": 2}, "enableEplb needs pipelineParallelSize 1"),
        ({"batch_invariant": True}, "enableEplb is not possible with batchInvariant"),
        ({"enable_eplb": False, "eplb_config": "{}"}, "eplbConfig needs enableEplb"),
    ],
)
def test_options_that_contradict_copies_are_refused(given: dict[str, object], why: str) -> None:
    fields = {"model": "m", "tensor_parallel_size": 2, "enable_expert_parallel": True, "enable_eplb": True}
    ServeOptions.model_validate(fields)
    with pytest.raises(ValueError, match=why):
        ServeOptions.model_validate(fields | given)
