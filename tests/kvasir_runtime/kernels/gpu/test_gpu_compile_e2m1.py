"""Products with numbers of e2m1 compile for every kind of card at the shapes of gpt-oss; none of few tokens spills.

The formats differ by their scales alone, so each kind of card has one of them.
"""

import pytest
import torch

pytest.importorskip("triton")

from fakes.hopper import CARDS, Hopper
from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.expert_routing import Routing
from kvasir_runtime.kernels.gpu import group_scaled_gemm, linear
from kvasir_runtime.kernels.gpu.ops import TRITON
from kvasir_runtime.kernels.moe import ExpertBiases
from kvasir_runtime.kernels.quantized import MXFP4, NVFP4, QuantFormat, QuantizedWeight

HIDDEN, INNER, EXPERTS = 2880, 2880, 32
BFLOAT16 = torch.bfloat16
pytestmark = pytest.mark.parametrize(
    ("card", "format_"), [*zip(CARDS, (NVFP4, MXFP4, NVFP4, MXFP4), strict=True)], indirect=["card"], ids=CARDS
)


def weight(format_: QuantFormat, rows: int) -> QuantizedWeight:
    return quantized.empty(format_, rows, HIDDEN, torch.device("cpu"))


def test_layers_compile(card: Hopper, format_: QuantFormat) -> None:
    layer = linear.gated(weight(format_, 2 * INNER), None)
    assert isinstance(layer, group_scaled_gemm.GroupScaledLinear)
    for tokens in (1, 64):
        group_scaled_gemm.few(layer, torch.empty(tokens, HIDDEN, dtype=BFLOAT16))
    group_scaled_gemm.unpacked(layer, 0, 64, BFLOAT16)
    assert "_unpack" in card.loaded
    assert card.spilled_bytes("_grouped") == [0, 0]


def test_experts_compile(card: Hopper, format_: QuantFormat) -> None:
    one = weight(format_, 1)
    gate_up = one.each(lambda part: part.expand(EXPERTS * 2 * INNER, -1))
    down = one.each(lambda part: part.expand(EXPERTS * HIDDEN, -1))
    zeros = torch.zeros(1, dtype=BFLOAT16)
    biases = ExpertBiases(gate_up=zeros.expand(EXPERTS * 2 * INNER), down=zeros.expand(EXPERTS * HIDDEN))
    router, routing = torch.zeros(EXPERTS, HIDDEN, dtype=BFLOAT16), Routing(top_k=4, renormalised=True)
    TRITON.moe(router, gate_up, down, routing, biases, "clamped")(torch.zeros(4, HIDDEN, dtype=BFLOAT16))
    assert set(card.spilled_bytes("_product")) == {0}
