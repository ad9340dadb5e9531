"""Biases that a config declares: the forecast counts those that a decoder has, of every family."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fakes import family_checkpoints
from fakes.family_documents import documents
from kvasir_api import forecast, hf_config
from kvasir_runtime.layers.spec import parameter_shapes
from kvasir_runtime.models.config import checked
from kvasir_runtime.models.registry import family_of

DOCUMENTS = documents()
FIELDS = ("attention_bias", "mlp_bias", "use_bias", "bias", "qkv_bias", "attention_out_bias", "mamba_proj_bias")
REFUSED = {(one, "attention_bias") for one in ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")}
REFUSED |= {("falcon_h1", "attention_bias"), ("falcon_h1", "mamba_proj_bias")}
REFUSED |= {("nemotron-3", "mlp_bias"), ("nemotron-3-latent", "mlp_bias")}
"""Biases that a family, or one model of it, has not, and says so."""


def parameters(document: dict[str, Any]) -> int:
    config = checked(Path("config.json"), hf_config.flattened(document))
    shapes = parameter_shapes(family_of(config).spec(config))
    return sum(torch.Size(shape).numel() for shape in shapes.values())


@pytest.mark.parametrize("name", DOCUMENTS)
def test_biases_that_a_config_declares_are_counted(name: str) -> None:
    counts = dict[tuple[str, bool], tuple[int, int]]()
    for field in FIELDS:
        for declared in (False, True):
            document = DOCUMENTS[name] | {field: declared}
            if not {(name, field), (document["model_type"], field)} & REFUSED:
                counts[field, declared] = forecast.shape(document).parameters, parameters(document)
    assert {case: counted for case, (counted, _) in counts.items()} == {case: own for case, (_, own) in counts.items()}


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("granite", ("attention_bias", "mlp_bias")),
        ("bamba", ("mlp_bias", "mamba_proj_bias")),
        ("seed-oss", ("attention_out_bias", "mlp_bias")),
        ("ernie", ("use_bias",)),
        ("glm4-moe", ("attention_bias",)),
        ("command-r7b", ("attention_bias",)),
        ("olmo3", ("attention_bias",)),
        ("granite4", ("attention_bias",)),
        ("llama4", ("attention_bias",)),
        ("nemotron-h", ("mlp_bias", "use_bias")),
        ("falcon-40b", ("bias",)),
    ],
)
def test_as_many_weights_are_counted_as_transformers_has(tmp_path: Path, name: str, fields: tuple[str, ...]) -> None:
    biased = dict.fromkeys(fields, True)
    judge = family_checkpoints.write(tmp_path, name, **biased)
    model = forecast.shape(DOCUMENTS[name] | biased)
    held = family_checkpoints.tensors_of(judge).values()
    assert model.weights_bytes("float32") == sum(tensor.nbytes for tensor in held)
    assert model.parameters > forecast.shape(DOCUMENTS[name] | dict.fromkeys(fields, False)).parameters
    assert model.parameters == parameters(DOCUMENTS[name] | biased)
