"""The products of experts compile for Hopper at the shapes of real models: they fit, and nothing spills."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")

from fakes.hopper import SHARED_BYTES, Hopper
from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.expert_routing import Routing
from kvasir_runtime.kernels.gpu import moe_tiles
from kvasir_runtime.kernels.gpu.ops import TRITON
from kvasir_runtime.kernels.moe import ExpertBiases
from kvasir_runtime.kernels.quantized import MXFP4, NVFP4, QuantFormat, QuantizedWeight

READS = {torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.bincount, torch.ops.aten.item}


class Unread(TorchDispatchMode):
    """Refuses what asks a device for values or sizes: it cannot be recorded in a graph."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket not in READS, func
        return func(*args, **(kwargs or {}))


# tokens, experts, top_k, hidden, inner, dtype
MODELS = {
    "mixtral-prefill": (2048, 8, 2, 4096, 14336, torch.bfloat16),
    "qwen3-decode": (8, 128, 8, 2048, 768, torch.bfloat16),
    "qwen2-between": (500, 60, 4, 2048, 1408, torch.float16),
    "512-experts": (1, 512, 10, 2048, 512, torch.bfloat16),
    "float32": (40, 8, 2, 256, 100, torch.float32),
}


@pytest.mark.parametrize("name", MODELS)
def test_experts_compile(hopper: Hopper, name: str) -> None:
    tokens, experts, top_k, hidden, inner, dtype = MODELS[name]
    one = torch.zeros(1, dtype=dtype)
    gate_up, down = one.expand(experts * 2 * inner, hidden), one.expand(experts * hidden, inner)
    routing = Routing(top_k=top_k, renormalised=name != "qwen2-between")
    layer = TRITON.moe(torch.zeros(experts, hidden, dtype=dtype), gate_up, down, routing)
    with Unread():
        layer(torch.zeros(tokens, hidden, dtype=dtype))
    lists = {"_align"} if tokens <= moe_tiles.routed_tokens(tokens, experts) else {"_count", "_begin", "_place"}
    assert {"_product", "_sum", *lists} <= set(hopper.loaded)
    for kernel in ("_product", *lists):
        assert set(hopper.spilled_bytes(kernel)) == {0}, kernel


def test_biases_clamped_gates_and_groups_compile(hopper: Hopper) -> None:
    experts, hidden, inner, dtype = 32, 2880, 2880, torch.bfloat16
    one = torch.zeros(1, dtype=dtype)
    gate_up, down = one.expand(experts * 2 * inner, hidden), one.expand(experts * hidden, inner)
    biases = ExpertBiases(
        choice=torch.zeros(experts), gate_up=one.expand(experts * 2 * inner), down=one.expand(experts * hidden)
    )
    routing = Routing(top_k=4, renormalised=True, sigmoid=True, groups=8, top_groups=4, group_best=2)
    layer = TRITON.moe(torch.zeros(experts, hidden, dtype=dtype), gate_up, down, routing, biases, "clamped")
    with Unread():
        layer(torch.zeros(2048, hidden, dtype=dtype))
    assert set(hopper.spilled_bytes("_product")) == {0}


def test_experts_without_a_gate_compile(hopper: Hopper) -> None:
    """Of Nemotron 3 Nano."""
    experts, hidden, inner, one = 128, 2688, 1856, torch.zeros(1, dtype=torch.bfloat16)
    up, down = one.expand(experts * inner, hidden), one.expand(experts * hidden, inner)
    routing, biases = Routing(top_k=6, renormalised=True, sigmoid=True), ExpertBiases(choice=torch.zeros(experts))
    layer = TRITON.moe(torch.zeros(experts, hidden, dtype=one.dtype), up, down, routing, biases, "relu2")
    with Unread():
        layer(torch.zeros(8, hidden, dtype=one.dtype))
    assert set(hopper.spilled_bytes("_product")) == {0}


SHORT = {
    "int8": QuantFormat(bits=8),
    "int4": QuantFormat(bits=4),
    "fp8": QuantFormat(bits=8, group=0, wide=True, floating=True),
    "fp8-blocks": QuantFormat(bits=8, group=128, wide=True, floating=True),
    "mxfp4": MXFP4,
    "nvfp4": NVFP4,
}


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("int8", 1), ("int4", 4096), ("fp8", 4096), ("fp8-blocks", 1), ("mxfp4", 1), ("mxfp4", 4096), ("nvfp4", 4096)],
)
def test_experts_of_few_bits_compile(hopper: Hopper, name: str, tokens: int) -> None:
    experts, hidden, inner = 8, 2048, 1408

    def weight(rows: int, columns: int) -> QuantizedWeight:
        """Its first number, everywhere: its memory is never read."""
        one = quantized.empty(SHORT[name], 1, 128, torch.device("cpu"))
        scales = one.scales[:, :1].expand(rows, SHORT[name].groups(columns))
        values = one.values[:, :1].expand(rows, columns * SHORT[name].bits // 8)
        minima = scales if one.minima is not None else None
        units = None if one.units is None else one.units.expand(rows, 1)
        return QuantizedWeight(format=SHORT[name], values=values, scales=scales, minima=minima, units=units)

    router, gate_up, down = (
        torch.zeros(experts, hidden),
        weight(experts * 2 * inner, hidden),
        weight(experts * hidden, inner),
    )
    routing = Routing(top_k=2, renormalised=True)
    TRITON.moe(router.bfloat16(), gate_up, down, routing)(torch.zeros(tokens, hidden, dtype=torch.bfloat16))
    assert set(hopper.spilled_bytes("_product")) == {0}


def test_tiles_of_the_table_fit_into_shared_memory() -> None:
    for (card, element), rows in moe_tiles.TABLE.items():
        for _, tiles in rows:
            stage = (tiles.block_m + tiles.block_n) * tiles.block_k * element
            assert stage * tiles.num_stages <= (SHARED_BYTES if card == "sm_90" else 99 << 10), (card, tiles)


@pytest.mark.parametrize(
    ("card", "pairs", "experts", "outputs", "gated", "want"),
    [
        ("sm_90", 8, 128, 768, True, (16, 32)),  # one token of Qwen3-30B: narrow, so that there are programs enough
        ("sm_90", 2, 8, 14336, True, (16, 64)),
        ("sm_90", 4096, 8, 14336, True, (128, 128)),
        ("sm_90", 4096, 8, 4096, False, (128, 256)),
        ("sm_90", 512, 8, 4096, False, (64, 128)),
        ("sm_86", 4096, 8, 4096, False, (64, 128)),
    ],
)
def test_tiles_follow_the_work(
    card: str, pairs: int, experts: int, outputs: int, gated: bool, want: tuple[int, int]
) -> None:
    found = moe_tiles.tiles(card, 2, pairs, experts, outputs, gated=gated)
    assert (found.block_m, found.block_n) == want
