"""What the card can do today: bytes read, numbers multiplied, kernels begun. All floors of the run follow from these.

A ceiling is the best of several ways and of all repeats: so a figure may look worse than it is, but never
better.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from bench.gpu.book import Cell, failed, measured
from bench.gpu.section import Context
from bench.gpu.timing import seconds, wall

KERNELS = 300


def cells(context: Context) -> Iterator[Cell]:
    """Each in its own unit; one that this machine cannot do is failed, and what would follow from it has no ratio."""
    device, sizes = context.torch_device, context.sizes
    dtype = torch.float32 if context.device == "cpu" else torch.bfloat16
    makers: tuple[tuple[str, str, Callable[[], float]], ...] = (
        ("reading", "B/s", partial(_reading, sizes.ceiling_bytes, dtype, device)),
        ("product, 16 bits", "FLOP/s", partial(_product, sizes.ceiling_square, dtype, device)),
        ("product, fp8", "FLOP/s", partial(_product_fp8, sizes.ceiling_square, device)),
        ("copying from pinned memory", "B/s", partial(_to_device, sizes.ceiling_bytes // 4, device)),
        ("one kernel of a recorded graph", "s", partial(_kernel, device)),
        ("one launch without a graph", "s", partial(_launch, device)),
    )
    for name, unit, make in makers:
        try:
            yield measured("ceilings", name, [make()], unit=unit, more=unit != "s")
        except Exception as error:  # noqa: BLE001 -- an old card has no fp8, a CPU no pinned memory
            yield failed("ceilings", name, str(error))
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _reading(num_bytes: int, dtype: torch.dtype, device: torch.device) -> float:
    """The best of a sum, a product with a vector, and a copy, which writes as much as it reads."""
    big = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    best = big.nbytes / seconds([big.sum], device)[0]
    del big
    columns = min(8192, num_bytes // 64)
    matrix = torch.ones(num_bytes // dtype.itemsize // columns, columns, dtype=dtype, device=device)
    vector = torch.ones(columns, dtype=dtype, device=device)
    best = max(best, matrix.nbytes / seconds([partial(torch.mv, matrix, vector)], device)[0])
    half = matrix[: matrix.shape[0] // 2]
    other = torch.empty_like(half)
    return max(best, 2 * half.nbytes / seconds([partial(other.copy_, half)], device)[0])


def _product(square: int, dtype: torch.dtype, device: torch.device) -> float:
    """Of random numbers: zeros multiply faster, as they move fewer bits."""
    best = 0.0
    for rows, inner, columns in ((square, square, square), (square, square // 2, square * 7 // 2)):
        left = torch.randn(rows, inner, device=device).to(dtype)
        right = torch.randn(columns, inner, device=device).to(dtype)
        times = seconds([partial(torch.nn.functional.linear, left, right)], device, 10)
        best = max(best, 2 * rows * inner * columns / times[0])
    return best


def _product_fp8(square: int, device: torch.device) -> float:
    left, right = (torch.randn(square, square, device=device).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device=device)

    def multiply() -> Tensor:
        return torch._scaled_mm(left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    return 2 * square**3 / seconds([multiply], device, 10)[0]


def _to_device(num_bytes: int, device: torch.device) -> float:
    there = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    here = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    return num_bytes / wall(lambda: there.copy_(here, non_blocking=True), device, 5)[0]


def _kernel(device: torch.device) -> float:
    small = torch.zeros(1, device=device)
    return seconds([partial(small.add_, 1)] * KERNELS, device)[0]


def _launch(device: torch.device) -> float:
    small = torch.zeros(1, device=device)

    def many() -> None:
        for _ in range(KERNELS):
            small.add_(1)

    return wall(many, device, 10)[0] / KERNELS
