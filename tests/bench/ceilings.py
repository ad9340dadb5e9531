"""Measures what this machine's memory and processors can do, in the run whose figures are divided by it."""

import ctypes
import functools
import time
from collections.abc import Callable
from typing import Final

import torch

from bench import probes
from bench.limits import Ceilings
from kvasir_runtime.kernels import linear, quantized
from kvasir_runtime.kernels.cpu.library import library
from kvasir_runtime.kernels.cpu.linear import packed, takes
from kvasir_runtime.kernels.quantized import QuantFormat

ROWS: Final = (1, 2, 4, 8, 16, 32, 128, 512)
INNER, OUTER = 1024, 4096
BYTES: Final = 512 << 20
PIECE: Final = 1 << 17
"""Bytes that plain loads take at a time."""
REPEATS: Final = 5


def measured(dtype: torch.dtype) -> Ceilings:
    """Of all threads that torch uses. dtype: of the weights, bfloat16 or int8."""
    return Ceilings(read=read_rate(), products={rows: _products(rows, dtype) for rows in ROWS})


def read_rate() -> float:
    """Bytes a second from memory, by whoever is quickest.

    None always is: which way reaches most depends on how many streams a machine's memory likes to have at a time.
    """
    return reader()(REPEATS)


def reader() -> Callable[[int], float]:
    """What measures that rate as often as it is called, by the best of so many reads of each way; holds its memory."""
    ways = ways_to_read(BYTES)
    return lambda repeats: max(num_bytes / _best(read, repeats) for num_bytes, read in ways.values())


def ways_to_read(num_bytes: int) -> dict[str, tuple[int, Callable[[], object]]]:
    """By name: how many bytes it reads, about num_bytes, and the call. Torch's sum; plain loads and our own product of
    one row after another, where this processor has them.
    """
    data = torch.ones(num_bytes // 4, dtype=torch.float32)
    ways: dict[str, tuple[int, Callable[[], object]]] = {"sum": (data.nbytes, data.sum)}
    found = library()
    if found is None:
        return ways
    found.start(torch.get_num_threads())
    probing = probes.library(found.isa)
    if probing.has("ceiling_read"):
        probing.start(torch.get_num_threads())
        loads = probing.function("ceiling_read", ctypes.c_void_p, ctypes.c_int64)
        pieces = data.nbytes // PIECE
        ways["loads"] = pieces * PIECE, lambda: loads(data.data_ptr(), pieces)
    weight, x = torch.ones(OUTER, INNER).bfloat16(), torch.ones(1, INNER).bfloat16()
    if takes(weight):
        layers = [packed(found, weight, None) for _ in range(max(1, num_bytes // weight.nbytes))]
        ways["products"] = len(layers) * weight.nbytes, lambda: [layer(x) for layer in layers]
    return ways


def _products(rows: int, dtype: torch.dtype) -> float:
    """Multiplications and additions a second with a weight that the caches hold, by whoever is quicker: torch or we."""
    torchs = _torchs_int8 if dtype == torch.int8 else _torchs
    candidates = [torchs(rows), *_ours(rows, dtype)]
    count = max(1, int(1e9 / (2 * rows * INNER * OUTER)))
    seconds = min(_best(functools.partial(_repeat, call, count)) for call in candidates)
    return 2 * rows * INNER * OUTER * count / seconds


def _torchs(rows: int) -> Callable[[], object]:
    x, weight = torch.randn(rows, INNER).bfloat16(), torch.randn(OUTER, INNER).bfloat16()
    product = linear.cpu(weight, None)  # oneDNN's where it has one, else torch's
    return lambda: product(x)


def _torchs_int8(rows: int) -> Callable[[], object]:
    """At least 32 rows, which is the least that it is made for."""
    left = torch.randint(-127, 127, (max(rows, 32), INNER), dtype=torch.int8)
    right = torch.randint(-127, 127, (OUTER, INNER), dtype=torch.int8).t()
    return lambda: torch._int_mm(left, right)


def _ours(rows: int, dtype: torch.dtype) -> list[Callable[[], object]]:
    """Our own product, where this processor has one."""
    found = library()
    if found is None:
        return []
    found.start(torch.get_num_threads())
    weight: torch.Tensor | quantized.QuantizedWeight = torch.randn(OUTER, INNER).bfloat16()
    if dtype == torch.int8:
        weight = quantized.empty(QuantFormat(bits=8), OUTER, INNER, torch.device("cpu"))
        weight.values.random_(-127, 127)
        weight.scales.fill_(0.01)
    if not takes(weight):
        return []
    layer, x = packed(found, weight, None), torch.randn(rows, INNER).bfloat16()
    return [lambda: layer(x)]


def _repeat(call: Callable[[], object], count: int) -> None:
    for _ in range(count):
        call()


def _best(run: Callable[[], object], repeats: int = REPEATS) -> float:
    run()
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - started)
    return best
