"""What `kvasir plan` forecasts from a config alone is what the engine reports of the loaded model, within a tenth."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes import checkpoints, draft_heads
from fakes.checkpoints import EXPERTS, FAMILIES, Shape
from kvasir_api.options import RuntimeOptions, ServeOptions
from kvasir_api.speculation import NO_DRAFTER
from kvasir_runtime.commands.fit_report import fit_report
from kvasir_runtime.kernels.cpu.library import library
from kvasir_runtime.runner.startup.build import build
from kvasir_runtime.runner.state import state_snapshots

LARGE = {"hidden_size": 128, "num_layers": 3, "head_dim": 32, "intermediate_size": 256, "vocab_size": 512}
VARIANTS: dict[str, dict[str, Any]] = {
    "as-it-is": {},
    "in-16-bits": {"dtype": "bfloat16"},
    "cache-in-8-bits": {"dtype": "float32", "kv_cache_dtype": "int8"},
    "cache-in-4-bits": {"dtype": "float32", "kv_cache_dtype": "int4"},
    "weights-in-8-bits": {"dtype": "float32", "quantization": "int8"},
    "weights-in-4-bits": {"dtype": "float32", "quantization": "int4"},
}
DENSE = [family for family in FAMILIES if family not in EXPERTS]
CASES = [
    *((family, tied, "as-it-is") for family in FAMILIES for tied in (False, True) if not tied or family not in EXPERTS),
    *((family, False, variant) for family in DENSE for variant in ("in-16-bits", "cache-in-8-bits")),
    ("qwen3", False, "cache-in-4-bits"),
    *(("qwen3", tied, variant) for tied in (False, True) for variant in ("weights-in-8-bits", "weights-in-4-bits")),
    *(("qwen2_moe", False, variant) for variant in ("weights-in-8-bits", "weights-in-4-bits")),
]


@pytest.mark.parametrize(("family", "tied", "variant"), CASES)
def test_the_forecast_holds(tmp_path: Path, family: str, tied: bool, variant: str) -> None:
    shape = Shape(family=family, tied=tied, dtype=torch.float32, max_position_embeddings=512, **LARGE)
    folder = checkpoints.write(tmp_path / family, shape)
    asked = VARIANTS[variant]
    planned = fit_report(
        family,
        json.loads((folder / "config.json").read_text()),
        memory_bytes=2**32,
        device="cpu",
        options=RuntimeOptions(**{"dtype": "float32", **asked}),
    )
    given = ServeOptions(model=str(folder), device="cpu", kv_cache_tokens=1024, **{"dtype": "float32", **asked})
    facts = build(given, lambda _: None).facts
    assert planned.supported
    assert planned.dtype == facts.dtype
    assert planned.fit.weights_bytes == pytest.approx(facts.weights_bytes, rel=0.1)
    assert planned.fit.kv_bytes_per_token == pytest.approx(facts.kv_bytes_per_token, rel=0.1)
    assert planned.max_model_len == facts.max_model_len


@pytest.mark.skipif(library() is None, reason="this installation has no C++ kernels")
@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v2"])
def test_the_forecast_of_ranks_with_requests_of_their_own_holds(tmp_path: Path, family: str) -> None:
    """Weights are those of both ranks, and a request is no longer than the part of one."""
    shape = Shape(family=family, dtype=torch.float32, max_position_embeddings=1 << 20, **LARGE)
    folder = checkpoints.write(tmp_path / family, shape)
    config = json.loads((folder / "config.json").read_text())
    given = ServeOptions(model=str(folder), device="cpu", dtype="float32", data_parallel_size=2, kv_cache_tokens=1024)
    planned = fit_report(family, config, memory_bytes=2**30, device="cpu", options=given)
    facts = build(given.model_copy(update={"startup_cache": "off"}), lambda _: None).facts
    assert planned.fit.weights_bytes == pytest.approx(facts.weights_bytes, rel=0.02)
    assert planned.fit.kv_bytes_per_token == facts.kv_bytes_per_token
    one = fit_report(family, config, memory_bytes=2**29, device="cpu", options=RuntimeOptions(dtype="float32"))
    assert planned.fit.weights_bytes < 2 * one.fit.weights_bytes
    assert planned.fit.kv_tokens > 2 * one.fit.kv_tokens > 0
    assert planned.fitting_context == planned.fit.kv_tokens // 2 < planned.max_model_len
    assert facts.max_model_len == facts.capacity_tokens // 2 + 1
    dense = checkpoints.config_json(Shape(dtype=torch.float32))
    with pytest.raises(
        ValueError, match=r"^--data-parallel-size 2 is not possible: the model has no experts that ranks could share"
    ):
        fit_report(family, dense, memory_bytes=2**30, device="cpu", options=given)


@pytest.mark.skipif(library() is None, reason="this installation has no C++ kernels")
def test_the_forecast_of_a_draft_model_holds(tmp_path: Path) -> None:
    """Of a model with two cache groups, each of whose blocks has one of the drafter's."""
    folder, own = tmp_path / "gemma", tmp_path / "small"
    checkpoints.write(folder, Shape(family="gemma2", max_position_embeddings=512, num_layers=4))
    checkpoints.write(own, Shape(num_layers=3, seed=2, max_position_embeddings=512))
    options = RuntimeOptions(dtype="float32", speculation=str(own), max_model_len=512)
    model, drafter = (json.loads((one / "config.json").read_text()) for one in (folder, own))
    planned = fit_report("m", model, memory_bytes=2**32, device="cpu", options=options, drafter=drafter)
    alone = fit_report("m", model, memory_bytes=2**32, device="cpu", options=options)
    given = {**options.model_dump(), "kv_cache_tokens": 1024}
    facts = build(ServeOptions(model=str(folder), device="cpu", **given), lambda _: None).facts
    assert planned.drafter.weights_bytes == pytest.approx(facts.drafter.weights_bytes, rel=0.1)
    assert planned.drafter.kv_bytes_per_token == facts.drafter.kv_bytes_per_token
    assert planned.fit.kv_bytes_per_token == alone.fit.kv_bytes_per_token + facts.drafter.kv_bytes_per_token
    assert planned.fit.kv_tokens < alone.fit.kv_tokens
    with pytest.raises(ValueError, match="is for CPUs; choose auto or off"):
        fit_report("m", model, memory_bytes=2**32, device="cuda", options=options, drafter=drafter)


