"""Which head the options load beside a model, what it takes, and what ends the start."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fakes import checkpoints, draft_heads
from fakes.checkpoints import Shape
from kvasir_api.options import ServeOptions
from kvasir_api.speculation import NO_DRAFTER
from kvasir_runtime.engine.start import limits_of
from kvasir_runtime.errors import ModelError, StartError
from kvasir_runtime.kernels.cpu.library import library
from kvasir_runtime.models.config import read_config
from kvasir_runtime.models.registry import family_of
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.startup import draft_head
from kvasir_runtime.runner.startup.build import build

pytestmark = pytest.mark.skipif(library() is None, reason="this installation has no C++ kernels")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    checkpoints.write(root / "seven", Shape(num_layers=7, max_position_embeddings=512))
    checkpoints.write(root / "two", Shape(max_position_embeddings=512))
    checkpoints.write(root / "state", Shape(family="qwen3_next", max_position_embeddings=512))
    draft_heads.write_next(root / "next", Shape(family="qwen3_next", max_position_embeddings=512))
    only_states = {"layer_types": ["linear_attention"] * 2, "max_position_embeddings": 512}
    checkpoints.write(root / "only states", Shape(family="qwen3_next", extra=only_states))
    weights = load_file(root / "only states" / "model.safetensors")
    checkpoints.write_weights(root / "only states", weights | {"mtp.fc.weight": torch.zeros(2, 2)})
    draft_heads.write_eagle3(root / "eagle3", root / "seven")
    draft_heads.write_mtp(root / "glm", "glm4-moe")
    checkpoints.write_tokenizer(root / "glm")
    return root


def options(model: Path, speculation: Path | str, **given: Any) -> ServeOptions:
    values = {"kv_cache_tokens": 1024, "dtype": "float32", "startup_cache": "", **given}
    return ServeOptions(model=str(model), device="cpu", speculation=str(speculation), **values)


def built(model: Path, speculation: Path | str, **given: Any) -> ModelRunner:
    return build(options(model, speculation, **given), lambda _: None)


def test_facts_count_the_heads_weights_and_its_layer_in_the_cache(root: Path) -> None:
    drafter = built(root / "seven", root / "eagle3").facts.drafter
    weights = load_file(root / "eagle3" / "model.safetensors")
    assert drafter.weights_bytes == 4 * sum(
        one.numel() for name, one in weights.items() if name[1:] not in ("2t", "2d")
    )
    assert drafter.kv_bytes_per_token == 2 * 4 * 16 * 4  # keys and values of four heads of 16, in float32


@pytest.mark.parametrize("model", ["glm", "next"])
@pytest.mark.parametrize(("speculation", "want"), [("mtp", "mtp"), ("auto", "mtp"), ("suffix", "suffix")])
def test_auto_uses_the_layer_that_drafts_where_the_checkpoint_has_one(
    root: Path, model: str, speculation: str, want: str
) -> None:
    facts = built(root / model, speculation).facts
    assert (facts.drafter == NO_DRAFTER) == (want != "mtp")
    assert limits_of(options(root / model, speculation), facts).speculation == want


def test_auto_drafts_from_the_text_where_the_checkpoint_has_no_such_layer(root: Path) -> None:
    facts = built(root / "two", "auto").facts
    assert facts.drafter == NO_DRAFTER
    assert limits_of(options(root / "two", "auto"), facts).speculation == "auto"


@pytest.mark.parametrize(
    ("model", "speculation", "why"),
    [
        ("two", "mtp", "has no layers that draft tokens and can be used; choose auto or off"),
        ("state", "mtp", "has no layers that draft tokens and can be used"),
        ("only states", "mtp", "has no layers that draft tokens and can be used"),
        ("two", "eagle3", "the model has 2 layers: without it a head reads three of at least 7"),
    ],
)
def test_what_cannot_draft_is_one_line(root: Path, model: str, speculation: str, why: str) -> None:
    with pytest.raises((StartError, ModelError), match=why) as caught:
        built(root / model, root / speculation if speculation == "eagle3" else speculation)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("speculation", "ranks", "read"), [("auto", 1, True), ("auto", 2, False), ("mtp", 2, True)])
def test_auto_leaves_the_layer_out_where_several_processes_compute(
    root: Path, speculation: str, ranks: int, read: bool
) -> None:
    config = read_config(root / "glm")
    spec = family_of(config).spec(config)
    given = options(root / "glm", speculation, tensor_parallel_size=ranks)
    assert (draft_head.head_files(given, None, root / "glm", config, spec) is not None) is read


def test_a_head_cannot_read_what_several_processes_have(root: Path) -> None:
    given = options(root / "seven", root / "eagle3", tensor_parallel_size=2)
    assert "several processes" in draft_head.refusal(
        given, built(root / "seven", "off").facts, overlaps=False, in_cpp=True
    )


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"vocab_size": 300}, "made for a model with 300 ids, and not 320"),
        ({"num_hidden_layers": 2}, "has 1 layer, and not 2"),
        ({"hidden_size": 32}, "hidden_size 32 is not the 64 of the model's embeddings"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 6]}}, "must name layers before the last"),
        ({"draft_vocab_size": 100}, "expected .100, 64"),
    ],
)
def test_a_head_of_another_model_is_refused(root: Path, tmp_path: Path, changed: dict[str, Any], why: str) -> None:
    draft_heads.write_eagle3(tmp_path / "head", root / "seven", **changed)
    with pytest.raises(ModelError, match=why):
        built(root / "seven", tmp_path / "head")


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        (None, "d2t is missing, and 240 ids can be drafted"),
        (torch.zeros(7, dtype=torch.int64), "d2t has 7 ids"),
        (torch.full((240,), 200), "names ids twice, or such as the model does not have"),
        (torch.tensor([1] + [0] * 239), "names ids twice"),
        (torch.zeros(240), "d2t is torch.float32 of shape .240., expected int64 ids"),
    ],
)
def test_ids_that_the_model_does_not_have_are_refused(
    root: Path, tmp_path: Path, ids: torch.Tensor | None, why: str
) -> None:
    draft_heads.write_eagle3(tmp_path / "head", root / "seven")
    weights = load_file(tmp_path / "head" / "model.safetensors")
    del weights["d2t"]
    save_file(weights if ids is None else weights | {"d2t": ids}, tmp_path / "head" / "model.safetensors")
    with pytest.raises(ModelError, match=why):
        built(root / "seven", tmp_path / "head")


def test_a_head_reads_the_layers_that_its_config_names(root: Path, tmp_path: Path) -> None:
    """With those of the default it is the same head."""
    named: dict[str, Any] = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}}
    draft_heads.write_eagle3(tmp_path / "head", root / "seven", **named)
    assert json.loads((tmp_path / "head" / "config.json").read_text())["eagle_config"]
    assert (
        built(root / "seven", tmp_path / "head").facts.drafter == built(root / "seven", root / "eagle3").facts.drafter
    )
