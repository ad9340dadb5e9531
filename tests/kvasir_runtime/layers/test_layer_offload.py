"""Layers that pass through two buffers: in which order, and that they compute with what was copied there."""

from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch

from fakes.overlapping import WeightCopies
from kvasir_api.weight_offload import BUFFERS
from kvasir_runtime.kernels import gated, linear, moe, quantized
from kvasir_runtime.kernels.expert_routing import Routing
from kvasir_runtime.kernels.quantized import FP8, QuantFormat
from kvasir_runtime.kernels.reference import REFERENCE
from kvasir_runtime.layers.layer_offload import LayerOffload, replaced, tensors_of

FORMATS = (QuantFormat(bits=8), QuantFormat(bits=4), FP8, replace(FP8, group=128))


@dataclass(frozen=True, slots=True)
class Layer:
    norm: torch.Tensor
    product: object
    name: str = "layer"


def offload(*indices, least_bytes=200):
    copies = WeightCopies()
    return LayerOffload(indices, copies, least_bytes=least_bytes), copies


def layer(number, size=16):
    return Layer(torch.full((4,), float(number)), partial(torch.mul, torch.full((size,), float(number))))


@pytest.mark.parametrize("on_host", [(1, 3, 5), (0, 1, 2, 3, 4, 5), (1, 2, 5), (3, 4, 5)])
def test_every_layer_computes_with_its_own_weights_in_every_pass(on_host):
    streamed, _ = offload(*on_host, least_bytes=64)
    layers = [streamed.added(number, layer(number)) if number in on_host else layer(number) for number in range(6)]
    buffers = {layers[number].product.args[0].untyped_storage().data_ptr() for number in on_host}
    assert len(buffers) == BUFFERS
    assert streamed.host_bytes == len(on_host) * 256
    for _ in range(3):
        given = [(index, one.product(torch.ones(16))[0].item()) for index, one in streamed.in_turn(layers)]
        assert given == [(number, float(number)) for number in range(6)]


def test_a_buffer_is_written_only_when_its_layer_was_computed_and_read_when_it_was_written():
    streamed, copies = offload(1, 3, 5, least_bytes=64)
    layers = [streamed.added(number, layer(number)) if number % 2 else layer(number) for number in range(6)]
    for index, _ in streamed.in_turn(layers):
        copies.log.append(f"layer {index}")
    start = ["follow", "copy", "copy", "layer 0"]
    third = ["hold back", "layer 1", "follow", "copy", "layer 2"]
    assert copies.log == [*start, *third, "hold back", "layer 3", "layer 4", "hold back", "layer 5"]


def test_small_tensors_stay_where_they_are():
    streamed, _ = offload(0)
    before = layer(7, size=100)
    after = streamed.added(0, before)
    assert after.norm is before.norm
    assert after.product.args[0] is not before.product.args[0]
    assert after.name == "layer"


def test_larger_layers_get_larger_buffers():
    streamed, _ = offload(0, 1, 2, 3, least_bytes=64)
    layers = [streamed.added(number, layer(number, size)) for number, size in enumerate((20, 30, 500, 40))]
    for _ in range(2):
        sums = [one.product(torch.ones(1)).sum().item() for _, one in streamed.in_turn(layers)]
        assert sums == [0, 30, 1000, 120]


def test_views_of_one_tensor_stay_views_of_one():
    streamed, copies = offload(0)
    whole = torch.arange(128.0)
    made = streamed.added(0, Layer(whole[64:].view(8, 8).t(), (whole, whole[4:].view(torch.int32))))
    for _ in streamed.in_turn([made]):
        assert torch.equal(made.norm, whole[64:].view(8, 8).t())
        assert torch.equal(made.product[1], whole[4:].view(torch.int32))
    assert copies.log.count("copy") == 1
    assert len({one.untyped_storage().data_ptr() for one in tensors_of(made)}) == 1


def test_what_hides_its_weights_is_refused():
    weight = torch.ones(3)
    with pytest.raises(TypeError, match="keeps weights where they cannot be streamed from"):
        replaced(Layer(weight, lambda x: x * weight), lambda tensor: tensor)


def test_all_copies_can_be_measured():
    streamed, copies = offload(0, 1, 2, least_bytes=64)
    for number in range(3):
        streamed.added(number, layer(number))
    before, behind = streamed.copy_all()
    assert behind.has_passed()
    assert behind.seconds_since(before) > 0
    assert copies.log.count("copy") == 3


KINDS = {
    **{name: getattr(torch, name) for name in ("bfloat16", "float16", "float32")},
    **{f"{one.name} in groups of {one.group}": one for one in FORMATS},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("build", [linear.reference, gated.reference, linear.unpacked], ids=lambda one: one.__name__)
def test_a_product_follows_the_weights_in_its_buffer(kind, build):
    generator, of = torch.Generator().manual_seed(1), KINDS[kind]
    dtype = of if isinstance(of, torch.dtype) else torch.float32
    drawn = [
        torch.randn(64, 128, generator=generator).to(dtype)
        if isinstance(of, torch.dtype)
        else quantized.drawn(of, 64, 128, generator)
        for _ in range(3)
    ]
    streamed, _ = offload(0, 1, 2, least_bytes=64)
    products = [build(weight, torch.ones(64, dtype=dtype)) for weight in drawn]
    x = torch.linspace(-1, 1, 3 * 128).view(3, 128).to(dtype)
    layers = [streamed.added(index, product) for index, product in enumerate(products)]
    for index, product in streamed.in_turn(layers):
        assert torch.equal(product(x), products[index](x))


def test_experts_follow_the_weights_in_their_buffer():
    generator = torch.Generator().manual_seed(1)
    streamed, _ = offload(0, 1, 2, least_bytes=64)
    shapes = ((4, 8), (4 * 2 * 6, 8), (4 * 8, 6))
    routing = Routing(top_k=2, renormalised=True)
    built = [moe.reference(*(torch.randn(one, generator=generator) for one in shapes), routing) for _ in range(3)]
    layers = [streamed.added(index, one) for index, one in enumerate(built)]
    x = torch.randn(5, 8, generator=generator)
    for index, experts in streamed.in_turn(layers):
        assert torch.equal(experts(x), built[index](x))
    assert REFERENCE.moe is moe.reference
