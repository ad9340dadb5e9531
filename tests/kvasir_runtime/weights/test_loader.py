"""Checkpoints fill every tensor or are refused with the name of what is wrong, before anything large is read."""

import functools
import json
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fakes import checkpoints
from fakes.checkpoints import Shape
from kvasir_runtime import arriving
from kvasir_runtime.arriving import ArrivingFolder, Shards
from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.spec import parameter_shapes
from kvasir_runtime.models.config import read_config
from kvasir_runtime.models.registry import family_of
from kvasir_runtime.weights import safetensors_checkpoint
from kvasir_runtime.weights.loader import load

SHAPE = Shape(family="qwen2", hidden_size=16, intermediate_size=24, num_layers=1, head_dim=4, vocab_size=260)


def loaded(folder: Path, reads: list[tuple[int, int]] | None = None) -> dict[str, Tensor]:
    config = read_config(folder)
    family = family_of(config)
    spec = family.spec(config)
    return load(
        folder,
        family.places(spec),
        parameter_shapes(spec),
        torch.float32,
        torch.device("cpu"),
        lambda read, total: reads.append((read, total)) if reads is not None else None,
    )


def folder_with(tmp_path: Path, weights: dict[str, Tensor], num_shards: int = 1) -> Path:
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "config.json").write_text(json.dumps(checkpoints.config_json(SHAPE)))
    checkpoints.write_weights(tmp_path, weights, num_shards=num_shards)
    return tmp_path


@pytest.mark.parametrize("num_shards", [1, 3])
def test_groups_are_merged_in_order(tmp_path: Path, num_shards: int) -> None:
    weights = checkpoints.random_weights(SHAPE)
    reads: list[tuple[int, int]] = []
    tensors = loaded(folder_with(tmp_path, weights, num_shards), reads)
    layer = "model.layers.0."
    parts = [weights[f"{layer}self_attn.{name}_proj.weight"] for name in "qkv"]
    assert torch.equal(tensors["layers.0.qkv.weight"], torch.cat(parts))
    biases = [weights[f"{layer}self_attn.{name}_proj.bias"] for name in "qkv"]
    assert torch.equal(tensors["layers.0.qkv.bias"], torch.cat(biases))
    gate_up = [weights[f"{layer}mlp.{name}_proj.weight"] for name in ("gate", "up")]
    assert torch.equal(tensors["layers.0.gate_up.weight"], torch.cat(gate_up))
    assert torch.equal(tensors["head.weight"], weights["lm_head.weight"])
    total = sum(tensor.numel() * 4 for tensor in weights.values())
    assert reads[-1] == (total, total)
    assert [read for read, _ in reads] == sorted(read for read, _ in reads)


def test_rows_of_heads_that_turn_in_part_are_put_in_the_kernels_order(tmp_path: Path) -> None:
    """Of 4 dimensions 0 and 1 turn as a pair, so that they come to 0 and 2, and what does not turn to 1 and 3."""
    weights = checkpoints.random_weights(SHAPE)
    folder = folder_with(tmp_path, weights)
    config = json.loads((folder / "config.json").read_text()) | {"partial_rotary_factor": 0.5}
    (folder / "config.json").write_text(json.dumps(config))
    tensors, layer = loaded(folder), "model.layers.0.self_attn."
    for kind in ("weight", "bias"):
        heads = [weights[f"{layer}{name}_proj.{kind}"] for name in "qk"]
        turned = [rows.unflatten(0, (-1, 4))[:, [0, 2, 1, 3]].flatten(0, 1) for rows in heads]
        wanted = torch.cat([*turned, weights[f"{layer}v_proj.{kind}"]])
        assert torch.equal(tensors[f"layers.0.qkv.{kind}"], wanted)


def test_experts_lie_one_below_the_other(tmp_path: Path) -> None:
    shape = Shape(family="mixtral", hidden_size=16, num_layers=1, head_dim=4, vocab_size=260, num_experts=3)
    weights, folder = checkpoints.random_weights(shape), checkpoints.write(tmp_path, shape, num_shards=2)
    tensors, layer = loaded(folder), "model.layers.0.block_sparse_moe."
    both = [weights[f"{layer}experts.{expert}.{name}.weight"] for expert in range(3) for name in ("w1", "w3")]
    assert torch.equal(tensors["layers.0.experts.gate_up.weight"], torch.cat(both))
    down = [weights[f"{layer}experts.{expert}.w2.weight"] for expert in range(3)]
    assert torch.equal(tensors["layers.0.experts.down.weight"], torch.cat(down))
    assert torch.equal(tensors["layers.0.router"], weights[layer + "gate.weight"])


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    shape = Shape(family="qwen3_moe", hidden_size=16, num_layers=1, head_dim=4, vocab_size=260)
    folder, weights = checkpoints.write(tmp_path, shape), checkpoints.random_weights(shape)
    del weights["model.layers.0.mlp.experts.5.up_proj.weight"]
    checkpoints.write_weights(folder, weights)
    with pytest.raises(ModelError, match=r"tensor model\.layers\.0\.mlp\.experts\.5\.up_proj\.weight is missing$"):
        loaded(folder)


