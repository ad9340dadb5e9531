"""How much is done in Python for a layer whose experts are read again: no step is computed meanwhile."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from fakes import checkpoints, ggufs
from fakes.checkpoints import Shape
from kvasir_api.eplb import EplbConfig
from kvasir_runtime.errors import StartError
from kvasir_runtime.kernels.reference import REFERENCE
from kvasir_runtime.layers import sharding
from kvasir_runtime.layers.expert_copies import CopyRoom
from kvasir_runtime.layers.rank import Rank
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import read_config
from kvasir_runtime.models.family import Family, Place
from kvasir_runtime.models.registry import family_of
from kvasir_runtime.runner.startup import startup_cache_key
from kvasir_runtime.runner.startup.expert_reader import ExpertReader, files_before
from kvasir_runtime.weights.checkpoint_tensor import CheckpointTensor


def reader_of(folder: Path) -> tuple[ExpertReader, list[DecoderSpec]]:
    """Of rank 0 of 2, and the specs of which all places were asked for."""
    config, asked = read_config(folder, ""), list[DecoderSpec]()
    family = family_of(config)
    whole = family.spec(config)

    def places(spec: DecoderSpec) -> dict[str, Place]:
        asked.append(spec)
        return family.places(spec)

    counting: Family = replace(family, places=places)
    own, files = sharding.shard(whole, Rank(0, 2, True)), startup_cache_key.identity(folder)
    return ExpertReader(
        folder=folder,
        files=files,
        family=counting,
        whole=whole,
        own=own,
        formats={},
        ops=REFERENCE,
        dtype=torch.float32,
    ), asked


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Calls of this thread, by what is called: tensors that are made, and all."""
    found = {"tensors": 0, "all": 0}
    made = CheckpointTensor.__init__.__code__

    def note(frame: FrameType, event: str, _: Any) -> None:
        found["all"] += event == "call"
        found["tensors"] += event == "call" and frame.f_code is made

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("is_gguf", [False, True])
def test_a_layer_is_read_without_a_look_at_all_others(tmp_path: Path, is_gguf: bool) -> None:
    """The second of 2 layers takes as many calls as that of 12."""
    calls = set[int]()
    for layers in (2, 12):
        shape = Shape(family="qwen3_moe", num_layers=layers)
        folder = checkpoints.write(tmp_path / f"{layers}", shape)
        folder = ggufs.write(folder, tmp_path / f"{layers}.gguf") if is_gguf else folder
        read, asked = reader_of(folder)
        read(0, (3, 2), lambda: None)
        assert len(asked) == 2  # of the whole model, and of the part
        with counted() as found:
            tensors = read(1, (3, 2), lambda: None)
        assert len(asked) == 2
        assert sorted(tensors) == ["down.weight", "gate_up.weight"]
        assert found["tensors"] <= 2 * 3 * 2  # of two experts, each of three matrices whole and in part
        calls.add(found["all"])
    assert max(calls) < 1.1 * min(calls)


def test_a_file_that_is_missing_at_the_start_is_a_reason_not_to_start(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "m", Shape())
    room = CopyRoom(homes=(0, 1), copies=1, layers=(0,), config=EplbConfig())
    assert files_before(folder, room) == startup_cache_key.identity(folder)
    (folder / "config.json").unlink()
    assert files_before(folder, None) == []
    with pytest.raises(StartError, match=r"/m: .*No such file or directory: '.*config\.json'"):
        files_before(folder, room)
