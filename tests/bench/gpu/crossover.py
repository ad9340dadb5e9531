"""From how many tokens on a weight in 16 bits is quicker than one of few: the same product in each way there is.

Ours chooses among launches for few tokens, tiles that a program unpacks itself, and the weight unpacked for the
vendor's library; here each is measured beside what is served, where the device has it.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

import torch
from torch import Tensor

from bench.gpu import products
from bench.gpu.book import Cell, failed, measured, skipped
from bench.gpu.section import NO_TIME, Context
from bench.gpu.timing import seconds
from kvasir_runtime.kernels.backends import ops_for
from kvasir_runtime.kernels.gpu import group_scaled_gemm
from kvasir_runtime.kernels.linear import Linear
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.kernels.quantized import QuantizedWeight

LEAST_S: Final = 3.0
KINDS: Final = ("int4", "int8")
SERVED: Final = "as served"
COPIES_BYTES: Final = 256 << 20


def ways(layer: Linear) -> Mapping[str, Linear]:
    """The product as it is served, and in the ways from which that is chosen for many tokens."""
    found: dict[str, Linear] = {SERVED: layer}
    if isinstance(layer, group_scaled_gemm.GroupScaledLinear):
        found["unpacked in tiles"] = partial(group_scaled_gemm.several, layer)
        found["unpacked whole"] = partial(group_scaled_gemm.many, layer)
    return found


def calls(
    rows: int, columns: int, kind: str, ops: Ops, device: torch.device, dtype: torch.dtype, copies: int
) -> Mapping[str, list[Linear]]:
    """Of each way so many layers; kind: of products.FORMATS, or "" for 16 bits."""
    made: dict[str, list[Linear]] = {}
    for _ in range(copies):
        weight: Tensor | QuantizedWeight = torch.randn(rows, columns, device=device).to(dtype) / 64
        if kind:
            weight = products.random(products.FORMATS[kind], rows, columns, device)
        for name, way in ways(ops.linear(weight, None)).items():
            made.setdefault(name, []).append(way)
    return made


def first_quicker(tokens: tuple[int, ...], ours: Mapping[int, float], other: Mapping[int, float]) -> int:
    """The least tokens from which on the other is always quicker; 0 where it is not even with the most."""
    known = [count for count in tokens if count in ours and count in other]
    behind = [count for count in known if ours[count] <= other[count]]
    later = [count for count in known if count > max(behind, default=0)]
    return min(later, default=0)


def cells(context: Context) -> Iterator[Cell]:
    """Every way and number of tokens, and of each kind where 16 bits become quicker."""
    shape, device, tokens = context.sizes.shape, context.torch_device, context.sizes.crossover
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    rows, columns = shape.hidden_size, shape.intermediate_size
    copies = 1 + COPIES_BYTES // (rows * columns * dtype.itemsize) if device.type == "cuda" else 1
    plain: dict[int, float] = {}
    for kind in ("", *KINDS):
        medians: dict[int, float] = {}
        for name, layers in calls(rows, columns, kind, ops_for(device), device, dtype, copies).items():
            for count in tokens:
                said = f"down, {kind or '16 bits'}, {count}" + (f", {name}" if kind else "")
                cell = _timed(context, said, layers, torch.randn(count, columns, device=device).to(dtype))
                if name == SERVED and cell.status == "measured":
                    (medians if kind else plain)[count] = cell.median
                yield cell
        if kind and medians:
            found = first_quicker(tokens, medians, plain)
            note = "" if found else f"not up to {max(tokens)}"
            yield measured("crossover", f"{kind}, 16 bits are quicker from", [float(found)], unit="tokens", note=note)


def _timed(context: Context, name: str, layers: list[Linear], x: Tensor) -> Cell:
    if context.left_s < (LEAST_S if context.sizes.name == "full" else 1.0):
        return skipped("crossover", name, NO_TIME)
    each: list[Callable[[], object]] = [partial(layer, x) for layer in layers]
    try:
        return measured("crossover", name, seconds(each, x.device, 20 if x.device.type == "cuda" else 2))
    except Exception as error:  # noqa: BLE001 -- one kernel must not cost the others
        return failed("crossover", name, str(error))
