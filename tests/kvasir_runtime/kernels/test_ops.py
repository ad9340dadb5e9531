"""Every operation of every table agrees with the reference on all its cases, and the references with their formulas.

Without a card Triton kernels are a table only where TRITON_INTERPRET=1: `test_gpu_interpreted.py` runs this file so.
"""

import copy
import math
import os
from dataclasses import fields, replace
from importlib import import_module

import pytest
import torch
from torch import Tensor

from fakes.cache_layers import FILL, cache_of, layer_of
from kvasir_runtime.kernels import kv_int4, kv_quant
from kvasir_runtime.kernels.act_and_mul import Activation
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.backends import ops_for
from kvasir_runtime.kernels.cpu.ops import CPU, cpu_ops
from kvasir_runtime.kernels.moe import ExpertBiases
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.kernels.quantized import QuantizedWeight, dequantized
from kvasir_runtime.kernels.reference import REFERENCE
from kvasir_runtime.kernels.sample import Draws

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CPP = cpu_ops()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HERE = () if INTERPRETED else (CPU, CPP)
TABLES = list({table.name: table for table in (*HERE, ops_for(DEVICE))}.values())
"""Each once: what an interpreting Triton leaves as it is has been compared without it."""
# Quantizing, whole steps and sampling of rows have tests of their own: cpu/test_quantize.py, runner/test_whole_step.py,
# runner/sampling/test_host_sampler.py, cpu/test_collectives.py.
NOT_COMPARED = (
    *(
        "name",
        "fallback",
        "quantize",
        "decoder_step",
        "row_sampler",
        "set_threads",
        "invariant_dtypes",
        "packs_bfloat16",
        "collectives",
    ),
)
OPERATIONS = [field.name for field in fields(Ops) if field.name not in NOT_COMPARED]
TOLERANCE = {torch.float32: (2e-6, 1e-5), torch.bfloat16: (2e-2, 2e-2), torch.float16: (4e-3, 4e-3)}
FLOAT32_UNIT = 2**-24
"""Largest relative error of one rounding."""
CACHE = {"attention": 1, "write_kv": 2, "split_qkv": 5}
"""Which argument is a layer of the cache: a view of blocks that other layers share."""
IN_PLACE = {"write_kv", "copy_blocks", "split_qkv", "penalties", "bitmask", "append_ids"}
# Seconds each when interpreted; the same paths are taken by smaller tiles in gpu/interpreted/test_attention.py.
MANY_TOKENS = 50
MANY_NUMBERS = 60_000


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_operation_agrees_with_the_reference(table: Ops, operation: str) -> None:
    module = import_module(f"kvasir_runtime.kernels.{operation}")
    cases = list(module.cases(torch.Generator().manual_seed(0)))
    assert cases
    device = torch.device("cpu") if table in (CPU, CPP) else DEVICE
    for case in cases:
        if table in (CPU, CPP) or not INTERPRETED or can_be_interpreted(case):
            wanted, got = outcome(REFERENCE, operation, case), outcome(table, operation, moved(case, device))
            if rounds(table, case):
                products = 2 if operation == "moe" else 1  # one after the other
                atol = 0.015 * products * float(wanted[0].abs().max())
                torch.testing.assert_close(got[0], wanted[0], atol=atol, rtol=0)
            else:
                assert_same(wanted, got, apart=sums_apart(case) if operation == "linear" else None)


def rounds(table: Ops, case: tuple[object, ...]) -> bool:
    """Whether a table rounds more than the result: x to 8 bits on processors, on cards scales that need 32."""
    weights = [arg for arg in case if isinstance(arg, QuantizedWeight)]
    if table.name == CPP.name:
        return bool(weights)
    return table.name.startswith("triton") and any(weight.format.bits == 4 and weight.format.wide for weight in weights)


def can_be_interpreted(case: tuple[object, ...]) -> bool:
    """The interpreter's bfloat16 is wrong without a word."""
    tensors = [arg for arg in case if isinstance(arg, Tensor)]
    if any(isinstance(arg, QuantizedWeight) and math.prod(arg.shape) > MANY_NUMBERS for arg in case):
        return False
    return not any(tensor.dtype == torch.bfloat16 or tensor.shape[0] > MANY_TOKENS for tensor in tensors)


