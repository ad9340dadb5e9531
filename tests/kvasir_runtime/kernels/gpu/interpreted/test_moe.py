"""Experts by Triton: routes and lists against those of torch, products of all sizes of blocks against the reference."""

import pytest
import torch

from fakes import triton_device

DEVICE = triton_device.device()

# ruff: noqa: E402 -- behind the question where it can run

from kvasir_runtime.kernels import moe as operation
from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.expert_routing import Routing, shares
from kvasir_runtime.kernels.gpu import moe, moe_align, moe_tiles
from kvasir_runtime.kernels.quantized import MXFP4, NVFP4, QuantFormat


def routed(logits: torch.Tensor, top_k: int, renormalised: bool, block_m: int) -> list[list[tuple[int, int]]]:
    """Of each expert the (token, n-th of its experts) that the lists give it, after a look at every block and share."""
    tokens, experts = logits.shape
    given, routing = logits.to(DEVICE), Routing(top_k=top_k, renormalised=renormalised)
    lists = moe_align.align(given, given, routing, block_m)
    chosen, share = shares(logits, logits, routing)
    torch.testing.assert_close(lists.shares.cpu().view(tokens, top_k), share)
    found: list[list[tuple[int, int]]] = [[] for _ in range(experts)]
    assert [tensor.storage_offset() % 4 for tensor in (lists.pairs, lists.experts, lists.rows)] == [0, 0, 0]
    pairs = lists.pairs.cpu().view(-1, block_m)
    assert len(pairs) == moe_tiles.most_blocks(tokens * top_k, experts, block_m) == lists.num_blocks
    for block, expert, rows in zip(pairs.tolist(), lists.experts.tolist(), lists.rows.tolist(), strict=True):
        for pair in block[: max(rows, 0)]:
            found[expert].append(divmod(pair, top_k))
            assert int(chosen[pair // top_k, pair % top_k]) == expert
    return found


@pytest.mark.parametrize(
    ("tokens", "experts", "top_k", "block_m"),
    [
        (1, 8, 2, 16),
        (3, 5, 1, 16),
        (60, 8, 8, 16),
        (33, 60, 4, 16),
        (300, 512, 2, 16),
        (300, 128, 8, 16),
        (600, 3, 2, 64),
    ],
)
@pytest.mark.parametrize("renormalised", [False, True])
def test_lists_have_every_pair_once_and_in_order(
    tokens: int, experts: int, top_k: int, block_m: int, renormalised: bool
) -> None:
    logits = torch.randn(tokens, experts, generator=torch.Generator().manual_seed(tokens))
    found = routed(logits, top_k, renormalised, block_m)
    chosen = shares(logits, logits, Routing(top_k=top_k, renormalised=renormalised))[0]
    assert found == [[tuple(at) for at in (chosen == expert).nonzero().tolist()] for expert in range(experts)]


def test_of_equals_the_lower_expert_is_taken() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 1.0, 3.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    assert routed(logits, 2, True, 2) == [[(1, 0)], [(0, 0), (1, 1)], [(0, 1)], [], []]


@pytest.mark.parametrize("odd", [float("nan"), float("-inf")])
def test_what_is_no_number_harms_no_other_token(odd: float) -> None:
    logits = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    logits[2] = odd
    given, routing = logits.to(DEVICE), Routing(top_k=2, renormalised=True)
    lists = moe_align.align(given, given, routing, 4)
    assert sum(max(rows, 0) for rows in lists.rows.tolist()) == 10
    kept = [0, 1, 3, 4]
    wanted = shares(logits[kept], logits[kept], routing)[1]
    torch.testing.assert_close(lists.shares.cpu().view(5, 2)[kept], wanted)


SIZES = {
    "one": (1, 8, 2, 64, 96),
    "some": (9, 4, 2, 96, 80),
    "64-a-block": (70, 2, 1, 64, 40),
    "128-a-block": (300, 2, 2, 32, 16),
    "many-experts": (70, 128, 2, 32, 16),
}
HALVES = ("some", "64-a-block")


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.float32) for name in SIZES), *((name, torch.float16) for name in HALVES)]
)
def test_experts_are_the_references(name: str, dtype: torch.dtype) -> None:
    tokens, experts, top_k, hidden, inner = SIZES[name]
    generator = torch.Generator().manual_seed(2)
    router, gate_up, down = operation._random(generator, experts, hidden, inner)
    routing = Routing(top_k=top_k, renormalised=True)
    x = (
        operation.sure(router, tokens, routing, generator)
        if experts < 100
        else torch.randn(tokens, hidden, generator=generator)
    )
    args = [tensor.to(dtype) for tensor in (router, gate_up, down)]
    want = operation.reference(*args, routing)(x.to(dtype))
    have = moe.build(*(arg.to(DEVICE) for arg in args), routing)(x.to(dtype).to(DEVICE)).cpu()
    atol = 1e-5 if dtype == torch.float32 else 6e-3
    torch.testing.assert_close(have, want, atol=atol, rtol=1e-5 if dtype == torch.float32 else 4e-3)