def test_stored_type_is_converted(tmp_path: Path) -> None:
    weights = {name: tensor.bfloat16() for name, tensor in checkpoints.random_weights(SHAPE).items()}
    assert loaded(folder_with(tmp_path, weights))["norm"].dtype == torch.float32


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    weights = checkpoints.random_weights(SHAPE)
    del weights["model.layers.0.self_attn.k_proj.bias"]
    with pytest.raises(ModelError, match=r"tensor model\.layers\.0\.self_attn\.k_proj\.bias is missing$"):
        loaded(folder_with(tmp_path, weights))


def test_unexpected_tensor_is_named(tmp_path: Path) -> None:
    weights = checkpoints.random_weights(SHAPE) | {"model.layers.1.input_layernorm.weight": torch.zeros(16)}
    with pytest.raises(ModelError, match=r"unexpected tensor model\.layers\.1\.input_layernorm\.weight"):
        loaded(folder_with(tmp_path, weights))


def test_wrong_shape_is_named(tmp_path: Path) -> None:
    weights = checkpoints.random_weights(SHAPE) | {"model.norm.weight": torch.zeros(17)}
    with pytest.raises(ModelError, match=r"tensor model\.norm\.weight has shape \[17\], expected \[16\]"):
        loaded(folder_with(tmp_path, weights))


def test_integer_tensor_is_refused(tmp_path: Path) -> None:
    weights = checkpoints.random_weights(SHAPE) | {"model.norm.weight": torch.zeros(16, dtype=torch.int8)}
    with pytest.raises(ModelError, match=r"tensor model\.norm\.weight has type int8 without scales"):
        loaded(folder_with(tmp_path, weights))


def test_recomputed_and_shared_tensors_may_be_stored(tmp_path: Path) -> None:
    weights = checkpoints.random_weights(SHAPE)
    weights |= {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2)}
    folder = folder_with(tmp_path, weights)
    (folder / "config.json").write_text(json.dumps(checkpoints.config_json(SHAPE) | {"tie_word_embeddings": True}))
    assert "head.weight" not in loaded(folder)


def test_layers_that_draft_are_left_out_however_many_the_config_names(tmp_path: Path) -> None:
    weights = checkpoints.random_weights(SHAPE) | {"model.layers.1.input_layernorm.weight": torch.zeros(16)}
    folder = folder_with(tmp_path, weights)
    want = loaded(folder_with(tmp_path / "plain", checkpoints.random_weights(SHAPE)))
    for number in (1, 10**18):
        config = checkpoints.config_json(SHAPE) | {"num_nextn_predict_layers": number}
        (folder / "config.json").write_text(json.dumps(config))
        assert loaded(folder).keys() == want.keys()
    config = checkpoints.config_json(SHAPE) | {"num_nextn_predict_layers": 0}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"unexpected tensor model\.layers\.1\.input_layernorm"):
        loaded(folder)


@pytest.mark.parametrize("kept_bytes", [0, 4, 100, 5000])
def test_truncated_file_is_one_line(tmp_path: Path, kept_bytes: int) -> None:
    folder = folder_with(tmp_path, checkpoints.random_weights(SHAPE))
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept_bytes])
    with pytest.raises(ModelError, match="is truncated or damaged") as caught:
        loaded(folder)
    assert "\n" not in str(caught.value)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, checkpoints.random_weights(SHAPE), num_shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors, named by the index, does not exist"):
        loaded(folder)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a.bin"])
def test_index_cannot_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    folder = folder_with(tmp_path, checkpoints.random_weights(SHAPE))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(ModelError, match="is not the name of a safetensors file"):
        loaded(folder)


