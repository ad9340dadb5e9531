"""Layers of Triton's table whose weights pass through two buffers give what they gave with weights of their own."""

from dataclasses import replace

import pytest
import torch

from fakes import triton_device
from fakes.overlapping import WeightCopies

DEVICE = triton_device.device()

# ruff: noqa: E402 -- behind the question where it can run
from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.backends import ops_for
from kvasir_runtime.kernels.expert_routing import Routing
from kvasir_runtime.kernels.linear import Linear, Weight, moved
from kvasir_runtime.kernels.quantized import FP8, QuantFormat
from kvasir_runtime.layers.layer_offload import LayerOffload

KINDS = {
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "int8": QuantFormat(bits=8),
    "int4": QuantFormat(bits=4),
    "fp8": FP8,
    "fp8 blocks": replace(FP8, group=128),
}


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        *(("linear", kind) for kind in ("bfloat16", "float32", "int8", "int4", "fp8")),
        *(("gated", kind) for kind in ("bfloat16", "fp8 blocks")),
        ("moe", "bfloat16"),
    ],
)
def test_a_layer_follows_the_weights_in_its_buffer(operation: str, kind: str) -> None:
    ops, generator, of = ops_for(DEVICE), torch.Generator().manual_seed(1), KINDS[kind]
    dtype = of if isinstance(of, torch.dtype) else torch.bfloat16

    def weight(rows: int) -> Weight:
        if isinstance(of, torch.dtype):
            return (torch.randn(rows, 128, generator=generator) / 8).to(DEVICE, of)
        return moved(quantized.drawn(of, rows, 128, generator), DEVICE)

    def product() -> Linear:
        if operation != "moe":
            return ops.linear(weight(128), None) if operation == "linear" else ops.gated(weight(128), None)
        router = torch.randn(4, 128, generator=generator).to(DEVICE, dtype)
        return ops.moe(router, weight(4 * 2 * 128), weight(4 * 128), Routing(top_k=2, renormalised=True))

    products, offload = [product() for _ in range(3)], LayerOffload((0, 1, 2), WeightCopies(), least_bytes=200)
    inputs = [(torch.randn(rows, 128, generator=generator) / 100).to(DEVICE, dtype) for rows in (2, 40)]
    layers = [offload.added(index, one) for index, one in enumerate(products)]
    for x in inputs:
        for index, layer in offload.in_turn(layers):
            assert torch.equal(layer(x), products[index](x))