SHORT = {
    "int8": QuantFormat(bits=8),
    "int4": QuantFormat(bits=4),
    "int4-wide": QuantFormat(bits=4, wide=True),
    "fp8": QuantFormat(bits=8, group=0, wide=True, floating=True),
    "fp8-blocks": QuantFormat(bits=8, group=128, wide=True, floating=True),
    "mxfp4": MXFP4,
    "nvfp4": NVFP4,
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in SHORT), *((name, torch.float16) for name in ("int4", "fp8", "nvfp4"))],
)
def test_experts_of_few_bits_are_the_references(name: str, dtype: torch.dtype) -> None:
    experts, tokens, hidden, inner = 4, 9, 384 if name == "fp8-blocks" else 160, 128
    generator = torch.Generator().manual_seed(3)
    router = operation._random(generator, experts, hidden, inner)[0]
    gate_up, down = (
        quantized.drawn(SHORT[name], rows, columns, generator)
        for rows, columns in ((experts * 2 * inner, hidden), (experts * hidden, inner))
    )
    routing = Routing(top_k=2, renormalised=True)
    x = operation.sure(router, tokens, routing, generator).to(dtype)
    want = operation.reference(router.to(dtype), gate_up, down, routing)(x)
    layer = moe.build(router.to(dtype).to(DEVICE), gate_up.moved(DEVICE), down.moved(DEVICE), routing)
    most = float(want.abs().max())
    torch.testing.assert_close(
        layer(x.to(DEVICE)).cpu(), want, atol=most * (1e-5 if dtype == torch.float32 else 4e-3), rtol=0
    )


@pytest.mark.parametrize("exponent", [-60, 30])
def test_scales_of_mxfp4_that_float16_does_not_hold_change_nothing(exponent: int) -> None:
    """They are powers of two: with a unit of each row the other way the numbers are the same."""
    experts, tokens, hidden, inner = 2, 3, 64, 64
    generator = torch.Generator().manual_seed(4)
    router = operation._random(generator, experts, hidden, inner)[0]
    gate_up = quantized.drawn(MXFP4, experts * 2 * inner, hidden, generator)
    down = quantized.drawn(MXFP4, experts * hidden, inner, generator)
    routing = Routing(top_k=2, renormalised=True)
    x = operation.sure(router, tokens, routing, generator).half().to(DEVICE)
    router = router.half().to(DEVICE)
    want = moe.build(router, gate_up.moved(DEVICE), down.moved(DEVICE), routing)(x)
    for weight in (gate_up, down):
        weight.scales.view(torch.uint8).add_(exponent)
        assert weight.units is not None
        weight.units.mul_(2.0**-exponent)
    assert torch.equal(moe.build(router, gate_up.moved(DEVICE), down.moved(DEVICE), routing)(x), want)
    assert want.isfinite().all()
    assert want.any()


def test_nothing_is_computed_for_no_tokens() -> None:
    router, gate_up, down = operation._random(torch.Generator(), 4, 16, 8)
    layer = moe.build(router.to(DEVICE), gate_up.to(DEVICE), down.to(DEVICE), Routing(top_k=2, renormalised=True))
    assert layer(torch.empty(0, 16, device=DEVICE)).shape == (0, 16)
