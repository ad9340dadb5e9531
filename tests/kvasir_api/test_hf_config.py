"""What a config.json means before it is typed: text models inside others, overrides, and the longest sequence."""

import re
from typing import Any

import pytest

from kvasir_api import forecast, hf_config
from kvasir_api.hf_config import SequenceLimits

QWEN25 = {"max_position_embeddings": 32768, "rope_theta": 1e6}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32768, "rope_type": "yarn"}


def test_the_text_models_fields_come_first_and_the_architecture_stays() -> None:
    nested = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "dtype": "bfloat16",
        "hidden_size": 1,
        "text_config": {"architectures": ["MistralForCausalLM"], "hidden_size": 5120, "model_type": "mistral"},
        "vision_config": {"hidden_size": 1024},
    }
    assert hf_config.flattened(nested) == {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "dtype": "bfloat16",
        "hidden_size": 5120,
        "model_type": "mistral",
        "vision_config": {"hidden_size": 1024},
    }
    assert hf_config.flattened(QWEN25) == QWEN25
    assert hf_config.flattened({"text_config": None, "a": 1}) == {"text_config": None, "a": 1}


STATED = {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}


@pytest.mark.parametrize(
    ("document", "beside", "want"),
    [
        ({"a": 1}, {"quantization": STATED}, {"quant_method": "modelopt", **STATED}),
        ({"quantization_config": None}, {"quantization": STATED}, {"quant_method": "modelopt", **STATED}),
        ({"quantization_config": {"quant_method": "fp8"}}, {"quantization": STATED}, {"quant_method": "fp8"}),
        ({"text_config": {"quantization_config": {"bits": 4}}}, {"quantization": STATED}, {"bits": 4}),
        ({"a": 1}, {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}, None),
        ({"a": 1}, {"quantization": 5}, None),
        ({"a": 1}, {}, None),
    ],
)
def test_a_quantization_may_stand_in_a_file_of_its_own(
    document: dict[str, Any], beside: dict[str, Any], want: object
) -> None:
    merged = hf_config.with_quantization(document, beside)
    assert hf_config.flattened(merged).get("quantization_config") == want
    assert merged | {"quantization_config": 0} == document | {"quantization_config": 0}


@pytest.mark.parametrize(
    ("document", "overrides", "want"),
    [
        ({"a": 1, "b": 2}, {"b": 3, "c": 4}, {"a": 1, "b": 3, "c": 4}),
        ({"text_config": {"a": 1}, "b": 2}, {"text_config": {"a": 5}}, {"a": 5, "b": 2}),
        ({"text_config": {"a": 1}}, {"a": 5}, {"a": 5}),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            {"rope_parameters": {"rope_type": "default"}},
            {"rope_parameters": {"rope_type": "default"}},
        ),
        ({"rope_scaling": {"factor": 2.0}}, {"rope_scaling": None}, {"rope_scaling": None}),
    ],
)
def test_overrides_replace_fields(document: dict[str, Any], overrides: dict[str, Any], want: dict[str, Any]) -> None:
    assert hf_config.overridden(document, overrides) == want


@pytest.mark.parametrize(
    ("document", "overrides", "want"),
    [
        ({"is_causal": False}, {}, True),
        ({"is_causal": False, "text_config": {"model_type": "gemma3_text"}}, {}, True),
        ({"text_config": {"model_type": "gemma3_text", "is_causal": False}}, {}, True),
        ({"use_bidirectional_attention": True, "is_causal": True}, {}, True),
        ({"is_causal": False}, {"is_causal": True}, False),
        ({}, {"is_causal": False}, True),
        ({"is_causal": "false"}, {}, None),
        ({}, {}, None),
    ],
)
def test_the_directions_of_attention_have_one_name(
    document: dict[str, Any], overrides: dict[str, Any], want: bool | None
) -> None:
    assert hf_config.overridden(document, overrides).get("use_bidirectional_attention") is want


@pytest.mark.parametrize(("text", "message"), [("{", "not JSON"), ("[1]", "JSON object"), ("4", "JSON object")])
def test_overrides_that_are_no_object_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hf_config.parsed_overrides(text)


