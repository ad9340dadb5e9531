"""Products with few tokens: every kind of weight, splits, gates, odd edges; and what takes many tokens."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from fakes import triton_device
from fakes.e2m1_checkpoints import WORTH

DEVICE = triton_device.device()

# ruff: noqa: E402 -- behind the question where it can run
from kvasir_runtime.kernels import gated as gated_operation
from kvasir_runtime.kernels import linear as operation
from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.gpu import fp8, group_scaled_gemm, linear, small_gemm
from kvasir_runtime.kernels.gpu.group_scaled_gemm import GroupScaledLinear
from kvasir_runtime.kernels.gpu.linear import Streamed
from kvasir_runtime.kernels.gpu.tuning_table import GemmTile, GemmTuning
from kvasir_runtime.kernels.linear import Weight
from kvasir_runtime.kernels.quantized import FP8, MXFP4, NVFP4, QuantFormat, QuantizedWeight

FORMATS = {
    "int8": QuantFormat(bits=8),
    "int4": QuantFormat(bits=4),
    "int4 wide": QuantFormat(bits=4, wide=True),
    "int8 of 128": QuantFormat(bits=8, group=128),
    "fp8": FP8,
    "fp8 blocks": replace(FP8, group=128),
    "mxfp4": MXFP4,
    "nvfp4": NVFP4,
}
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE.type == "cuda" else [])]


def made(kind: str, rows: int, columns: int, dtype: torch.dtype) -> Weight:
    generator = torch.Generator().manual_seed(rows + columns)
    if kind == "plain":
        return (torch.randn(rows, columns, generator=generator) / 8).to(dtype)
    weight = quantized.drawn(FORMATS[kind], rows, columns, generator)
    if weight.minima is not None:  # of a size that float16 holds: the kernel rounds others to it
        weight.scales.copy_(weight.scales.half())
        weight.minima.copy_(weight.minima.half())
    return weight


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def moved(weight: Weight) -> Weight:
    return weight.to(DEVICE) if isinstance(weight, Tensor) else weight.moved(DEVICE)


def tiled(layer: Streamed | GroupScaledLinear, splits: int) -> Streamed | GroupScaledLinear:
    """The layer with the smallest tiles, and so many programs to each: paths of large sizes with few programs."""
    tiles = {64: GemmTile(rows=16, num_warps=2, shared_bytes=1 << 16)}
    product = GemmTuning(columns=layer.plan.product.columns, programs=1, tiles=tiles)
    arrived = torch.zeros(-(-layer.plan.shape.outputs // 16), dtype=torch.int32, device=DEVICE)
    return replace(layer, plan=replace(layer.plan, product=product, splits=splits, arrived=arrived))


def run(layer: Streamed | GroupScaledLinear, x: Tensor) -> Tensor:
    few: Callable[..., Tensor] = linear.few if isinstance(layer, Streamed) else group_scaled_gemm.few
    return few(layer, x.to(DEVICE)).cpu()


def close(have: Tensor, want: Tensor) -> None:
    tolerance = TOLERANCE[want.dtype]
    torch.testing.assert_close(have, want, rtol=5 * tolerance, atol=tolerance * float(want.abs().max()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["plain", *FORMATS])
def test_few_tokens_agree_with_the_reference(kind: str, dtype: torch.dtype) -> None:
    rows, columns = 80, 384 if kind in ("fp8 blocks", "int8 of 128") else 352
    weight, bias = made(kind, rows, columns, torch.float16), normal(rows).to(dtype)
    layer = linear.build(moved(weight), bias.to(DEVICE))
    assert isinstance(layer, Streamed | GroupScaledLinear)
    if isinstance(layer, Streamed) and isinstance(weight, Tensor):
        weight = weight.to(dtype)
        layer = replace(layer, weight=moved(weight))
    for tokens, splits in ((1, 1), (17, 4)):
        layer = tiled(layer, splits)
        x = normal(tokens, columns).to(dtype)
        close(run(layer, x), operation.reference(weight, bias)(x))
        assert not layer.plan.arrived.any(), "the next launch finds its counters as this one did"


@pytest.mark.parametrize("kind", ["plain", *FORMATS])
def test_gates_agree_with_the_reference(kind: str) -> None:
    dtype = DTYPES[-1]
    weight, bias, x = made(kind, 128, 256, dtype), normal(128).to(dtype), normal(3, 256).to(dtype)
    layer = linear.gated(moved(weight), bias.to(DEVICE))
    assert isinstance(layer, Streamed | GroupScaledLinear)
    close(run(tiled(layer, 2), x), gated_operation.reference(weight, bias)(x))


@pytest.mark.parametrize("kind", FORMATS)
def test_many_tokens_agree_with_the_reference(kind: str) -> None:
    weight, bias, x = made(kind, 128, 256, torch.float16), normal(128), normal(200, 256)
    for build, module in ((linear.build, operation), (linear.gated, gated_operation)):
        for dtype in DTYPES:
            layer, given = build(moved(weight), bias.to(dtype).to(DEVICE)), x.to(dtype)
            want = module.reference(weight, bias.to(dtype))(given)
            product = partial(group_scaled_gemm.many, layer) if isinstance(layer, GroupScaledLinear) else layer
            have = product(given.to(DEVICE)).cpu()
            if kind == "fp8":  # rounds x as well: three bits of mantissa, so a sixteenth at most, twice behind a gate
                assert float((have - want).float().norm() / want.float().norm()) < 0.08
            else:
                close(have, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["int8", "int4", "fp8 blocks", "mxfp4", "nvfp4"])
def test_some_hundred_tokens_unpack_what_they_multiply(kind: str, dtype: torch.dtype) -> None:
    """As in float64; weights are rounded to x's type once."""
    rows, columns = 80, 384 if kind == "fp8 blocks" else 352
    weight, bias, x = made(kind, rows, columns, torch.float16), normal(rows).to(dtype), normal(70, columns).to(dtype)
    layer = linear.build(moved(weight), bias.to(DEVICE))
    assert isinstance(layer, GroupScaledLinear)
    assert isinstance(weight, QuantizedWeight)
    want = x.double() @ quantized.dequantized(weight).to(dtype).double().T + bias.double()
    have = group_scaled_gemm.several(layer, x.to(DEVICE)).cpu().double()
    assert float((have - want).norm() / want.norm()) < {torch.float32: 1e-6, torch.float16: 5e-4}.get(dtype, 4e-3)


