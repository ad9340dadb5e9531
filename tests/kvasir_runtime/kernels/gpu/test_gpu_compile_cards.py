"""Attention and products compile for every kind of card, with its own launch parameters where it has some.

They fit its shared memory; what does not fit its registers is named.
"""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from fakes.cache_layers import layer_of
from fakes.hopper import CARDS, Hopper
from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.gpu import attention, attention_tiles, dequant_gemm, group_scaled_gemm, linear, small_gemm
from kvasir_runtime.kernels.gpu.tuning_table import TUNED_GPUS, GpuTuning
from kvasir_runtime.kernels.quantized import FP8, MXFP4, NVFP4, QuantFormat

BFLOAT16 = torch.bfloat16
FORMATS = {
    "int8": QuantFormat(bits=8),
    "int4": QuantFormat(bits=4),
    "fp8-blocks": replace(FP8, group=128),
    "mxfp4": MXFP4,
    "nvfp4": NVFP4,
}
SPILLED = {("A100", 700): 24, ("B200", 700): 8}
"""Bytes of a thread's registers that do not fit, by card and tokens of a prompt: launch parameters are of Hopper's."""
OTHERS = [name for name in CARDS if name != "H200"]


def tuning(card: str) -> GpuTuning:
    return next((each for each in TUNED_GPUS if each.name == card), TUNED_GPUS[0])


@pytest.mark.parametrize(
    ("card", "query_lens"), [*((name, (700, 1)) for name in OTHERS), ("B200", (1,) * 4)], indirect=["card"]
)
def test_attention_compiles(request: pytest.FixtureRequest, card: Hopper, query_lens: tuple[int, ...]) -> None:
    tables = torch.zeros(len(query_lens), 64, dtype=torch.int64)
    metadata = AttentionMetadata(query_lens, (900,) * len(query_lens), tables)
    cache = layer_of(torch.zeros(2, 2, 16, 8, 128, dtype=BFLOAT16))
    query = torch.zeros(sum(query_lens), 32, 128, dtype=BFLOAT16)
    name = request.node.callspec.params["card"]
    chosen = attention_tiles.choose(name, 128, 2, max(query_lens) * 4)
    attention.attend(query, cache, metadata, 0.1, 0, 0.0, None, chosen, 132)
    assert card.spilled_bytes("attend") == [SPILLED.get((name, query_lens[0]), 0)]


@pytest.mark.parametrize("card", CARDS, indirect=True)
def test_products_with_norms_in_front_compile(request: pytest.FixtureRequest, card: Hopper) -> None:
    """Of as many tokens as a launch takes, which has the least room: two registers too little on an L40S."""
    table = tuning(request.node.callspec.params["card"])
    layer = linear.gated(torch.empty(28672, 4096, dtype=BFLOAT16), None)
    assert isinstance(layer, linear.Streamed)
    product = table.product("bits16", 14336)
    shape = replace(layer.plan.shape, step_bytes=2 * product.columns)
    layer = replace(layer, plan=replace(layer.plan, product=product, shape=shape, shared_bytes=table.shared_bytes))
    x = torch.empty(64, 4096, dtype=BFLOAT16)
    linear.few(layer, x, small_gemm.norm_before(x, x, torch.empty(4096, dtype=BFLOAT16), 1e-5))
    assert card.spilled_bytes("_stream") == [8 if table.name == "L40S" else 0]


@pytest.mark.parametrize(
    ("card", "kind"), [*((name, "int4") for name in OTHERS), *(("H200", name) for name in FORMATS)], indirect=["card"]
)
def test_products_that_unpack_their_tiles_compile(request: pytest.FixtureRequest, card: Hopper, kind: str) -> None:
    weight = quantized.empty(FORMATS[kind], 4096, 1024, torch.device("cpu"))
    layer = linear.build(weight.each(torch.Tensor.zero_), None)
    assert isinstance(layer, group_scaled_gemm.GroupScaledLinear)
    tile = tuning(request.node.callspec.params["card"]).dequant_tile(4096, 512)
    x = torch.empty(512, 1024, dtype=BFLOAT16)
    sizes = group_scaled_gemm._sizes(layer.kind)
    dequant_gemm.product(x, layer.values, layer.words, layer.units, None, tile, sizes)
    assert card.spilled_bytes("_multiply") == [0]