@pytest.mark.parametrize(
    ("document", "usual", "most"),
    [
        (QWEN25, 32768, 32768),
        ({}, 2048, 2048),
        (QWEN25 | {"rope_scaling": YARN}, 131072, 131072),
        # Qwen3's card, whose config leaves room for answers
        (QWEN25 | {"max_position_embeddings": 40960, "rope_scaling": YARN}, 131072, 131072),
        # DeepSeek's, whose positions count the factor already
        (
            {
                "max_position_embeddings": 163840,
                "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
            },
            163840,
            163840,
        ),
        (QWEN25 | {"rope_parameters": YARN, "rope_scaling": None}, 131072, 131072),
        (QWEN25 | {"rope_scaling": {"type": "yarn", "factor": 2}}, 65536, 65536),
        (QWEN25 | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 32768, 65536),
        (QWEN25 | {"rope_scaling": {"type": "linear", "factor": 4.0}}, 32768, 131072),
        (QWEN25 | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 32768, 32768),
        ({"max_position_embeddings": 131072, "rope_scaling": {"type": "longrope", "factor": 32.0}}, 131072, 131072),
    ],
)
def test_longest_sequence(document: dict[str, Any], usual: int, most: int) -> None:
    assert hf_config.sequence_limits(document) == SequenceLimits(usual=usual, most=most)


def test_positions_that_are_no_count_are_named() -> None:
    with pytest.raises(ValueError, match="max_position_embeddings is 'many'"):
        hf_config.sequence_limits({"max_position_embeddings": "many"})


@pytest.mark.parametrize("kind", ["yarn", "linear", "dynamic"])
@pytest.mark.parametrize(
    "factor",
    [*(float(each) for each in ("inf", "-inf", "nan", "1e300")), *(pytest.param(10**400, id="integer"), -1, 0)],
)
def test_a_factor_that_no_sequence_is_long_for_is_named(kind: str, factor: float) -> None:
    scaling = {"rope_type": kind, "factor": factor, "original_max_position_embeddings": 4096}
    with pytest.raises(ValueError, match=f"factor of the rotary embedding is {re.escape(str(factor))}, expected more"):
        hf_config.sequence_limits({"max_position_embeddings": 8192, "rope_scaling": scaling})


@pytest.mark.parametrize("field", ["max_position_embeddings", "original_max_position_embeddings"])
def test_positions_that_no_sequence_has_are_named(field: str) -> None:
    document = {"max_position_embeddings": 8192, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    with pytest.raises(ValueError, match=f"config.json: {field} is 10{{400}}, expected at most"):
        hf_config.sequence_limits(document | {field: 10**400})


GEMMA_3_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "eos_token_id": [1, 106],
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152},
}


def test_a_checkpoint_with_images_is_judged_by_its_text_part() -> None:
    """Its config leaves out what the family's code implies.

    Gemma 3 4B has 4,300,079,472 parameters, less 416,866,032 of the tower and 2,950,272 of the projector.
    """
    shape = forecast.shape(GEMMA_3_4B)
    assert (shape.heads, shape.kv_heads, shape.head_dim, shape.max_positions) == (8, 4, 256, 131_072)
    assert shape.parameters == 3_880_263_168
    assert hf_config.flattened(GEMMA_3_4B)["sliding_window"] == 1024
    assert hf_config.text_part(GEMMA_3_4B) == (
        "this is a Gemma 3 checkpoint with images; kvasir serves its text part alone"
    )
    assert hf_config.text_part(QWEN25) == ""


@pytest.mark.parametrize(
    ("document", "usual"),
    [
        ({"model_type": "bert", "max_position_embeddings": 512}, 512),
        ({"model_type": "bert"}, 512),
        ({"model_type": "xlm-roberta", "max_position_embeddings": 8194, "pad_token_id": 1}, 8192),
        ({"model_type": "roberta", "max_position_embeddings": 514}, 512),
        ({"model_type": "mpnet", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "nomic_bert", "n_positions": 8192, "max_trained_positions": 2048}, 2048),
        ({"model_type": "modernbert"}, 8192),
    ],
)
def test_an_encoder_takes_as_many_tokens_as_it_has_positions_behind_padding(
    document: dict[str, Any], usual: int
) -> None:
    assert hf_config.sequence_limits(hf_config.flattened(document)) == SequenceLimits(usual=usual, most=usual)
