"""Measures what this machine's memory and processors can do, in the run whose figures are divided by it."""

import time
from collections.abc import Callable
from typing import Final

import torch

from bench.limits import Ceilings

ROWS: Final = (1, 8, 32, 128, 512)
BYTES: Final = 512 << 20
REPEATS: Final = 5


def measured(dtype: torch.dtype) -> Ceilings:
    """Of all threads that torch uses. dtype: of the weights, bfloat16 or int8."""
    return Ceilings(read=read_rate(), products={rows: _products(rows, dtype) for rows in ROWS})


def read_rate() -> float:
    """Bytes a second: the best of sums over more than the caches hold."""
    data = torch.ones(BYTES // 4, dtype=torch.float32)
    return data.nbytes / _best(data.sum)


def _products(rows: int, dtype: torch.dtype) -> float:
    """Multiplications and additions a second with a weight that the caches hold: what the processors allow."""
    inner, outer = 1024, 4096
    count = max(1, int(4e9 / (2 * rows * inner * outer)))
    if dtype == torch.int8:
        left = torch.randint(-127, 127, (max(rows, 32), inner), dtype=torch.int8)
        right = torch.randint(-127, 127, (outer, inner), dtype=torch.int8).t()
        seconds = _best(lambda: [torch._int_mm(left, right) for _ in range(count)])
        return 2 * left.shape[0] * inner * outer * count / seconds
    x, weight = torch.randn(rows, inner).to(dtype), torch.randn(outer, inner).to(dtype)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    product = torch.ops.mkldnn._linear_pointwise.default
    seconds = _best(lambda: [product(x, packed, None, "none", [], "") for _ in range(count)])
    return 2 * rows * inner * outer * count / seconds


def _best(run: Callable[[], object]) -> float:
    run()
    best = float("inf")
    for _ in range(REPEATS):
        started = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - started)
    return best