@pytest.mark.skipif(library() is None, reason="this installation has no C++ kernels")
@pytest.mark.parametrize("speculation", ["eagle3", "mtp", "auto", "mtp of Qwen3-Next"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_forecast_of_a_head_holds(tmp_path: Path, speculation: str, dtype: str) -> None:
    folder = tmp_path / "model"
    if speculation == "eagle3":
        checkpoints.write(folder, Shape(num_layers=7, max_position_embeddings=512))
        draft_heads.write_eagle3(tmp_path / "head", folder, own_embedding=True)
        speculation = str(tmp_path / "head")
    elif speculation == "mtp of Qwen3-Next":
        draft_heads.write_next(folder, Shape(family="qwen3_next", num_layers=4, max_position_embeddings=512))
        speculation = "mtp"
    else:
        draft_heads.write_mtp(folder, "glm4-moe")
        checkpoints.write_tokenizer(folder)
    options = RuntimeOptions(dtype=dtype, speculation=speculation, max_model_len=512)
    drafter = json.loads((tmp_path / "head" / "config.json").read_text()) if "head" in speculation else None
    model = json.loads((folder / "config.json").read_text())
    planned = fit_report("m", model, memory_bytes=2**32, device="cpu", options=options, drafter=drafter)
    given = {**options.model_dump(), "kv_cache_tokens": 1024}
    facts = build(ServeOptions(model=str(folder), device="cpu", **given), lambda _: None).facts
    assert planned.drafter.weights_bytes == pytest.approx(facts.drafter.weights_bytes, rel=0.1)
    assert planned.drafter.kv_bytes_per_token == facts.drafter.kv_bytes_per_token
    if speculation == "auto":
        assert fit_report("m", model, memory_bytes=2**32, device="cuda", options=options).drafter == NO_DRAFTER
        two = options.model_copy(update={"tensor_parallel_size": 2})
        assert fit_report("m", model, memory_bytes=2**32, device="cpu", options=two).drafter == NO_DRAFTER
    else:
        with pytest.raises(ValueError, match="is for CPUs; choose auto or off"):
            fit_report("m", model, memory_bytes=2**32, device="cuda", options=options, drafter=drafter)


@pytest.mark.skipif(library() is None, reason="this installation has no C++ kernels")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_forecast_of_copies_of_states_holds(tmp_path: Path, dtype: str) -> None:
    """The runner allocates as much as was taken from the cache, and a replica without drafts has the memory for it."""
    shape = Shape(family="qwen3_next", max_position_embeddings=512, extra={"linear_value_head_dim": 32})
    folder = checkpoints.write(tmp_path / "next", shape)
    model = json.loads((folder / "config.json").read_text())

    def planned(speculation: str, device: Any = "cpu") -> Any:
        options = RuntimeOptions(dtype=dtype, speculation=speculation, max_model_len=512)
        return fit_report("m", model, memory_bytes=2**32, device=device, options=options).fit

    given = ServeOptions(model=str(folder), device="cpu", kv_cache_tokens=1024, dtype=dtype, speculation="suffix")
    made = build(given, lambda _: None)
    copies = 8 * made.facts.block_bytes  # of the one group with states, for 8 sequences
    assert state_snapshots.expected_bytes(made.facts, given) == copies
    fewer = planned("off").kv_tokens - planned("suffix").kv_tokens
    assert fewer * planned("off").kv_bytes_per_token == pytest.approx(copies, abs=planned("off").kv_bytes_per_token)
    assert planned("suffix", "cuda").kv_tokens == planned("off", "cuda").kv_tokens


@pytest.mark.parametrize(
    ("shape", "device", "words"),
    [
        (
            Shape(family="deepseek_v2"),
            "cpu",
            "int4 is for keys and values of heads, and this model caches compressed rows",
        ),
        (Shape(head_dim=20), "cuda", "int4 needs heads of a multiple of 8 on cuda, head_dim is 20; take int8"),
    ],
)
def test_a_cache_that_the_runtime_refuses_is_refused(tmp_path: Path, shape: Shape, device: Any, words: str) -> None:
    config = json.loads((checkpoints.write(tmp_path / "model", shape) / "config.json").read_text())
    with pytest.raises(ValueError, match=words):
        fit_report("m", config, memory_bytes=2**32, device=device, options=RuntimeOptions(kv_cache_dtype="int4"))
