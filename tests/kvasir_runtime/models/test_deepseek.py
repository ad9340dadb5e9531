"""Configs of DeepSeek-V2 and GLM-4.7-Flash as specs; their answers are held to transformers in
runner/test_runner_oracle.py and test_registry.py.
"""

import json
from pathlib import Path

import pytest

from fakes import checkpoints, family_configs
from fakes.checkpoints import Shape
from kvasir_api import hf_config
from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.spec import parameter_shapes
from kvasir_runtime.models.config import checked, read_config
from kvasir_runtime.models.registry import family_of


def spec_of(folder, **extra):
    config = checkpoints.config_json(Shape(family="deepseek_v2", extra=extra))
    (folder / "config.json").write_text(json.dumps(config))
    read = read_config(folder)
    return family_of(read).spec(read)


def test_a_token_takes_one_row_for_all_heads(tmp_path):
    spec = spec_of(tmp_path)
    assert spec.kv_bytes_per_token(2) == 2 * (24 + 8) * 2
    assert spec.kv_bytes_per_token(1, 4) == 2 * (24 + 8 + 4)
    assert [attention.kind for attention in spec.attentions] == ["latent", "latent"]


def test_the_first_layers_have_no_experts_and_the_shared_one_no_gate(tmp_path):
    shapes = parameter_shapes(spec_of(tmp_path))
    assert shapes["layers.0.gate_up.weight"] == (2 * 96, 64)
    assert shapes["layers.1.shared.gate_up.weight"] == (2 * 2 * 32, 64)
    assert "layers.1.shared_gate" not in shapes


def test_scores_are_scaled_as_yarn_says(tmp_path):
    plain = spec_of(tmp_path).attention_scale
    assert plain == pytest.approx((12 + 8) ** -0.5)
    yarn = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 128, "mscale": 1, "mscale_all_dim": 1}
    assert spec_of(tmp_path, rope_scaling=yarn).attention_scale == pytest.approx(plain * (0.1 * 3.6888795 + 1) ** 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topk_method": "random"}, "topk_method random of DeepSeek-V2 is not supported; expected greedy or group"),
        ({"topk_method": "group_limited_greedy", "n_group": 3}, "cannot be chosen from topk_group 1 of n_group 3"),
        ({"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 5}, "topk_group 5 of n_group 4"),
        (
            {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "n_group": 8, "topk_group": 4},
            "topk_group 4 of n_group 8",
        ),
        ({"scoring_func": "sigmoid"}, "scoring_func sigmoid .* expected softmax"),
        ({"norm_topk_prob": True}, "norm_topk_prob True"),
        ({"moe_layer_freq": 2}, "moe_layer_freq 2"),
        ({"kv_lora_rank": None}, "needs kv_lora_rank, qk_nope_head_dim and v_head_dim"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim 7 is odd"),
        ({"moe_intermediate_size": None}, "needs moe_intermediate_size"),
        ({"n_routed_experts": None}, "needs num_experts"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path, changes, message):
    with pytest.raises(ModelError, match=message):
        spec_of(tmp_path, **changes)


@pytest.mark.parametrize(
    ("named", "first"),
    [({}, 1), ({"mlp_layer_types": ["dense", "dense", "sparse"]}, 2), ({"first_k_dense_replace": 0}, 0)],
)
def test_layers_of_glm_flash_without_experts_come_first(named, first):
    """A config of before it had a list of layers names their number, as those of DeepSeek do."""
    own = family_configs.MODELS["glm-flash"]
    document = family_configs.SIZES | own.config | {"model_type": own.family, "architectures": [own.architecture]}
    del document["mlp_layer_types"]
    config = checked(Path("config.json"), hf_config.flattened(document | named))
    assert family_of(config).spec(config).experts.layers == (False,) * first + (True,) * (3 - first)
