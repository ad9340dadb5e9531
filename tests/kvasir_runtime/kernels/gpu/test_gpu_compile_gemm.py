"""Products and changes of logits compile for Hopper at the shapes of real models; no product spills registers."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")


from fakes.hopper import Hopper
from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.gpu import fp8, group_scaled_gemm, linear
from kvasir_runtime.kernels.gpu.ops import TRITON
from kvasir_runtime.kernels.linear import Build
from kvasir_runtime.kernels.quantized import FP8, MXFP4, NVFP4, QuantFormat

VOCAB = 128_256


def test_changes_of_logits_compile(hopper: Hopper) -> None:
    logits, slots = torch.zeros(2, VOCAB), torch.tensor([0, -1])
    counts, in_prompt = torch.zeros(1, VOCAB, dtype=torch.int32), torch.zeros(1, VOCAB, dtype=torch.bool)
    TRITON.penalties(logits, slots, counts, in_prompt, torch.ones(1, 3))
    TRITON.bitmask(logits, torch.zeros(1, VOCAB // 32, dtype=torch.int32), slots)
    assert [hopper.spilled_bytes(name) for name in ("_penalise", "_forbid")] == [[0], [0]]


# rows, columns, gated: layers of an 8B Llama and its head; what has few rows is split. The last is DeepSeek-V2-Lite's,
# whose columns do not fill the last step.
SHAPES = {
    "output": (4096, 4096, False),
    "gate_up": (28672, 4096, True),
    "down": (4096, 14336, False),
    "rest": (2048, 10944, False),
}
FORMATS = {
    "fp8": FP8,
    "fp8-blocks": replace(FP8, group=128),
    "int8": QuantFormat(bits=8),
    "int4": QuantFormat(bits=4),
    "mxfp4": MXFP4,
    "nvfp4": NVFP4,
}


@pytest.mark.parametrize(("name", "tokens"), [("output", 1), ("down", 20), ("gate_up", 64), ("rest", 1)])
def test_products_of_few_tokens_compile(hopper: Hopper, name: str, tokens: int) -> None:
    rows, columns, gated = SHAPES[name]
    dtype = torch.float16 if tokens == 20 else torch.bfloat16
    build = linear.gated if gated else linear.build
    layer = build(torch.empty(rows, columns, dtype=dtype), torch.empty(rows, dtype=dtype) if tokens == 20 else None)
    layer(torch.empty(tokens, columns, dtype=dtype))
    assert hopper.spilled_bytes("_stream")[-1:] == [0]


@pytest.mark.parametrize(
    ("build", "tokens", "dtype"), [(linear.build, 1, torch.float16), (linear.gated, 64, torch.bfloat16)]
)
@pytest.mark.parametrize("kind", FORMATS)
def test_quantized_products_of_few_tokens_compile(
    hopper: Hopper, kind: str, build: Build, tokens: int, dtype: torch.dtype
) -> None:
    weight = quantized.empty(FORMATS[kind], 2048, 1024, torch.device("cpu"))
    build(weight, None)(torch.empty(tokens, 1024, dtype=dtype))
    assert hopper.spilled_bytes("_stream" if kind == "fp8" else "_grouped")[-1:] == [0]


def test_what_many_tokens_need_compiles(hopper: Hopper) -> None:
    fp8.rounded(torch.empty(3, 14336, dtype=torch.bfloat16))
    for kind in ("int8", "int4", "fp8-blocks"):
        layer = linear.build(quantized.empty(FORMATS[kind], 2048, 1024, torch.device("cpu")), None)
        assert isinstance(layer, group_scaled_gemm.GroupScaledLinear)
        group_scaled_gemm.unpacked(layer, 64, 128, torch.bfloat16)
    assert [hopper.spilled_bytes(name)[-1] for name in ("_round", "_unpack")] == [0, 0]
