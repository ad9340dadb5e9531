"""What `kvasir plan` forecasts from a config alone is what the engine reports of the loaded model, within a tenth."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes import checkpoints
from fakes.checkpoints import EXPERTS, FAMILIES, Shape
from kvasir_api.options import RuntimeOptions, ServeOptions
from kvasir_runtime.commands.plan import fit_report
from kvasir_runtime.runner.startup.build import build

LARGE = {"hidden_size": 128, "num_layers": 3, "head_dim": 32, "intermediate_size": 256, "vocab_size": 512}
VARIANTS: dict[str, dict[str, Any]] = {
    "as-it-is": {},
    "in-16-bits": {"dtype": "bfloat16"},
    "cache-in-8-bits": {"dtype": "float32", "kv_cache_dtype": "int8"},
    "weights-in-8-bits": {"dtype": "float32", "quantization": "int8"},
    "weights-in-4-bits": {"dtype": "float32", "quantization": "int4"},
}
DENSE = [family for family in FAMILIES if family not in EXPERTS]
CASES = [
    *((family, tied, "as-it-is") for family in FAMILIES for tied in (False, True) if not tied or family not in EXPERTS),
    *((family, False, variant) for family in DENSE for variant in ("in-16-bits", "cache-in-8-bits")),
    *(("qwen3", tied, variant) for tied in (False, True) for variant in ("weights-in-8-bits", "weights-in-4-bits")),
    *(("qwen2_moe", False, variant) for variant in ("weights-in-8-bits", "weights-in-4-bits")),
]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


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