@pytest.mark.parametrize(("tokens", "passes"), [(64, 1), (65, 2), (192, 3), (193, 0), (321, 0)])
def test_some_tokens_more_are_several_launches(tokens: int, passes: int) -> None:
    weight, x = made("int8", 64, 64, torch.float16), normal(tokens, 64).half()
    layer = linear.build(moved(weight), None)
    assert isinstance(layer, GroupScaledLinear)
    have = layer(x.to(DEVICE))
    parts = (
        [group_scaled_gemm.few(layer, part) for part in x.to(DEVICE).split(64)]
        if passes
        else [(group_scaled_gemm.several if tokens < 321 else group_scaled_gemm.many)(layer, x.to(DEVICE))]
    )
    assert len(parts) == max(passes, 1)
    assert torch.equal(have, torch.cat(parts))
    close(have.cpu(), operation.reference(weight, None)(x))


def test_scales_that_float16_does_not_hold_are_rounded_to_it() -> None:
    weight, x = quantized.drawn(FORMATS["int4 wide"], 64, 128, torch.Generator().manual_seed(1)), normal(2, 128)
    weight.scales.mul_(1e-6)
    assert weight.minima is not None
    weight.minima.mul_(1e-6)
    layer = linear.build(moved(weight), None)
    assert isinstance(layer, GroupScaledLinear)
    want = operation.reference(weight, None)(x)
    assert float((run(layer, x) - want).norm() / want.norm()) < 2**-10