def moved(case: tuple[object, ...], device: torch.device) -> tuple[object, ...]:
    """A copy of the arguments on the device."""

    def move(arg: object) -> object:
        if isinstance(arg, Tensor):
            return arg.to(device)
        if isinstance(arg, AttentionMetadata | QuantizedWeight):
            return arg.moved(device)
        if isinstance(arg, Draws | ExpertBiases):
            names = [field.name for field in fields(arg) if isinstance(getattr(arg, field.name), Tensor)]
            return replace(arg, **{name: getattr(arg, name).to(device) for name in names})
        return arg

    return tuple(move(arg) for arg in case)


def outcome(table: Ops, operation: str, case: tuple[object, ...]) -> list[Tensor]:
    """All tensors that an operation returns or may have changed, on the CPU, from its own copy of the arguments."""
    args = copy.deepcopy(case)
    if operation in CACHE:
        args = tuple(layer_of(arg) if place == CACHE[operation] else arg for place, arg in enumerate(args))  # type: ignore[arg-type]
    if operation in ("linear", "gated", "moe"):
        inputs = 2 if operation == "moe" and isinstance(args[-2], Tensor) else 1  # the router's, and the experts'
        return [getattr(table, operation)(*args[:-inputs])(*args[-inputs:]).cpu()]
    result = getattr(table, operation)(*args)
    if operation == "attention":
        result = result[: sum(case[2].query_lens)]  # rows of padding may be anything
    kept = args[1:] if operation == "split_qkv" else args  # which may consume its first argument
    changed = [arg for arg in kept if isinstance(arg, Tensor)] if operation in IN_PLACE else []
    returned = list(result) if isinstance(result, tuple) else [result]
    return [tensor.cpu() for tensor in (*returned, *changed) if tensor is not None]


def sums_apart(case: tuple[object, ...]) -> Tensor | None:
    """How far two sums of the same k products in float32 may lie apart, each in an order of its own: (tokens, outputs).

    Products of random signs add up to sums that grow as a random walk, and so do the errors of the k roundings: their
    deviation is at most a root of k units of the products' norm (Higham and Mary 2020), of which two sums may take two
    each. None where x is not float32 or the weight is not quantized, so that the table's rounding decides.
    """
    weight, _, x = case
    if not isinstance(weight, QuantizedWeight) or not isinstance(x, Tensor) or x.dtype != torch.float32:
        return None
    norms = (x.double().square() @ dequantized(weight).double().square().T).sqrt()
    return 2 * 2 * math.sqrt(x.shape[1]) * FLOAT32_UNIT * norms


def assert_same(wanted: list[Tensor], got: list[Tensor], apart: Tensor | None = None) -> None:
    """apart: the absolute difference that is allowed, in place of the type's."""
    assert len(wanted) == len(got)
    for want, have in zip(wanted, got, strict=True):
        assert want.shape == have.shape
        assert want.dtype == have.dtype
        if want.dtype == kv_quant.INT4:  # a code at the edge may round either way too
            torch.testing.assert_close(codes(have), codes(want), atol=1, rtol=0)
            torch.testing.assert_close(kv_int4.scales(have), kv_int4.scales(want), atol=0, rtol=2e-2)
        elif want.element_size() == 1:  # a cache in 8 bits: a number at the edge may round either way
            atol, rtol = (8e-2, 2e-2) if want.dtype == torch.int8 else (2e-2, 0.13)
            torch.testing.assert_close(kv_quant.numbers(have), kv_quant.numbers(want), atol=atol, rtol=rtol)
        elif want.is_floating_point():
            atol, rtol = TOLERANCE[want.dtype]
            if apart is None:
                torch.testing.assert_close(have, want, atol=atol, rtol=rtol)
            else:
                assert ((have - want).abs() <= apart + rtol * want.abs()).all()
        else:
            assert want.tolist() == have.tolist()


def codes(rows: Tensor) -> Tensor:
    """Of a cache in 4 bits, as integers that can be subtracted."""
    packed = rows[..., : -kv_int4.SCALE_BYTES].to(torch.int16)
    return torch.stack((packed & 15, packed >> 4), dim=-1)


