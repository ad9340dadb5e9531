"""The forecast counts what a quantized checkpoint leaves in 16 bits as what the engine holds of it, to the byte."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file

from fakes import (
    bitsandbytes_checkpoints,
    checkpoints,
    e2m1_checkpoints,
    fp8_checkpoints,
    hqq_checkpoints,
    integer_checkpoints,
    left_in_full,
)
from fakes.checkpoints import Shape
from fakes.family_documents import documents
from kvasir_api import hf_config, inspection
from kvasir_api.options import RuntimeOptions, ServeOptions
from kvasir_runtime.commands import model_facts
from kvasir_runtime.commands.fit_report import fit_report
from kvasir_runtime.commands.plan import plan
from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.cpu.library import library
from kvasir_runtime.layers.spec import parameter_shapes
from kvasir_runtime.models import quantization_config
from kvasir_runtime.models.config import checked
from kvasir_runtime.models.registry import family_of
from kvasir_runtime.runner.startup.build import build
from kvasir_runtime.weights import quant_formats
from kvasir_runtime.weights.checkpoint_tensor import StoredKind

SHAPE = Shape(hidden_size=256, num_heads=8, num_kv_heads=4, head_dim=32, num_layers=2, intermediate_size=384)
ATTENTION = r"\.self_attn\."
FIRST = r"\.0\.mlp\."
NAMED = [f"model.layers.0.mlp.{part}_proj" for part in ("gate", "up", "down")]
HQQ = hqq_checkpoints.described(hqq_checkpoints.Style())["quant_config"]
GROUP = integer_checkpoints.described(integer_checkpoints.Style(method="packed", group=64))["config_groups"]["group_0"]


def integers(method: str, bits: int = 4, group: int = 64) -> Callable[[Path], Any]:
    """8 bits in groups whose scales take what the forecast counts."""
    style = integer_checkpoints.Style(method=method, bits=bits, group=group if bits == 4 else 32)
    return partial(integer_checkpoints.convert, style=style)


def in_style(module: Any, style: Any) -> Callable[[Path], Any]:
    return lambda folder: module.convert(folder, style)


CASES: dict[str, tuple[Callable[[Path], Any], str, dict[str, Any]]] = {
    "gptq-dynamic": (integers("gptq"), ATTENTION, {"dynamic": {r"-:.*\.self_attn\..*": {}, r"+:.*\.mlp\..*": {}}}),
    "gptq-blocks": (
        integers("gptq", 8),
        ATTENTION,
        {"modules_in_block_to_quantize": [["mlp.gate_proj", "mlp.up_proj"], ["mlp.down_proj"]]},
    ),
    "awq": (integers("awq"), r"\.down_proj\.", {"modules_to_not_convert": ["down"]}),
    "awq-names": (integers("awq"), FIRST, {"modules_to_not_convert": NAMED}),
    "packed": (integers("packed"), ATTENTION, {"ignore": ["lm_head", "re:.*self_attn.*"]}),
    "packed-names": (integers("packed"), FIRST, {"ignore": ["lm_head", *NAMED]}),
    "packed-images": (
        integers("packed"),
        FIRST,
        {"ignore": [name.replace("model.", "model.language_model.", 1) for name in NAMED]},
    ),
    "packed-targets": (
        integers("packed"),
        ATTENTION,
        {"config_groups": {"group_0": GROUP | {"targets": [r"re:.*\.mlp\.(gate|up|down)_proj$"]}}},
    ),
    "packed-8": (integers("packed", 8), r"\.1\.", {"ignore": ["model.layers.1"]}),
    "fp8": (in_style(fp8_checkpoints, "tensor"), FIRST, {"modules_to_not_convert": ["lm_head", *NAMED]}),
    "fp8-ignored": (in_style(fp8_checkpoints, "tensor"), FIRST, {"ignored_layers": NAMED}),
    "fp8-channel": (in_style(fp8_checkpoints, "channel"), r"\.q_proj", {"ignore": [r"re:.*\.q_proj$"]}),
    "nf4": (in_style(bitsandbytes_checkpoints, "nf4"), ATTENTION, {"llm_int8_skip_modules": ["self_attn"]}),
    "nvfp4": (in_style(e2m1_checkpoints, "nvfp4"), ATTENTION, {"ignore": ["re:.*self_attn.*"]}),
    "modelopt": (in_style(e2m1_checkpoints, "modelopt"), r"\.1\.", {"exclude_modules": ["lm_head", "model.layers.1*"]}),
    "hqq": (in_style(hqq_checkpoints, hqq_checkpoints.Style()), ATTENTION, {"skip_modules": ["lm_head", "self_attn"]}),
    "hqq-kinds": (
        in_style(hqq_checkpoints, hqq_checkpoints.Style()),
        r"self_attn|\.down_proj",
        {"quant_config": {"mlp.gate_proj": HQQ, "mlp.up_proj": HQQ, "mlp.down_proj": None}},
    ),
}


def written(folder: Path, shape: Shape, convert: Callable[[Path], Any], left: str, described: dict[str, Any]) -> Path:
    checkpoints.write(folder, shape)
    full = load_file(folder / "model.safetensors")
    convert(folder)
    left_in_full.restore(folder, full, left, described)
    return folder


def planned(folder: Path, dtype: str, **options: Any) -> int:
    config = json.loads((folder / "config.json").read_text())
    given = RuntimeOptions(dtype=dtype, **options)
    return fit_report("m", config, memory_bytes=2**32, device="cpu", options=given).fit.weights_bytes


def held(folder: Path, dtype: str, **options: Any) -> int:
    given = ServeOptions(model=str(folder), kv_cache_tokens=64, dtype=dtype, device="cpu", **options)
    return build(given, lambda _: None).facts.weights_bytes


@pytest.mark.parametrize("name", CASES)
def test_what_is_left_in_full_is_counted_so(tmp_path: Path, name: str) -> None:
    written(tmp_path, SHAPE, *CASES[name])
    assert planned(tmp_path, "bfloat16") == held(tmp_path, "bfloat16")


def test_in_32_bits_it_takes_as_many(tmp_path: Path) -> None:
    written(tmp_path, SHAPE, *CASES["packed"])
    assert planned(tmp_path, "float32") == held(tmp_path, "float32")


def test_the_report_names_the_numbers(tmp_path: Path) -> None:
    written(tmp_path, SHAPE, *CASES["packed"])
    output = CliRunner().invoke(plan, [str(tmp_path), "--memory", "4Gi", "--device", "cpu"]).output
    assert "matrices in 4.5 bits (393,216 of their numbers in full) as the checkpoint has them" in output


def test_experts_are_one_matrix(tmp_path: Path) -> None:
    """One that is left in full leaves all of its layer so."""
    shape = replace(SHAPE, family="qwen3_moe")
    ignored = {"ignore": [r"re:.*layers\.0\.mlp\.experts\.1\."]}
    written(tmp_path, shape, integers("packed", group=32), r"\.0\.mlp\.experts\.1\.", ignored)
    assert planned(tmp_path, "bfloat16") == held(tmp_path, "bfloat16")
    first, *others = model_facts.shape_of(json.loads((tmp_path / "config.json").read_text())).layer_kinds
    assert first.plain == first.plain_routed > 0
    assert {(kind.plain, kind.plain_routed) for kind in others} == {(0, 0)}


@pytest.mark.skipif(library() is None, reason="this installation has no C++ kernels")
def test_ranks_that_have_whole_experts_divide_those_in_full(tmp_path: Path) -> None:
    """All experts of the first layer, and the output of attention of each, which both ranks have."""
    shape = replace(SHAPE, family="qwen3_moe")
    ignored = {"ignore": [r"re:.*layers\.0\.mlp\.experts", r"re:.*o_proj"]}
    written(tmp_path, shape, integers("packed", group=32), r"\.0\.mlp\.experts\.|o_proj", ignored)
    ranks = {"data_parallel_size": 2, "enable_expert_parallel": True}
    taken = held(tmp_path, "float32", startup_cache="off", **ranks)
    assert planned(tmp_path, "float32", **ranks) == pytest.approx(taken, rel=0.001)


def test_facts_of_the_operator_have_it(tmp_path: Path) -> None:
    written(tmp_path, SHAPE, *CASES["packed"])
    facts = model_facts.facts(json.loads((tmp_path / "config.json").read_text()))
    found = inspection.decode(inspection.encode(facts).decode()).shape
    assert found.stored_plain == 2 * (512 + 256) * 256
    assert inspection.held_on(found, "cpu").weights_bytes("bfloat16") == held(tmp_path, "bfloat16")


@pytest.mark.parametrize(
    ("field", "entry"),
    [
        *itertools.product(("ignore", "modules_to_not_convert", "dynamic"), ("(", 7, "", None, "re:(", [], "lm_head")),
        *itertools.product(("modules_in_block_to_quantize",), ("", 7, None, [], [7])),
    ],
)
def test_what_names_no_module_counts_none(field: str, entry: object) -> None:
    quantization = integer_checkpoints.described(integer_checkpoints.Style(method="gptq")) | {field: [entry]}
    shape = model_facts.shape_of(checkpoints.config_json(SHAPE) | {"quantization_config": quantization})
    assert (shape.held.stored, shape.stored_plain) == (12, 0)


@pytest.mark.parametrize("style", ["nvfp4", "mxfp4"])
def test_the_first_projection_of_a_state_is_left_in_full_with_its_smallest_parts(style: str) -> None:
    """Of Qwen3.5: 4 heads of 12 values and 2 of 16 keys, in two layers of three."""
    described = e2m1_checkpoints.described(style) | {"ignore": ["lm_head", "re:.*in_proj_[ab]$"]}
    config = documents()["qwen3.5"] | {"quantization_config": described}
    rows = 2 * (4 * 12) + 2 * (2 * 16) + 2 * 4
    assert model_facts.shape_of(config).stored_plain == 2 * rows * config["hidden_size"]

    flat = hf_config.flattened(config)
    typed = checked(Path("config.json"), flat)
    family = family_of(typed)
    spec = family.spec(typed)
    kind = StoredKind(name=style, format=quantized.NVFP4 if style == "nvfp4" else quantized.MXFP4)
    places = family.places(spec)
    kinds = {name: kind for name in places if not name.endswith(("in_proj_a.weight", "in_proj_b.weight"))}
    held = quant_formats.formats("auto", spec, parameter_shapes(spec), places, kinds)
    attending = [layer for layer, attention in enumerate(spec.attentions) if attention.kind == "full"]
    assert [name for name in held if name.endswith("qkv.weight")] == [f"layers.{one}.qkv.weight" for one in attending]


@pytest.mark.parametrize("method", ["compressed-tensors", "gptq", "modelopt"])
def test_no_pattern_of_a_config_is_tried_for_long(method: str) -> None:
    """With backtracking each of these takes longer than the test may."""
    hostile = ["re:(([a-z.])+)+[0-9]", "(a|a)*(b|b)*(.|a)*[0-9]", "a*" * 40 + "b", "(.*a){40}[0-9]"]
    is_left = quantization_config.left_in_full({"quant_method": method, "ignore": hostile})
    assert not is_left("a" * 128)


def test_wildcards_mean_themselves_alone() -> None:
    entries = {"quant_method": "modelopt", "exclude_modules": ["model.layers.?*", "model.[a-z]*", "*.mlp*"]}
    is_left = quantization_config.left_in_full(entries)
    assert is_left("model.layers.1.mlp.up_proj")
    assert not is_left("model.layers.1.self_attn.q_proj")


def test_more_experts_than_any_model_has_are_not_looked_at() -> None:
    """A name for each would take minutes."""
    quantization = integer_checkpoints.described(integer_checkpoints.Style(method="gptq")) | {"ignore": ["mlp"]}
    config = checkpoints.config_json(replace(SHAPE, family="qwen3_moe")) | {"quantization_config": quantization}
    assert model_facts.shape_of(config).stored_plain > 0
    assert model_facts.shape_of(config | {"num_hidden_layers": 1024, "num_experts": 4096}).stored_plain == 0