@pytest.mark.parametrize("kind", ["mxfp4", "nvfp4"])
def test_every_number_of_e2m1_is_exact_with_every_scale(kind: str) -> None:
    """As in float64, where it is unpacked and where it is multiplied."""
    format_, codes = FORMATS[kind], torch.arange(256, dtype=torch.uint8)
    scales = torch.arange(112, 144) if kind == "mxfp4" else torch.arange(127)
    scales = scales.repeat(-(-128 // len(scales)))[:128, None].to(torch.uint8)
    columns = 512
    weight = QuantizedWeight(
        format=format_,
        values=codes.expand(128, -1).contiguous(),
        scales=scales.expand(-1, columns // format_.group).contiguous().view(format_.scale_dtype),
        minima=None,
        units=torch.exp2(-torch.arange(128.0)[:, None] % 7),
    )
    want = numbers(weight.values).double() * scales.view(format_.scale_dtype).double() * weight.units.double() * 2
    layer = linear.build(moved(weight), None)
    assert isinstance(layer, GroupScaledLinear)
    assert torch.equal(group_scaled_gemm.unpacked(layer, 0, 128, torch.float32).cpu().double(), want)
    x = torch.eye(columns)[:: columns // 64]
    assert torch.equal(run(layer, x).double(), want[:, :: columns // 64].T)


def numbers(values: Tensor) -> Tensor:
    pairs = torch.stack((values & 15, values >> 4), dim=2).flatten(1)
    return WORTH[pairs.long()]


def test_rows_are_rounded_to_e4m3_by_their_largest_value() -> None:
    x = normal(5, 300) * torch.tensor([[1.0], [1e-4], [300.0], [0.0], [1.0]])
    x[4, 7] = 1000.0
    x[0, :260] = torch.linspace(-448, 448, 260)  # all of the range, ties too
    x[0, 260:] *= 2**-8
    for dtype in DTYPES:
        values, steps = fp8.rounded(x.to(dtype).to(DEVICE))
        wide = x.to(dtype).float()
        most = wide.abs().amax(dim=1, keepdim=True)
        torch.testing.assert_close(steps.cpu(), most / 448)
        want = (wide * torch.where(most > 0, 448 / most, 0.0)).clamp(-448, 448).to(torch.float8_e4m3fn)
        assert torch.equal(values.cpu().float(), want.float())


@pytest.mark.parametrize("kind", ["plain", "fp8", "int4"])
def test_sums_are_made_of_the_same_parts_whatever_the_number_of_tokens(kind: str) -> None:
    layer = linear.build(moved(made(kind, 64, 1024, torch.float16)), None)
    assert isinstance(layer, Streamed | GroupScaledLinear)
    assert layer.plan.splits > 1
    x = normal(64, 1024).half().to(DEVICE)
    whole = layer(x)
    for tokens in (1, 17):
        found = layer(x[:tokens])
        if DEVICE.type == "cuda":
            assert torch.equal(found, whole[:tokens])
        else:  # numpy sums a matrix in another order than a vector
            torch.testing.assert_close(found, whole[:tokens], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("kind", "rows", "columns"), [("plain", 48, 64), ("plain", 128, 40), ("int8", 33, 96), ("fp8", 72, 64)]
)
def test_odd_shapes_are_left_to_torch(kind: str, rows: int, columns: int) -> None:
    weight, x = made(kind, rows, columns, torch.float16), normal(3, columns).half()
    layer = linear.build(moved(weight), None)
    assert not isinstance(layer, Streamed | GroupScaledLinear)
    close(layer(x.to(DEVICE)).cpu(), operation.reference(weight, None)(x))


@pytest.mark.parametrize(("gated", "splits", "added"), [(True, 1, True), (True, 4, True), (False, 4, False)])
def test_a_norm_in_front_is_part_of_the_product(gated: bool, splits: int, added: bool) -> None:
    """As in float64; the sum of x and residual is that of the norm, and one program of each tile keeps it."""
    weight, bias, columns = normal(128, 352) / 8, normal(128), 352
    built = (linear.gated if gated else linear.build)(moved(weight.half()), bias.to(DEVICE))
    assert isinstance(built, Streamed)
    layer = tiled(replace(built, weight=moved(weight)), splits)
    x, norm = 30 * normal(17, columns), 1 + normal(columns) / 4
    residual = normal(17, columns).flip(0) if added else None
    before = small_gemm.norm_before(
        x.to(DEVICE), None if residual is None else residual.to(DEVICE), norm.to(DEVICE), 1e-5
    )
    assert isinstance(layer, Streamed)
    have = linear.few(layer, x.to(DEVICE), before).cpu()
    total = x if residual is None else x + residual
    assert torch.equal(before.total.cpu(), total)
    wide = total.double() * torch.rsqrt(total.double().square().mean(dim=1, keepdim=True) + 1e-5) * norm.double()
    want = wide @ weight.double().T + bias.double()
    if gated:
        gate, up = want.chunk(2, dim=1)
        want = torch.nn.functional.silu(gate) * up
    assert float((have - want).norm() / want.norm()) < 1e-6
    assert not layer.plan.arrived.any()


@pytest.mark.parametrize(
    ("kind", "dtype", "tokens"),
    [
        ("plain", torch.float16, 1),
        ("plain", torch.float32, 1),
        ("plain", torch.bfloat16, 65),
        ("fp8", torch.bfloat16, 1),
    ],
)
def test_a_norm_is_apart_where_the_product_does_not_take_it(kind: str, dtype: torch.dtype, tokens: int) -> None:
    layer = linear.build(moved(made(kind, 64, 64, torch.bfloat16)), None)
    assert isinstance(layer, operation.NormedLinear)
    x, norm = torch.ones(tokens, 64, dtype=dtype, device=DEVICE), torch.ones(64, device=DEVICE)
    assert layer.normed(x, None, norm, 1e-5) is None
