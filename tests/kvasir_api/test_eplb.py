"""Copies of experts as options: what vLLM's JSON may say, and what contradicts it."""

import pytest

from kvasir_api import eplb
from kvasir_api.eplb import EplbConfig
from kvasir_api.options import ServeOptions


def test_numbers_that_are_not_given_have_defaults() -> None:
    assert eplb.parsed('{"step_interval": 7}') == EplbConfig(num_redundant_experts=0, window_size=1000, step_interval=7)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "eplbConfig: "),
        ("[]", "eplbConfig: Expected `object`"),
        ('{"window": 3}', "eplbConfig: Object contains unknown field `window`"),
        ('{"window_size": 0}', r"eplbConfig: Expected `int` >= 1 - at `\$\.window_size`"),
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
        ({"enable_eplb": False}, "eplbConfig needs enableEplb"),
        ({"eplb_config": '{"num_redundant_experts": 3}'}, "num_redundant_experts 3 cannot be divided among 2 ranks"),
    ],
)
def test_options_that_contradict_copies_are_refused(given: dict[str, object], why: str) -> None:
    fields = {"tensor_parallel_size": 2, "enable_expert_parallel": True, "enable_eplb": True, "eplb_config": "{}"}
    assert ServeOptions.model_validate({"model": "m", **fields}).enable_eplb
    with pytest.raises(ValueError, match=why):
        ServeOptions.model_validate({"model": "m", **fields, **given})
