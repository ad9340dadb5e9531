"""Sizes of published heads, by the files on the hub; of what `kvasir plan` counts tests compare with loaded heads."""

import pytest

from kvasir_api import draft_head_shape, forecast

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "draft_vocab_size": 32000,
    "max_position_embeddings": 2048,
    "torch_dtype": "float16",
}


def test_a_head_of_eagle_3_is_known_by_its_vocabulary_or_its_name() -> None:
    shape = draft_head_shape.of_eagle3(LLAMA_8B)
    assert shape is not None
    layer = 2 * 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
    tables = 128256 * 4096 + 32000 * 4096
    assert shape.parameters == pytest.approx(layer + 3 * 4096**2 + tables, rel=1e-4)
    assert shape.layers == 1
    plain = {name: value for name, value in LLAMA_8B.items() if name != "draft_vocab_size"}
    assert draft_head_shape.of_eagle3(plain) is None
    assert draft_head_shape.of_eagle3(plain | {"architectures": ["LlamaForCausalLMEagle3"]}) is not None


@pytest.mark.parametrize("architectures", [5, "LlamaForCausalLM", [5], {"Model": 1}, True])
def test_architectures_that_are_no_names_are_named(architectures: object) -> None:
    config = LLAMA_8B | {"architectures": architectures}
    for read in (draft_head_shape.of_eagle3, forecast.shape):
        with pytest.raises(ValueError, match="architectures is"):
            read(config)


def test_a_vocabulary_that_is_no_number_is_named() -> None:
    with pytest.raises(ValueError, match="draft_vocab_size is 'all', expected a positive integer"):
        draft_head_shape.of_eagle3(LLAMA_8B | {"draft_vocab_size": "all"})
