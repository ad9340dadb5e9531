"""`kvasir bench --accuracy`: what is compared, how it is shown, and what goes wrong in one line."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fakes import integer_checkpoints
from fakes.integer_checkpoints import Style
from kvasir_runtime.accuracy_messages import Deviation
from kvasir_runtime.bench import accuracy
from kvasir_runtime.commands.bench import bench

MODEL = Path(__file__).parents[3] / "operator/kvasir_local/demo/model"


@pytest.mark.parametrize(
    ("length", "wanted", "lengths"),
    [(600, 1024, [256, 256, 88]), (600, 300, [256, 44]), (257, 1024, [256]), (1, 9, []), (0, 9, [])],
)
def test_text_is_cut_into_pieces(length: int, wanted: int, lengths: list[int]) -> None:
    assert [len(piece) for piece in accuracy.pieces(tuple(range(length)), wanted)] == lengths


def test_table_shows_each_variant_beside_the_base() -> None:
    base = Deviation(
        name="bfloat16",
        tokens=1000,
        top1_agreement_fraction=1.0,
        mean_kl=0.0,
        max_kl=0.0,
        base_perplexity=8.0,
        perplexity=8.0,
        weights_bytes=4 << 20,
    )
    other = Deviation(
        name="int8 weights",
        tokens=1000,
        top1_agreement_fraction=0.991,
        mean_kl=0.00123,
        max_kl=0.5,
        base_perplexity=8.0,
        perplexity=8.1,
        weights_bytes=2 << 20,
    )
    lines = accuracy.table([base, other]).splitlines()
    assert lines[0] == "1,000 tokens; compared with bfloat16, whose perplexity is 8.000"
    assert lines[3].split() == ["int8", "weights", "2.0", "99.10%", "1.23e-03", "5.00e-01", "+1.25%"]


def test_command_compares_a_real_model(tmp_path: Path) -> None:
    text, target = tmp_path / "text.txt", tmp_path / "accuracy.json"
    text.write_text("Kvasir serves large language models on Kubernetes. What is a KV cache? " * 12)
    given = ["--accuracy", str(MODEL), "--text", str(text), "--text-tokens", "60", "--json", str(target)]
    result = CliRunner().invoke(bench, given)
    assert result.exit_code == 0, result.output
    document = json.loads(target.read_text())
    variants = {each["name"]: each for each in document["variants"]}
    assert list(variants) == ["bfloat16", *(name for name, _ in accuracy.VARIANTS)]
    assert all(each["tokens"] == 60 for each in variants.values())
    assert variants["int8 weights"]["top1_agreement_fraction"] > 0.9
    assert variants["int8 weights"]["mean_kl"] < variants["int4 weights"]["mean_kl"]
    assert "int8 weights and KV" in result.output


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([], "give either --url or --accuracy"),
        (["--url", "http://127.0.0.1:1", "--accuracy", "m"], "give either --url or --accuracy"),
        (["--accuracy", "./nowhere"], "does not exist"),
        (["--accuracy", str(MODEL), "--text", "/nowhere/text"], "/nowhere/text"),
    ],
)
def test_what_cannot_be_compared_is_said_in_a_line(given: list[str], reason: str) -> None:
    result = CliRunner().invoke(bench, given)
    assert result.exit_code != 0
    assert reason in result.output


def test_a_failed_process_is_one_line() -> None:
    job = accuracy.job(str(MODEL), "a plan is a plan", 8)
    broken = (sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit('the model is damaged')")
    with pytest.raises(accuracy.AccuracyError, match="the model is damaged"):
        list(accuracy.measured(job, broken))


def test_a_checkpoint_in_fewer_bits_is_compared_as_it_is_stored(tmp_path: Path) -> None:
    shutil.copytree(MODEL, tmp_path / "model")
    assert accuracy.AS_STORED not in accuracy.job(str(tmp_path / "model"), "a plan is a plan", 8).variants
    integer_checkpoints.convert(tmp_path / "model", Style(method="awq", group=64, symmetric=False))
    config = json.loads((tmp_path / "model/config.json").read_text())
    (tmp_path / "model/config.json").write_text(json.dumps(config | {"time_step_limit": [0.0, float("inf")]}))
    assert accuracy.AS_STORED in accuracy.job(str(tmp_path / "model"), "a plan is a plan", 8).variants
