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
H100 = ("--gpu", "h100", "--price", "2")


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
    assert all(one["price_per_million"] > 0 and one["moved_s"] > 0 for one in found[1:])
    assert [one["price_per_hour"] for one in found] == [2, 4, 4, 8, 8, 8]
    assert "chosen: tensor 2, pipeline 1, 2 devices at 4 an hour" in result.output
    assert "layouts" not in json.loads(run(tmp_path, *H100, "--json").output)


@pytest.mark.parametrize("memory", ["80GB", "200GB"], ids=["too small for one", "one device holds it"])
def test_without_a_layout_that_meets_the_objective_none_is_marked(tmp_path: Path, memory: str) -> None:
    asked = (*H100, "--memory", memory, "--count", "4")
    for objective in ("--ttft-milliseconds", "--itl-milliseconds"):
        late = run(tmp_path, *asked, objective, "1")
        assert (late.exit_code, "* tensor" in late.output, "none meets the objectives" in late.output) == (
            1,
            False,
            True,
        )
    assert run(tmp_path, *asked).exit_code == 0


def test_of_processors_memory_is_told_and_no_speed(tmp_path: Path) -> None:
    told = run(tmp_path, "--device", "cpu", "--memory", "48Gi", "--count", "2").output
    assert "* tensor 2, pipeline 1  2        yes" in told
    assert "TTFT" not in told


def test_of_processors_whose_rates_are_given_speeds_are_forecast_too(tmp_path: Path) -> None:
    rates = ("--memory-gigabytes-per-second", "200", "--fp16-teraflops", "4")
    told = run(tmp_path, "--device", "cpu", "--memory", "100Gi", *rates, "--count", "2", "--json")
    one, two, _ = json.loads(told.output)["layouts"]
    assert 0.3 < one["tpot_s"] < 0.4  # 65 GB at 200 GB/s
    assert 0.5 < two["tpot_s"] / one["tpot_s"] < 0.55


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--gpu", "L4", "--device", "cpu"), "--gpu L4 is no processor"),
        (("--gpu", "L4", "--fp16-teraflops", "1"), "--gpu L4 has a data sheet"),
        (("--fp16-teraflops", "1"), "are needed both"),
        (("--device", "cpu", "--link-gigabytes-per-second", "9"), "needs --gpu, or the rates of the device"),
        (("--device", "cuda"), "name it by --gpu"),
        (("--gpu", "L5"), "Invalid value for '--gpu'"),
    ],
)
def test_hardware_that_contradicts_itself_is_refused(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    refused = run(tmp_path, *options)
    assert (refused.exit_code, words in refused.output) == (2, True), refused.output


def test_a_network_and_links_of_their_own_change_the_times(tmp_path: Path) -> None:
    def times(*options: str) -> list[tuple[float, float]]:
        found = json.loads(run(tmp_path, *H100, "--count", "2", "--json", *options).output)["layouts"]
        return [(one["ttft_s"], one["moved_s"]) for one in found[1:]]

    usual, far = times(), times("--node-devices", "1", "--network-gigabits-per-second", "10")
    assert far[0][0] > usual[0][0] + 0.1  # 128 sums of 10 MB by 1.25 GB/s
    assert far[0][1] == pytest.approx(5 * usual[0][1], rel=0.01)  # a tenth of the network, by two nodes
    assert times("--link-gigabytes-per-second", "1")[0][0] > usual[0][0] + 0.5


def test_a_layout_beside_a_layout_is_refused(tmp_path: Path) -> None:
    refused = run(tmp_path, "--device", "cpu", "--memory", "80Gi", "--count", "2", "--tensor-parallel-size", "2")
    assert refused.exit_code == 2
    assert "--count chooses the layout" in refused.output


def test_of_processors_no_more_are_forecast_than_ranks_may_compute(tmp_path: Path) -> None:
    refused = run(tmp_path, "--device", "cpu", "--memory", "8Gi", "--count", "16")
    assert (refused.exit_code, "at most 8 ranks compute a model on processors" in refused.output) == (2, True)
    assert run(tmp_path, *H100, "--count", "16").exit_code == 0
