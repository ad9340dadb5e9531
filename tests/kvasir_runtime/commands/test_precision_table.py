"""What a model takes in each precision, and what its tokens cost: by the forecast of `kvasir plan`."""

import json
import re

import pytest
from click.testing import CliRunner

from kvasir_runtime.commands.plan import plan

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-5,
}
L4 = ("--device", "cuda", "--gpu", "NVIDIA L4", "--price", "0.8")


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    return str(tmp_path)


def rows(model, *arguments):
    done = CliRunner().invoke(plan, [model, "--json", *arguments])
    return {row["quantization"]: row for row in json.loads(done.output)["precisions"]}


def test_each_precision_has_its_weights_and_what_is_left(model):
    found = rows(model, "--memory", "16GiB", *L4)
    assert [*found] == ["auto", "fp8", "int8", "int4"]
    assert {name: row["fits"] for name, row in found.items()} == {
        "auto": False,
        "fp8": True,
        "int8": True,
        "int4": True,
    }
    assert [round(row["weights_bytes"] / 2**30, 2) for row in found.values()] == [14.96, 8.0, 8.41, 5.56]
    assert found["int4"]["kv_tokens"] > found["int8"]["kv_tokens"] > 8192
    assert (found["auto"]["batch_tokens_per_s"], found["auto"]["price_per_million"]) == (0, 0)


def test_a_price_is_that_of_an_hour_over_its_tokens(model):
    row = rows(model, "--memory", "24GiB", *L4)["int4"]
    assert row["stream_tokens_per_s"] < row["batch_tokens_per_s"]
    assert row["price_per_million"] == pytest.approx(0.8 / (row["batch_tokens_per_s"] * 3600 / 10**6))
    assert rows(model, "--memory", "24GiB", "--device", "cuda")["int4"]["price_per_million"] == 0


def test_processors_have_no_fp8(model):
    assert [*rows(model, "--memory", "24GiB", "--device", "cpu")] == ["auto", "int8", "int4"]


@pytest.mark.parametrize(
    ("stored", "want"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ["auto", "fp8", "int8", "int4"]),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, ["auto", "int4"]),
    ],
)
def test_a_checkpoint_in_fewer_bits_has_those_that_take_less_too(tmp_path, stored, want):
    """Of its own bits by the head, which it has in full."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B | {"quantization_config": stored}))
    assert [*rows(str(tmp_path), "--memory", "24GiB", *L4)] == want


def test_the_table_has_speeds_and_prices_where_they_are_known(model):
    plain = CliRunner().invoke(plan, [model, "--memory", "24GiB", "--device", "cuda"]).output
    assert "PRECISION  FITS  WEIGHTS    KV TOKENS  REQUESTS\nauto       yes   14.96 GiB  27,791     3.39\n" in plain
    priced = CliRunner().invoke(plan, [model, "--memory", "24GiB", *L4]).output
    assert "REQUESTS  TOKENS/S ALONE  IN A BATCH  PRICE OF A MILLION\n" in priced
    small = CliRunner().invoke(plan, [model, "--memory", "16GiB", *L4]).output
    assert re.search(r"^auto +no +14\.96 GiB +0 +0\.00 +- +- +-$", small, re.MULTILINE), small
