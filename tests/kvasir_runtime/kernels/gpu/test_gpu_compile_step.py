"""Whole steps of the Triton kernels compile for Hopper as the runner launches them; nothing in them asks the host."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from fakes import checkpoints
from fakes.by_hand import Hand, Stream, runner_of
from fakes.cards import cards_of
from fakes.checkpoints import Shape
from fakes.hopper import Hopper
from fakes.overlapping import Overlapping
from fakes.recording import Recordings
from kvasir_runtime.kernels.gpu.ops import TRITON
from kvasir_runtime.kernels.reference import REFERENCE
from kvasir_runtime.kernels.sample import Draws
from kvasir_runtime.wire import SamplingConfig

SIZES = {"num_heads": 4, "head_dim": 64, "hidden_size": 256, "intermediate_size": 512, "max_position_embeddings": 256}
SHAPES = {
    "llama": Shape(dtype=torch.bfloat16, **SIZES),
    "moe": Shape(family="qwen3_moe", dtype=torch.bfloat16, **SIZES),
    "states": Shape(family="qwen3_next", dtype=torch.bfloat16, **SIZES),
    "latents": Shape(family="deepseek_v2", dtype=torch.bfloat16, **SIZES),
}
KERNELS = {
    "states": {"convolve", "step", "prepare", "advance", "attend", "_split_qkv"},
    "latents": {"attend", "_write_kv", "_rope"},
}


def drawn(logits: torch.Tensor, draws: Draws) -> torch.Tensor:
    """Kernels that are only compiled leave their outputs as memory was, and ids must be some."""
    TRITON.sample(logits, draws)
    return torch.zeros(len(logits), dtype=torch.int64)


# What rows and tables hold must be true, or torch's own lookups between the kernels fail.
OPS = replace(TRITON, step_inputs=REFERENCE.step_inputs, append_ids=REFERENCE.append_ids, sample=drawn)


@pytest.mark.parametrize("name", SHAPES)
def test_a_recorded_step_asks_the_host_for_nothing(hopper: Hopper, tmp_path: Path, name: str) -> None:
    folder = checkpoints.write(tmp_path / name, SHAPES[name])
    sizes = {"block_size": 16, "max_sequences": 4, "num_blocks": 32}
    stream = Overlapping()
    runner = runner_of(folder, ops=OPS, device_stream=stream, new_capturer=Recordings, dtype=torch.bfloat16, **sizes)
    runner.capture_graphs()
    assert (runner.facts.kernels, runner.facts.fallback) == ("triton, graphs", "")
    wishes = ({"temperature": 0.0}, {"top_k": 4}, {"frequency_penalty": 1.0, "logprobs": 1})
    streams = [
        Stream(prompt=tuple(range(3, 40 + number)), sampling=SamplingConfig(max_tokens=9, **wish))  # type: ignore[arg-type]
        for number, wish in enumerate(wishes)
    ]
    hand = Hand(runner)
    hand.step([(stream, len(stream.prompt)) for stream in streams])
    hand.step([(stream, 1) for stream in streams])
    # Logits are as memory was too, so a row above may count as not finite and sample no more.
    alone = Stream(prompt=(3, 4, 5), sampling=SamplingConfig(max_tokens=9, top_k=4))
    hand.step([(alone, len(alone.prompt))])
    hand.step([(alone, 1)])
    assert {key.output for key in runner._graphs.replays} >= {"hidden", "filtered"}
    own = KERNELS.get(name, {"attend", "_split_qkv"})
    assert own | {"_rms_norm", "_scan", "_gather", "_settle", "_penalise"} <= set(hopper.loaded)


@pytest.mark.parametrize("name", ["llama", "moe"])
def test_steps_of_ranks_with_a_card_each_are_recorded(hopper: Hopper, tmp_path: Path, name: str) -> None:
    """Each computes its part by the same kernels, and their sums are within what is recorded."""
    folder = checkpoints.write(tmp_path / name, SHAPES[name])
    sizes = {"block_size": 16, "max_sequences": 2, "num_blocks": 32}
    with cards_of(2) as group:
        runner = runner_of(
            folder,
            ops=OPS,
            group=group,
            device_stream=Overlapping(),
            new_capturer=Recordings,
            dtype=torch.bfloat16,
            **sizes,
        )
        runner.capture_graphs()
        assert (runner.facts.kernels, runner.failure) == ("triton, graphs", "")
        stream = Stream(prompt=tuple(range(3, 40)), sampling=SamplingConfig(temperature=0.0, max_tokens=9))
        hand = Hand(runner)
        hand.step([(stream, len(stream.prompt))])
        hand.step([(stream, 1)])
        assert runner.failure == ""
    assert {"attend", "_split_qkv", "_rms_norm"} <= set(hopper.loaded)


def test_a_token_has_six_kernels_for_each_layer(hopper: Hopper, tmp_path: Path) -> None:
    """Four products with norms, residuals and the gate in them, what splits their results, and attention."""
    folder = checkpoints.write(tmp_path / "llama", SHAPES["llama"])
    sizes = {"block_size": 16, "max_sequences": 4, "num_blocks": 64}
    runner = runner_of(folder, ops=OPS, device_stream=Overlapping(), dtype=torch.bfloat16, **sizes)
    stream = Stream(prompt=tuple(range(3, 43)), sampling=SamplingConfig(temperature=0.0, max_tokens=9))
    hand = Hand(runner)
    hand.step([(stream, 40)])
    before = Counter(hopper.launches)
    hand.step([(stream, 1)])
    found, layers = Counter(hopper.launches) - before, SHAPES["llama"].num_layers
    # And the head, unless memory held what is no number, so that the row sampled nothing more; its norm is computed.
    assert found.pop("_stream") - 4 * layers in (0, 1)
    assert found.pop("_rms_norm") == 1
    assert {name for name, count in found.items() if count == layers} == {"_split_qkv", "attend"}