@pytest.mark.parametrize("operation", ["write_kv", "split_qkv"])
@pytest.mark.parametrize("table", [REFERENCE, *TABLES], ids=lambda table: table.name)
def test_writes_stay_within_their_layer(table: Ops, operation: str) -> None:
    device = DEVICE if table.name.startswith("triton") else torch.device("cpu")
    for case in import_module(f"kvasir_runtime.kernels.{operation}").cases(torch.Generator().manual_seed(0)):
        if INTERPRETED and not can_be_interpreted(case):
            continue
        args = list(moved(copy.deepcopy(case), device))
        cache = cache_of(args[CACHE[operation]])  # type: ignore[arg-type]
        layer_bytes = cache.blocks.shape[1] // 3
        args[CACHE[operation]] = cache.layers[1]
        getattr(table, operation)(*args)
        beside = torch.cat((cache.blocks[:, :layer_bytes], cache.blocks[:, 2 * layer_bytes :]), dim=1)
        assert (beside == FILL).all()


def test_attention_is_its_formula() -> None:
    generator = torch.Generator().manual_seed(1)
    cache = torch.randn(2, 6, 4, 2, 8, generator=generator)
    query = torch.randn(4, 4, 8, generator=generator)
    tables, query_lens, kv_lens = [[5, 0, 2], [3, 3, 3]], (3, 1), (9, 2)
    attn_metadata = AttentionMetadata(query_lens, kv_lens, torch.tensor(tables))
    for window in (0, 4):
        for table in (REFERENCE, CPU, CPP):
            out = table.attention(query, cache, attn_metadata, 0.3, window).view(4, 4, 8)
            token = 0
            for sequence, (num_queries, end) in enumerate(zip(query_lens, kv_lens, strict=True)):
                for position in range(end - num_queries, end):
                    first = max(0, position - window + 1) if window else 0
                    for head in range(4):
                        keys, values = (
                            [cache[i, tables[sequence][j // 4], j % 4, head // 2] for j in range(first, position + 1)]
                            for i in (0, 1)
                        )
                        scores = [0.3 * float(query[token, head] @ key) for key in keys]
                        weights = [math.exp(score) for score in scores]
                        want = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
                        torch.testing.assert_close(out[token, head], want, atol=2e-6, rtol=1e-5)
                    token += 1


def test_rms_norm_is_its_formula() -> None:
    x, residual, weight = [3.0, -4.0], [0.0, 8.0], [2.0, 0.5]
    normed, total = REFERENCE.rms_norm(torch.tensor([x]), torch.tensor([residual]), torch.tensor(weight), 0.5)
    scale = 1 / math.sqrt((9 + 16) / 2 + 0.5)
    assert total.tolist() == [[3.0, 4.0]]
    torch.testing.assert_close(normed, torch.tensor([[3 * scale * 2, 4 * scale * 0.5]]))


def test_rope_turns_by_its_angle() -> None:
    angle = torch.tensor([0.1, 2.0])
    cos, sin = torch.cat((angle.cos(), angle.cos())), torch.cat((-angle.sin(), angle.sin()))
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    for table in (REFERENCE, CPU, CPP):
        out = table.rope(x.view(1, 1, 4), cos.view(1, 1, 4), sin.view(1, 1, 4)).flatten()
        for i in (0, 1):
            turned = complex(x[i], x[i + 2]) * complex(angle[i].cos(), angle[i].sin())
            assert complex(out[i], out[i + 2]) == pytest.approx(turned, abs=1e-6)


def test_a_gate_is_its_formula() -> None:
    half_tanh = [g / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3))) for g in (1.0, -2.0)]
    for table in (REFERENCE, CPU, CPP):
        out = table.act_and_mul(torch.tensor([[1.0, -2.0, 3.0, 5.0]]), "silu")
        torch.testing.assert_close(out, torch.tensor([[3 / (1 + math.exp(-1)), -10 / (1 + math.exp(2))]]))
        out = table.act_and_mul(torch.tensor([[1.0, -2.0, 3.0, 5.0]]), "gelu")
        torch.testing.assert_close(out, torch.tensor([[half_tanh[0] * 3, half_tanh[1] * 5]]))


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_gates_far_from_zero_are_open_or_shut(activation: Activation) -> None:
    gates = torch.tensor([[1e13, 300.0, 90.0, -90.0, -300.0, -1e13]]).repeat(1, 4)  # in whole vectors and behind them
    for table in (REFERENCE, CPU, CPP):
        out = table.act_and_mul(torch.cat((gates, torch.full_like(gates, 2.0)), dim=1), activation)
        torch.testing.assert_close(out, gates.clamp(min=0) * 2)
