"""Which rotary embedding the many spellings of a config ask for."""

import json
import math
import re
from typing import Any

import pytest
import torch

from fakes.checkpoints import Shape, config_json
from fakes.family_configs import MODELS, SIZES
from fakes.mixture_configs import LONGROPE_OF_PHIMOE
from kvasir_api import chatglm as chatglm_fields
from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers import rotary
from kvasir_runtime.layers.spec import RopeSpec
from kvasir_runtime.models import config as configs
from kvasir_runtime.models import registry
from kvasir_runtime.models.rope import rope_spec

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
LONG = {"type": "su", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}


def spec_of(changes: dict[str, Any], tmp_path: Any) -> RopeSpec:
    (tmp_path / "config.json").write_text(json.dumps(config_json(Shape()) | changes))
    return rope_spec(configs.read_config(tmp_path))


@pytest.mark.parametrize(
    ("changes", "theta"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "rope_scaling": YARN}, 5e5),
        ({"rope_parameters": {"rope_type": "default"}, "rope_scaling": YARN | {"rope_theta": 3e5}}, 3e5),
        ({"rope_theta": 2e5, "rope_scaling": YARN, "rope_parameters": None}, 2e5),
    ],
)
def test_rope_scaling_wins_and_the_base_comes_from_either(tmp_path: Any, changes: dict[str, Any], theta: float) -> None:
    found = spec_of(changes, tmp_path)
    assert (found.kind, found.factor, found.original_max_position, found.theta) == ("yarn", 4.0, 1024, theta)


@pytest.mark.parametrize(
    ("changes", "original", "factor"),
    [
        ({"rope_scaling": LONG, "original_max_position_embeddings": 512}, 512, 8.0),
        ({"rope_scaling": LONG | {"original_max_position_embeddings": 1024}}, 1024, 4.0),
        ({"rope_scaling": LONG | {"factor": 2.0}, "original_max_position_embeddings": 512}, 512, 2.0),
    ],
)
def test_longrope_stretches_from_the_original_positions(
    tmp_path: Any, changes: dict[str, Any], original: int, factor: float
) -> None:
    found = spec_of(changes, tmp_path)
    assert (found.kind, found.original_max_position, found.factor) == ("longrope", original, factor)
    assert found.attention_factor == pytest.approx(math.sqrt(1 + math.log(factor) / math.log(original)))
    assert (found.factors, found.short_factors) == ((4.0,) * 8, (1.0,) * 8)


