"""A model with weights of few bits answers on the Triton kernels token for token as on the references, in float16."""

from pathlib import Path

import pytest
import torch

from fakes import triton_device

DEVICE = triton_device.device()

# ruff: noqa: E402 -- behind the question where it can run
from fakes import checkpoints
from fakes.by_hand import Hand, Stream, runner_of
from fakes.checkpoints import Shape
from kvasir_api.options import Quantization
from kvasir_runtime.kernels.backends import ops_for
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.kernels.reference import REFERENCE

# Wide enough for the kernels, and with logits far enough apart that the last bits of a sum do not decide.
SHAPE = Shape(hidden_size=128, intermediate_size=128, num_heads=8, num_kv_heads=4, num_layers=1, std=0.15)


@pytest.mark.parametrize("quantization", ["none", "fp8", "int4"])
def test_answers_are_those_of_the_references(tmp_path: Path, quantization: Quantization) -> None:
    folder = checkpoints.write(tmp_path, SHAPE)
    assert answer(folder, quantization, ops_for(DEVICE)) == answer(folder, quantization, REFERENCE)


def answer(folder: Path, quantization: Quantization, ops: Ops) -> list[int]:
    runner = runner_of(
        folder, quantization=quantization, ops=ops, device=DEVICE, dtype=torch.float16, num_blocks=16, max_sequences=2
    )
    stream = Stream(prompt=tuple(range(3, 30)))
    Hand(runner).run([stream], 5)
    assert len(stream.answer) == 5
    return list(stream.answer)
