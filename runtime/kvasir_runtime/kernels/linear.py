"""A matrix product with a weight that never changes: built once from it, then called every step.

    for t, o in tokens, range(out_features):
        out[t, o] = bias[o] + sum(x[t, i] * weight[o, i] for i)

weight: (out_features, in_features), or Quantized (see there: then x's type is the compute type, and it may be bfloat16
or float32); bias: (out_features,) or None, weight's dtype
x: (tokens, in_features), weight's dtype, contiguous, at least one token; out: (tokens, out_features)
Sums in float32; one rounding of the result in 16-bit types. With a Quantized a table may round x to 8 bits too, each
group of it by its own largest value, which changes it by at most 1/254 of that, or where numbers are e4m3 and tokens
many to e4m3, each token by its own largest, which changes a number by at most a sixteenth of itself; and wide scales to
float16, relative to the row's largest. The builder may repack the weight: the caller should drop its own reference.

On a CPU oneDNN's blocked layout is 1.4-1.9 times as fast as the plain one at 1-8 tokens in bfloat16 (weights stream at
20-25 instead of 10-16 GB/s of about 30) and 1.3 times at 32.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.quantized import QuantizedWeight

Linear = Callable[[Tensor], Tensor]
Weight = Tensor | QuantizedWeight
Build = Callable[[Weight, Tensor | None], Linear]


@runtime_checkable
class RowLookup(Protocol):
    """A linear layer that may return rows of its weight."""

    @property
    def gives_rows(self) -> bool:
        """Whether `rows` can."""
        ...

    def __call__(self, x: Tensor) -> Tensor: ...

    def rows(self, ids: Tensor) -> Tensor:
        """(count, in_features) of ids (count,) int64, exactly."""
        ...


@runtime_checkable
class NormedLinear(Protocol):
    """A linear layer that may compute the norm before it as a part of the product."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def normed(self, x: Tensor, residual: Tensor | None, norm: Tensor, eps: float) -> tuple[Tensor, Tensor] | None:
        """The product of what kernels.rms_norm gives, and the sum; None where it does not take this x.

        norm: (in_features,). Numbers are rounded before they are divided by the root of the mean square, in place of
        behind it: once in either case.
        """
        ...


def reference(weight: Weight, bias: Tensor | None) -> Linear:
    """The product with the weight as it is."""
    if isinstance(weight, QuantizedWeight):
        return quantized.reference(weight, bias)
    return functools.partial(F.linear, weight=weight, bias=bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReorderedColumns:
    """A product whose weight's columns have an order of their own: x is brought into it first."""

    order: Tensor
    product: Linear

    def __call__(self, x: Tensor) -> Tensor:
        """As the product."""
        return self.product(x.index_select(1, self.order))


def reordering(build: Build) -> Build:
    """The builder for weights with an order of columns too, of one for weights without."""

    def built(weight: Weight, bias: Tensor | None) -> Linear:
        if not isinstance(weight, QuantizedWeight) or weight.order is None:
            return build(weight, bias)
        return ReorderedColumns(order=weight.order, product=build(weight.in_order(), bias))

    return built


def moved(weight: Weight, device: torch.device) -> Weight:
    """The same on a device."""
    return weight.moved(device) if isinstance(weight, QuantizedWeight) else weight.to(device)


def unpacked(weight: Weight, bias: Tensor | None) -> Linear:
    """The product by torch alone, a quantized weight in x's own type: for devices whose vendor's library is quick."""
    return quantized.plain(weight, bias) if isinstance(weight, QuantizedWeight) else reference(weight, bias)


def cpu(weight: Weight, bias: Tensor | None) -> Linear:
    """The product with the weight in oneDNN's own layout, where this build of torch and this CPU have it.

    In float32 a row has the same bits in every batch.
    """
    if isinstance(weight, QuantizedWeight):
        return quantized.plain(weight, bias, lambda x, tile: _lone_row_twice(lambda rows: product(rows, tile), x))
    if not packs(weight.dtype):
        return reference(weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)  # noqa: SLF001 -- torch has no public name
    pointwise = torch.ops.mkldnn._linear_pointwise.default  # noqa: SLF001 -- for them

    def linear(x: Tensor) -> Tensor:
        rows = x.shape[0]
        out: Tensor = pointwise(_few_sizes(x), packed, bias, "none", [], "")
        return out[:rows]

    if weight.dtype != torch.float32 or _adds_alike(linear, weight.shape[1]):
        return linear
    return functools.partial(_lone_row_twice, linear)


def with_rows(linear: Linear | None) -> RowLookup | None:
    """The layer itself where it returns rows of its weight: then no table is kept beside it."""
    return linear if isinstance(linear, RowLookup) and linear.gives_rows else None


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T for a weight that is used once: (tokens, in_features), (out_features, in_features), both contiguous.

    oneDNN's float32 is twice as fast as the BLAS behind torch.matmul on some CPUs and never slower on those tried.
    """
    if not packs(x.dtype):
        return F.linear(x, weight)
    out: Tensor = torch.ops.mkldnn._linear_pointwise(_few_sizes(x), weight, None, "none", [], "")  # noqa: SLF001
    return out[: x.shape[0]]


def _few_sizes(x: Tensor) -> Tensor:
    """x with rows of zeros below it up to the next of few numbers: at most an eighth more, none below 16.

    For each number of rows and each shape of a weight oneDNN compiles a product, for half a millisecond, and keeps up
    to half a megabyte of it; with the row counts of every step that was 700 MB for a model of 2 layers.
    """
    rows = x.shape[0]
    multiple = 1 << max(0, rows.bit_length() - 4)
    return F.pad(x, (0, 0, 0, -rows % multiple)) if rows % multiple else x


def _lone_row_twice(multiply: Linear, x: Tensor) -> Tensor:
    """multiply(x), where a lone row in float32 has the bits that it has beside others.

    On AVX-512 oneDNN adds the products of one row of some 3,000 columns in another order than those of several rows.
    Two rows take 0-5 % longer than one, since the weight is read once.
    """
    return multiply(x.expand(2, -1).contiguous())[:1] if x.shape[0] == 1 and x.dtype == torch.float32 else multiply(x)


def _adds_alike(multiply: Linear, columns: int) -> bool:
    """Whether oneDNN adds the products of one row of this layer in the order of several; looked at once, at start."""
    rows = torch.randn(2, columns, generator=torch.Generator().manual_seed(0))
    return torch.equal(multiply(rows[:1].clone()), multiply(rows)[:1])


@functools.cache
def packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN computes this dtype here with a packed weight."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())  # noqa: SLF001
    return dtype == torch.float32


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """weight, bias and an x to call the result with."""
    for tokens, inputs, outputs in ((1, 8, 12), (5, 33, 7), (40, 64, 96)):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            weight = torch.randn(outputs, inputs, generator=generator).to(dtype)
            x = torch.randn(tokens, inputs, generator=generator).to(dtype)
            yield weight, None, x
            yield weight, torch.randn(outputs, generator=generator).to(dtype), x
    yield from quantized.cases(generator)
