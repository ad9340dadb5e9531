"""What nodes must have in common before they compute together, and what is refused before one listens."""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from safetensors.torch import load_file

from fakes import checkpoints, ggufs
from fakes.checkpoints import Shape
from kvasir_api.options import ServeOptions
from kvasir_runtime import arriving
from kvasir_runtime.errors import ModelError, StartError
from kvasir_runtime.runner.startup import node_group, startup_cache_key

KEY = "a key that only nodes of tests have"


def options_of(tmp_path: Path, **given: object) -> ServeOptions:
    (tmp_path / "key").write_text(f"{KEY}\n")
    fields = {
        "model": "m",
        "tensor_parallel_size": 4,
        "nnodes": 2,
        "master_addr": "127.0.0.1",
        "node_key_file": str(tmp_path / "key"),
        **given,
    }
    return ServeOptions.model_validate(fields)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"node_rank": 1, "nnodes": 1}, "--node-rank 1 must be less than --nnodes 1"),
        ({"node_rank": 2}, "--node-rank 2 must be less than --nnodes 2"),
        ({"master_addr": ""}, "--nnodes 2 needs --master-addr"),
        ({"node_key_file": ""}, "--nnodes needs --node-key-file: without a key any process could join"),
        ({"node_key_file": "/nowhere/key"}, "--node-key-file /nowhere/key cannot be read: No such file"),
    ],
)
def test_options_that_contradict_one_another_are_refused(tmp_path: Path, given: dict[str, object], words: str) -> None:
    options = options_of(tmp_path, **given)
    with pytest.raises(StartError) as refused:
        node_group.joined(options, tmp_path, lambda *_: None)
    assert str(refused.value).startswith(words)


@pytest.mark.parametrize("given", [{"nnodes": 3}, {"tensor_parallel_size": 1}])
def test_ranks_that_nodes_do_not_divide_are_no_options(tmp_path: Path, given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"nnodes \d does not divide tensorParallelSize \d"):
        options_of(tmp_path, **given)


def test_a_node_of_another_group_is_a_stranger_who_ends_nothing(tmp_path: Path) -> None:
    """It may come to an address that its own node 0 had before."""
    folder = checkpoints.write(tmp_path / "m", Shape(std=0.2))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    options = options_of(tmp_path, master_port=port, node_group="a")
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(node_group.joined, options, folder, lambda *_: None, join_s=60.0)
        try:
            stranger = options.model_copy(update={"node_rank": 1, "node_group": "b"})
            with pytest.raises(StartError):
                node_group.joined(stranger, folder, lambda *_: None, join_s=60.0)
            assert not leader.done()
        finally:
            member = options.model_copy(update={"node_rank": 1})
            own = node_group.joined(member, folder, lambda *_: None, join_s=60.0)
        links = leader.result(60.0)
    assert (own.node, links.nodes) == (1, 2)
    for link in (*own.steps, *own.control, *links.steps, *links.control):
        link.close()


def test_a_short_key_is_refused_without_showing_it(tmp_path: Path) -> None:
    options = options_of(tmp_path)
    (tmp_path / "key").write_text("hunter2\n")
    with pytest.raises(StartError, match="holds 7 characters; at least 32 are needed") as refused:
        node_group.joined(options, tmp_path, lambda *_: None)
    assert "hunter2" not in str(refused.value)


def test_nodes_compare_options_versions_and_the_content_of_the_model(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "m", Shape(std=0.2))
    facts = node_group.facts_of(options_of(tmp_path), folder)
    assert facts["--tensor-parallel-size"] == "4"
    assert facts["--model-impl"] == "auto"
    assert facts["the version"].startswith("kvasir ")
    assert not {"--node-rank", "--port", "--host", "--node-key-file", "--api-key"} & facts.keys()
    assert KEY not in str(facts)
    again = node_group.facts_of(options_of(tmp_path, node_rank=1, port=1, model="elsewhere"), folder)
    assert again == facts


def test_weights_with_the_same_shapes_and_other_values_are_another_model(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "m", Shape(std=0.2))
    before = node_group.facts_of(options_of(tmp_path), folder)["the model's content"]
    (weights,) = folder.glob("*.safetensors")
    raw, half = weights.read_bytes(), weights.stat().st_size // 2
    weights.write_bytes(raw[:half] + bytes(len(raw) - half))
    assert node_group.facts_of(options_of(tmp_path), folder)["the model's content"] != before


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_a_model_of_which_one_tensor_is_another_has_another_content(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a fine-tune that changed a small one alone, between large ones that take all samples of a whole file."""
    monkeypatch.setattr(startup_cache_key, "GGUF_BYTES", 4096)  # so small a file would be read whole
    contents = set()
    for index, value in enumerate((1.0, 1.5)):
        model = checkpoints.write(tmp_path / str(index), Shape(vocab_size=4096, num_layers=1))
        weights = load_file(model / "model.safetensors")
        weights["model.norm.weight"][1:3] = value
        checkpoints.write_weights(model, weights)
        if kind == "gguf":
            model = ggufs.write(model, tmp_path / str(index) / "model.gguf")
        contents.add(node_group.content_of(model))
    assert len(contents) == 2


def test_shards_that_still_come_are_awaited_before_they_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node may have all of them where another has headers alone."""
    folder = checkpoints.write(tmp_path / "m", Shape(std=0.2), num_shards=2)
    shards = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    headers = {name: raw[: 8 + int.from_bytes(raw[:8], "little")] for name, raw in shards.items()}
    made = arriving.ArrivingFolder(
        folder, arriving.Shards(headers=headers, sizes={name: len(raw) for name, raw in shards.items()})
    )
    monkeypatch.setattr(arriving, "all_awaited", lambda _: [made.arrived(name) for name in shards])
    facts = node_group.facts_of(options_of(tmp_path), made.path)
    assert facts == node_group.facts_of(options_of(tmp_path), folder)


def test_a_model_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "m", Shape())
    for path in folder.glob("*.safetensors"):
        path.write_bytes(b"short")
    with pytest.raises(ModelError, match="cannot be read"):
        node_group.facts_of(options_of(tmp_path), folder)
