"""Fields under the names that most families have, whatever a family calls them."""

from typing import Any

import pytest

from kvasir_api import forecast, hf_config

FULL, SLIDING = "full_attention", "sliding_attention"


def test_sizes_of_a_family_that_is_not_known_are_found_under_other_names() -> None:
    gpt2 = {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
    shape = forecast.shape(gpt2 | {"n_inner": None, "tie_word_embeddings": True})
    assert (shape.hidden, shape.layers, shape.heads, shape.head_dim) == (768, 12, 12, 64)
    assert (shape.intermediate, shape.max_positions) == (3072, 1024)
    own = {"model_type": "mine", "hidden_size": 64, "d_model": 32}
    assert hf_config.flattened(own)["hidden_size"] == 64


def test_distilberts_sizes_have_the_usual_names() -> None:
    document = {"model_type": "distilbert", "dim": 768, "hidden_dim": 3072, "n_layers": 6, "n_heads": 12}
    found = hf_config.flattened(document)
    assert (found["hidden_size"], found["intermediate_size"]) == (768, 3072)
    assert (found["num_hidden_layers"], found["num_attention_heads"], found["hidden_act"]) == (6, 12, "gelu")


@pytest.mark.parametrize(
    ("document", "want"),
    [
        (
            {"model_type": "exaone4", "num_hidden_layers": 5, "sliding_window_pattern": "LLG"},
            {"layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL], "sliding_window": 4096},
        ),
        ({"model_type": "exaone4", "num_hidden_layers": 1, "sliding_window_pattern": "", "sliding_window": None}, {}),
        (
            {"model_type": "exaone4", "num_hidden_layers": 2, "sliding_window_pattern": "L", "layer_types": [FULL] * 2},
            {"layer_types": [FULL] * 2},
        ),
        ({"model_type": "smollm3", "num_hidden_layers": 5}, {"no_rope_layers": [1, 1, 1, 0, 1]}),
        ({"model_type": "smollm3", "num_hidden_layers": 2, "no_rope_layers": [0, 1]}, {"no_rope_layers": [0, 1]}),
        (
            {"model_type": "smollm3", "num_hidden_layers": 2, "no_rope_layer_interval": 2, "use_sliding_window": True},
            {"layer_types": [FULL, SLIDING]},
        ),
        (
            {"model_type": "hunyuan_v1_moe", "num_experts": 64, "moe_topk": [8, 8], "intermediate_size": 96},
            {"num_experts": 64, "num_experts_per_tok": 8, "shared_expert_intermediate_size": 96},
        ),
        ({"model_type": "hunyuan_v1_moe", "moe_topk": [8, 4]}, {"num_experts_per_tok": [8, 4]}),
        ({"model_type": "solar_open", "moe_intermediate_size": 32}, {"intermediate_size": 32, "n_shared_experts": 1}),
        (
            {
                "model_type": "ernie4_5_moe",
                "num_hidden_layers": 4,
                "moe_layer_start_index": 1,
                "moe_layer_end_index": 2,
            },
            {"mlp_only_layers": [0, 3], "num_experts": 64, "tie_word_embeddings": True},
        ),
        ({"model_type": "ernie4_5_moe", "num_hidden_layers": 3, "moe_k": 8}, {"mlp_only_layers": [0]}),
        ({"model_type": "ministral3", "rope_theta": 1e4}, {"rope_theta": 1e4, "head_dim": 128}),
        ({"model_type": "apertus", "rope_scaling": {"factor": 8.0}}, {"rope_scaling": {"factor": 8.0}}),
        ({"model_type": "minimax_m2", "rotary_dim": 64}, {"partial_rotary_factor": 0.5, "head_dim": 128}),
        ({"model_type": "minimax_m2", "rotary_dim": 64, "head_dim": 0}, {"head_dim": 0}),
    ],
)
def test_what_newer_families_write_in_their_own_way(document: dict[str, Any], want: dict[str, Any]) -> None:
    found = hf_config.flattened(document)
    assert {name: found[name] for name in want} == want
    assert hf_config.flattened(found) == found
    assert "sliding_window_pattern" not in found
    assert "rope_parameters" not in found


@pytest.mark.parametrize(("family", "kind"), [("ministral3", "yarn"), ("apertus", "llama3")])
def test_a_rotary_embedding_that_no_config_names_is_the_familys_own(family: str, kind: str) -> None:
    assert hf_config.flattened({"model_type": family})["rope_parameters"]["rope_type"] == kind


@pytest.mark.parametrize(
    "family", ["exaone4", "smollm3", "hunyuan_v1_moe", "solar_open", "minimax_m2", "ernie4_5_moe", "falcon_h1"]
)
@pytest.mark.parametrize("value", [None, -1, 0, 10**30, 1.5, "", "x", [], [None], [[1]], {}, True])
def test_fields_of_any_kind_are_left_to_who_reads_them(family: str, value: object) -> None:
    fields = (
        *("num_hidden_layers", "sliding_window_pattern", "layer_types", "no_rope_layers", "no_rope_layer_interval"),
        *("use_sliding_window", "moe_topk", "num_experts", "intermediate_size", "rotary_dim", "head_dim"),
        *("moe_layer_start_index", "moe_layer_end_index", "rope_parameters"),
    )
    for field in fields:
        hf_config.flattened({"model_type": family, "num_hidden_layers": 4, field: value})
    hf_config.flattened({"model_type": family} | dict.fromkeys(fields, value))