@pytest.mark.parametrize(
    ("changes", "rotary_dim"),
    [
        ({"partial_rotary_factor": 0.5}, 8),
        ({"partial_rotary_factor": 1.0}, 0),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}, 4),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}, "rope_scaling": YARN}, 4),
        (
            {"rope_parameters": {"partial_rotary_factor": 0.25}, "rope_scaling": YARN | {"partial_rotary_factor": 0.5}},
            8,
        ),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}, "partial_rotary_factor": 0.5}, 4),
    ],
)
def test_partial_rotary(tmp_path: Any, changes: dict[str, Any], rotary_dim: int) -> None:
    assert spec_of(changes, tmp_path).rotary_dim == rotary_dim


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rope_scaling": {"rope_type": "spiral"}},
            "rope type spiral is not supported; expected one of default, dynamic",
        ),
        ({"rope_scaling": {"type": "linear"}}, "rope type linear needs a factor"),
        ({"rope_scaling": {"type": "dynamic"}}, "rope type dynamic needs a factor"),
        ({"rope_scaling": LONG | {"long_factor": [1.0]}}, "1 rotary factors .long_factor. for 16 dimensions"),
        ({"rope_scaling": {"type": "longrope"}}, "0 rotary factors"),
        ({"partial_rotary_factor": 0.2}, "partial_rotary_factor gives 3 of 16 dimensions"),
        ({"partial_rotary_factor": 2.0}, "partial_rotary_factor gives 32 of 16 dimensions"),
    ],
)
def test_what_cannot_be_computed_is_named(tmp_path: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        spec_of(changes, tmp_path)


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_phi_moe_takes_its_scale_from_either_name(tmp_path: Any, name: str) -> None:
    made = SIZES | MODELS["phi3.5-moe"].config | {"architectures": ["PhiMoEForCausalLM"], "model_type": "phimoe"}
    made = {field: value for field, value in made.items() if not field.startswith("rope_")}
    (tmp_path / "config.json").write_text(json.dumps(made | {name: LONGROPE_OF_PHIMOE}))
    config, family = registry.read(tmp_path)
    assert family.spec(config).rope.attention_factor == LONGROPE_OF_PHIMOE["long_mscale"]


def chatglm(folder: Any, changes: dict[str, Any], overrides: str = "") -> RopeSpec:
    made = MODELS["chatglm"].config | {"architectures": ["ChatGLMModel"], "model_type": "chatglm"} | changes
    made = {field: value for field, value in made.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(made))
    config, family = registry.read(folder, overrides)
    return family.spec(config).rope


def angles_of_chatglm(position: int, ratio: float, *, divides: bool) -> list[float]:
    """As the model's own code has them, of the 12 dimensions that turn."""
    base = 10_000 if divides else 10_000 * ratio
    return [position / (ratio if divides else 1) / base ** (pair / 12) for pair in range(0, 12, 2)]


@pytest.mark.parametrize(
    ("changes", "overrides", "divides"),
    [
        ({"_name_or_path": "THUDM/chatglm2-6b-32k"}, "", True),
        ({"_name_or_path": "/models/ChatGLM2-6B-32K-tuned"}, "", True),
        (
            {"_name_or_path": "./out", "auto_map": {"AutoModel": "THUDM/chatglm2-6b-32k--modeling_chatglm.X"}},
            "",
            True,
        ),
        ({"_name_or_path": "THUDM/chatglm3-6b-32k"}, "", False),
        ({"_name_or_path": "THUDM/glm-4-9b-chat", "padded_vocab_size": 151_552}, "", False),
        ({}, '{"rope_scaling": {"rope_type": "linear", "factor": 16.0}}', True),
        ({}, '{"rope_theta": 160000.0}', False),
    ],
)
def test_a_ratio_of_chatglm_2_divides_positions(
    tmp_path: Any, changes: dict[str, Any], overrides: str, *, divides: bool
) -> None:
    rope = chatglm(tmp_path, {"rope_ratio": 16, "padded_vocab_size": 65_024} | changes, overrides)
    cos, sin = rotary.tables(rope, 24, 300, torch.float64)
    found = torch.atan2(sin[299], cos[299])[12:]  # sin is negative in the first half
    turned = torch.tensor(angles_of_chatglm(299, 16, divides=divides), dtype=torch.float64)
    wanted = torch.nn.functional.pad(torch.atan2(turned.sin(), turned.cos()), (0, 6))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


def test_a_rotary_field_of_chatglm_that_is_null_is_none() -> None:
    document = {"rope_ratio": 16, "_name_or_path": "chatglm2-6b-32k", "rope_theta": None, "rope_scaling": None}
    read = chatglm_fields.usual(document)
    assert (read["rope_theta"], read["rope_scaling"]) == (10_000, {"rope_type": "linear", "factor": 16})


def test_a_ratio_of_chatglm_that_could_be_either_is_refused_with_what_settles_it(tmp_path: Any) -> None:
    both = {"_name_or_path": "/models/chatglm2-old/chatglm3-6b-32k"}
    for changes in ({}, {"_name_or_path": "./out"}, {"auto_map": {"AutoModel": "modeling_chatglm.X"}}, both):
        with pytest.raises(ModelError, match="rope_ratio 16 multiplies the base in ChatGLM 3 and divides") as refused:
            chatglm(tmp_path, {"rope_ratio": 16, "padded_vocab_size": 65_024} | changes)
        for overrides in re.findall(r"'(.*?)'", str(refused.value))[:2]:
            chatglm(tmp_path, {"rope_ratio": 16, "padded_vocab_size": 65_024} | changes, overrides)
    assert chatglm(tmp_path, {"rope_ratio": None, "padded_vocab_size": 65_024}).theta == 10_000


@pytest.mark.parametrize("ratio", [10**400, "500", [1], float("nan"), -1, 0])
def test_a_ratio_of_chatglm_that_is_none_is_refused(tmp_path: Any, ratio: object) -> None:
    with pytest.raises(ModelError, match="rope_ratio"):
        chatglm(tmp_path, {"rope_ratio": ratio})
