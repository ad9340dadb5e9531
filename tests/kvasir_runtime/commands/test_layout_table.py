"""`kvasir plan --count`: how several devices could hold a model, and which layout is marked."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvasir_runtime.commands.plan import plan

QWEN_32B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 64,
    "hidden_size": 5120,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "num_attention_heads": 64,
    "intermediate_size": 25600,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "torch_dtype": "bfloat16",
}
H100 = ("--device", "cuda", "--memory", "80GB", "--card", "NVIDIA H100 80GB HBM3", "--price", "2")


def run(folder: Path, *arguments: str) -> Result:
    (folder / "config.json").write_text(json.dumps(QWEN_32B))
    return CliRunner().invoke(plan, [str(folder), *arguments])


def test_layouts_are_listed_with_the_smallest_that_fits_marked(tmp_path: Path) -> None:
    result = run(tmp_path, *H100, "--count", "4")
    (marked,) = (line for line in result.output.splitlines() if line.startswith("* "))
    assert marked.startswith("* tensor 2, pipeline 1  2        yes")
    assert "ranks and stages compute on processors in this version" in result.output
    assert result.exit_code == 0
    found = json.loads(run(tmp_path, *H100, "--count", "4", "--json").output)["layouts"]
    assert [(one["tensor"], one["pipeline"], one["fits"], one["chosen"]) for one in found] == [
        *[(1, 1, False, False), (2, 1, True, True), (1, 2, True, False)],
        *[(4, 1, True, False), (2, 2, True, False), (1, 4, True, False)],
    ]
    assert all(one["price_per_million"] > 0 for one in found[1:])
    assert "layouts" not in json.loads(run(tmp_path, *H100, "--json").output)


@pytest.mark.parametrize("memory", ["80GB", "200GB"], ids=["too small for one", "one device holds it"])
def test_without_a_layout_that_meets_the_objective_none_is_marked(tmp_path: Path, memory: str) -> None:
    asked = (*H100, "--memory", memory, "--count", "4")
    late = run(tmp_path, *asked, "--ttft-milliseconds", "1")
    assert (late.exit_code, "* tensor" in late.output) == (1, False)
    assert run(tmp_path, *asked).exit_code == 0


def test_of_processors_memory_is_told_and_no_speed(tmp_path: Path) -> None:
    told = run(tmp_path, "--device", "cpu", "--memory", "48Gi", "--count", "2").output
    assert "* tensor 2, pipeline 1  2        yes" in told
    assert "TTFT" not in told


def test_a_layout_beside_a_layout_is_refused(tmp_path: Path) -> None:
    refused = run(tmp_path, "--device", "cpu", "--memory", "80Gi", "--count", "2", "--tensor-parallel-size", "2")
    assert refused.exit_code == 2
    assert "--count chooses the layout" in refused.output


def test_of_processors_no_more_are_forecast_than_ranks_may_compute(tmp_path: Path) -> None:
    refused = run(tmp_path, "--device", "cpu", "--memory", "8Gi", "--count", "16")
    assert (refused.exit_code, "at most 8 ranks compute a model on processors" in refused.output) == (2, True)
    assert run(tmp_path, *H100, "--count", "16").exit_code == 0