def test_pickled_weights_are_never_opened(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, checkpoints.random_weights(SHAPE))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"only pickled weights \(pytorch_model\.bin\)"):
        loaded(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        loaded(folder)


@pytest.mark.parametrize(
    "header",
    [
        (1 << 40).to_bytes(8, "little"),
        (2).to_bytes(8, "little") + b"[]",
        b'{"model.norm.weight": {"dtype": "F32", "shape": [16], "data_offsets": [0, 640000]}}',
        b'{"model.norm.weight": {"dtype": "F32", "shape": [16], "data_offsets": [-64, 0]}}',
        b'{"model.norm.weight": {"dtype": "F32", "shape": [16], "data_offsets": [64, 0]}}',
        b'{"model.norm.weight": {"dtype": "F32", "shape": [-4, -4], "data_offsets": [0, 60]}}',
        b'{"model.norm.weight": {"dtype": "F32", "shape": [4611686018427387904, 4], "data_offsets": [0, 64]}}',
        b'{"model.norm.weight": {"dtype": "F32", "shape": ["16"], "data_offsets": [0, 64]}}',
    ],
)
def test_hostile_headers_are_one_line(tmp_path: Path, header: bytes) -> None:
    folder = folder_with(tmp_path, checkpoints.random_weights(SHAPE))
    begin = b"" if header[:1] != b"{" else len(header).to_bytes(8, "little")
    (folder / "model.safetensors").write_bytes(begin + header + bytes(64))
    with pytest.raises(ModelError, match="is truncated or damaged") as caught:
        loaded(folder)
    assert "\n" not in str(caught.value)


def test_a_range_outside_is_found_without_the_library(tmp_path: Path) -> None:
    """The file may be replaced between the library's look and ours."""
    header = b'{"model.norm.weight": {"dtype": "F32", "shape": [16], "data_offsets": [32, 96]}}'
    (tmp_path / "x").write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
    with pytest.raises(OSError, match=r"model\.norm\.weight' takes bytes 32 to 96 of 64"):
        list(safetensors_checkpoint._tensors(tmp_path / "x"))


def test_a_file_is_read_as_it_comes_and_once_more_where_it_is_fetched_again(tmp_path: Path) -> None:
    weights = checkpoints.random_weights(SHAPE)
    (whole,) = safetensors_checkpoint.files(folder_with(tmp_path / "whole", weights))
    header, content = safetensors_checkpoint.header(whole), whole.read_bytes()
    real, partial = tmp_path / "real", tmp_path / "partial"
    real.mkdir()
    partial.touch()
    (real / "config.json").write_bytes((whole.parent / "config.json").read_bytes())
    name = whole.name
    shards = Shards(headers={name: header}, sizes={name: len(content)}, partials={name: "../partial"})
    coming = ArrivingFolder(real, shards)
    coming.comes(name)
    reads: list[tuple[int, int]] = []
    found: dict[str, Tensor] = {}
    load = functools.partial(loaded, reads=reads)
    loading = threading.Thread(target=lambda: found.update(arriving.loaded(coming.path, load)), daemon=True)
    loading.start()
    deadline = time.monotonic() + 60
    lie = header + bytes(len(content) - len(header))
    for piece in (lie[: len(lie) // 2], lie[len(lie) // 2 :]):
        before = len(reads)
        with partial.open("ab") as stream:
            stream.write(piece)
        while len(reads) == before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(reads) > before, "what is there is read"
    while reads[-1][0] < reads[-1][1] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not found, "nothing counts before the whole file was compared"
    partial.unlink()
    (real / name).write_bytes(content)
    coming.arrived(name)
    loading.join(60)
    want = loaded(whole.parent)
    assert found.keys() == want.keys()
    assert all(torch.equal(found[name], want[name]) for name in want)


def test_shards_are_read_while_others_come(tmp_path: Path) -> None:
    weights = checkpoints.random_weights(SHAPE)
    whole = folder_with(tmp_path / "whole", weights, 3)
    shards = safetensors_checkpoint.files(whole)
    headers = {path.name: safetensors_checkpoint.header(path) for path in shards}
    real = tmp_path / "real"
    real.mkdir()
    for name in ("config.json", "model.safetensors.index.json"):
        (real / name).write_bytes((whole / name).read_bytes())
    coming = ArrivingFolder(real, Shards(headers=headers, sizes={path.name: path.stat().st_size for path in shards}))
    reads: list[tuple[int, int]] = []
    found: dict[str, Tensor] = {}
    loading = threading.Thread(target=lambda: found.update(loaded(coming.path, reads)))
    loading.start()
    deadline = time.monotonic() + 60
    for path in shards:
        before = len(reads)
        (real / path.name).write_bytes(path.read_bytes())
        coming.arrived(path.name)
        while len(reads) == before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(reads) > before, "what is there is read"
    loading.join(60)
    want = loaded(whole)
    assert found.keys() == want.keys()
    assert all(torch.equal(found[name], want[name]) for name in want)
