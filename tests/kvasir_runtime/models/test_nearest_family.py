"""An architecture that no family has is refused with the family that is most like it, by its name or its fields."""

import time
from typing import Any

import pytest

from kvasir_runtime.models.nearest_family import nearest
from kvasir_runtime.models.registry import FAMILIES, undeclared


@pytest.mark.parametrize(
    ("architecture", "document", "want"),
    [
        ("DebertaV2ForSequenceClassification", {"model_type": "deberta-v2"}, ("BertModel", "name")),
        ("OpenLlamaForCausalLM", {}, ("LlamaForCausalLM", "name")),
        ("OursForCausalLM", {"model_type": "qwen4"}, ("Qwen2ForCausalLM", "name")),
        ("OwnModel", {"type_vocab_size": 2, "rope_theta": 500000}, ("NomicBertModel", "fields")),
        ("ElectraModel", {"type_vocab_size": 2}, ("BertModel", "fields")),
        ("T5EncoderModel", {"d_model": 512, "relative_attention_num_buckets": 32}, ("MPNetModel", "fields")),
        ("GPT2LMHeadModel", {"n_embd": 768, "layer_norm_epsilon": 1e-5}, ("Starcoder2ForCausalLM", "fields")),
        ("DbrxForCausalLM", {"d_model": 64, "ffn_config": {"moe_num_experts": 16}}, ("MixtralForCausalLM", "fields")),
        ("Lfm2ForCausalLM", {"hidden_size": 64, "conv_L_cache": 3}, ("BambaForCausalLM", "fields")),
        ("MiniCPMForCausalLM", {"hidden_size": 64, "num_experts": 0}, ("LlamaForCausalLM", "fields")),
    ],
)
def test_the_nearest_is_found_by_name_and_else_by_fields(
    architecture: str, document: dict[str, Any], want: tuple[str, str]
) -> None:
    found = nearest(FAMILIES, architecture, document)
    assert found is not None
    assert (found[0].architecture, found[1]) == want


def test_of_a_config_without_fields_that_are_known_none_is_near() -> None:
    assert nearest(FAMILIES, "JambaForCausalLM", {"vocab_size": 5}) is None


@pytest.mark.parametrize("name", ["x" * 200_000, "Llama" + "xy" * 100_000, "x" * 200_000 + "ForCausalLM"])
def test_a_name_without_end_is_refused_at_once_and_in_a_short_sentence(name: str) -> None:
    began = time.process_time()
    said = undeclared([name], {"model_type": name, "hidden_size": 64})
    assert time.process_time() - began < 1
    assert len(said) < 3000
    assert "the nearest by its" in said
