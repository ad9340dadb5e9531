"""How near our kernels come to what one card can read and multiply: `python tests/bench/gpu_kernels.py [results.json]`.

Shapes are those of one layer of an 8B Llama. Floors are measured in the same run: reading 4 GiB, and a large product.
Each cell is a recorded graph over copies of its inputs that together exceed the second-level cache; a ratio is
floor time over median time of a call. One above 1.00 is a fault of the measurement and voids its cell.
"""

import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from torch import Tensor

from kvasir_runtime.kernels.gpu.table import TRITON
from kvasir_runtime.kernels.sample import Draws
from kvasir_runtime.kernels.spans import Spans

REPLAYS, WARM_UPS = 30, 5
CACHE_BYTES = 512 << 20  # of rotated inputs: far more than any second-level cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sizes to measure; tests shrink them."""

    heads: int = 32
    kv_heads: int = 8
    head: int = 128
    hidden: int = 4096
    intermediate: int = 14336
    vocab: int = 128_256
    block_size: int = 16
    decode: tuple[tuple[int, int], ...] = (
        (1, 1024),
        (1, 8192),
        (8, 1024),
        (8, 8192),
        (64, 1024),
        (64, 8192),
        (256, 1024),
    )
    prefill: tuple[int, ...] = (1024, 8192)
    tokens: tuple[int, ...] = (1, 64, 8192)
    rows: tuple[int, ...] = (1, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One thing to time. make: a call on new inputs; moved_bytes or flops: of one call, whichever bounds it."""

    name: str
    make: Callable[[], Callable[[], object]]
    moved_bytes: int = 0
    flops: int = 0


def cells(scale: Scale, device: torch.device, dtype: torch.dtype) -> Iterator[Cell]:
    """All cells, none of whose inputs is made yet."""
    yield from attention_cells(scale, device, dtype)
    yield from elementwise_cells(scale, device, dtype)
    yield from sampling_cells(scale, device)


def attention_cells(scale: Scale, device: torch.device, dtype: torch.dtype) -> Iterator[Cell]:
    def call(query_lens: list[int], known: int) -> Callable[[], object]:
        columns = -(-known // scale.block_size)
        num_blocks = columns * len(query_lens)
        cache = torch.randn(2, num_blocks, scale.block_size, scale.kv_heads, scale.head, dtype=dtype, device=device)
        tables = torch.randperm(num_blocks, device=device).view(len(query_lens), columns)
        query = torch.randn(sum(query_lens), scale.heads, scale.head, dtype=dtype, device=device)
        spans = Spans(query_lens, [known] * len(query_lens), tables, [-1] * len(query_lens))
        return lambda: TRITON.attention(query, cache, spans, scale.head**-0.5, 0)

    for batch, known in scale.decode:
        moved = batch * known * 2 * scale.kv_heads * scale.head * dtype.itemsize
        make = lambda batch=batch, known=known: call([1] * batch, known)
        yield Cell(name=f"attention, decode, {batch} x {known}", make=make, moved_bytes=moved)
    for tokens in scale.prefill:
        flops = 2 * tokens * (tokens + 1) * scale.heads * scale.head
        make = lambda tokens=tokens: call([tokens], tokens)
        yield Cell(name=f"attention, prefill, {tokens}", make=make, flops=flops)


def elementwise_cells(scale: Scale, device: torch.device, dtype: torch.dtype) -> Iterator[Cell]:
    def random(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=dtype, device=device)

    def norm(tokens: int) -> Callable[[], object]:
        x, residual, weight = random(tokens, scale.hidden), random(tokens, scale.hidden), random(scale.hidden)
        return lambda: TRITON.rms_norm(x, residual, weight, 1e-5)

    def gate(tokens: int) -> Callable[[], object]:
        x = random(tokens, 2 * scale.intermediate)
        return lambda: TRITON.silu_mul(x)

    def split(tokens: int) -> Callable[[], object]:
        num_blocks = -(-tokens // scale.block_size)
        qkv, angle = random(tokens, scale.heads + 2 * scale.kv_heads, scale.head), random(tokens, 1, scale.head)
        cache = random(2, num_blocks, scale.block_size, scale.kv_heads, scale.head)
        slots = torch.randperm(num_blocks * scale.block_size, device=device)[:tokens]
        return lambda: TRITON.split_qkv(qkv, None, 1e-5, angle, angle, cache, slots)

    width = (scale.heads + 2 * scale.kv_heads) * scale.head
    for tokens in scale.tokens:
        for name, make, elements in (
            ("rms_norm with residual", norm, 4 * scale.hidden),
            ("silu_mul", gate, 3 * scale.intermediate),
            ("split_qkv", split, 2 * width + 2 * scale.head),
        ):
            moved = tokens * elements * dtype.itemsize
            yield Cell(name=f"{name}, {tokens}", make=lambda make=make, tokens=tokens: make(tokens), moved_bytes=moved)


def sampling_cells(scale: Scale, device: torch.device) -> Iterator[Cell]:
    def call(rows: int, temperature: float, top_k: int, top_p: float) -> Callable[[], object]:
        def every(value: float) -> Tensor:
            return torch.full((rows,), value, device=device)

        seeds = torch.arange(rows, device=device)
        draws = Draws(
            temperature=every(temperature), top_k=every(top_k).long(), top_p=every(top_p), min_p=every(0.0),
            seed=seeds, position=seeds, all_greedy=temperature == 0, any_filter=top_k > 0,
        )  # fmt: skip
        logits = torch.randn(rows, scale.vocab, device=device) * 4
        return lambda: TRITON.sample(logits, draws)

    for rows in scale.rows:
        for name, how in (("greedy", (0.0, 0, 1.0)), ("plain", (1.0, 0, 1.0)), ("top-k and top-p", (1.0, 50, 0.9))):
            make = lambda rows=rows, how=how: call(rows, *how)
            yield Cell(name=f"sample, {name}, {rows}", make=make, moved_bytes=rows * scale.vocab * 4)


def seconds(calls: list[Callable[[], object]]) -> list[float]:
    """Sorted times of one call: the calls are recorded into a graph one after another, which is replayed."""
    for call in calls:
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for replay in range(WARM_UPS + REPLAYS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if replay >= WARM_UPS:
            times.append(start.elapsed_time(end) / 1000 / len(calls))
    return sorted(times)


def floors() -> tuple[float, float]:
    """What this card does today: bytes read per second, and bfloat16 operations per second."""
    big = torch.ones(1 << 30, dtype=torch.float32, device="cuda")
    read = big.numel() * 4 / statistics.median(seconds([big.sum]))
    del big
    left, right = (torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    multiplied = 2 * 8192**3 / statistics.median(seconds([lambda: left @ right]))
    return read, multiplied


def main(results: str | None = None) -> None:
    """Print the table, and write it as JSON if a file is named."""
    if not torch.cuda.is_available():
        raise SystemExit("gpu_kernels.py measures a CUDA device, and torch finds none")
    card = torch.cuda.get_device_name()
    read, multiplied = floors()
    print(f"{card}, torch {torch.__version__}, triton {triton.__version__}")
    print(f"floors: reads {read / 1e12:.2f} TB/s, bfloat16 product {multiplied / 1e12:.0f} TFLOP/s")
    print(f"{'cell':38} {'us: median':>12} {'min':>9} {'max':>9} {'floor':>9} {'ratio':>7}")
    table = []
    for cell in cells(Scale(), torch.device("cuda"), torch.bfloat16):
        copies = min(64, 1 + CACHE_BYTES // max(1, cell.moved_bytes)) if cell.moved_bytes else 1
        times = seconds([cell.make() for _ in range(copies)])
        median, floor = statistics.median(times), max(cell.moved_bytes / read, cell.flops / multiplied)
        ratio = floor / median
        row = {"cell": cell.name, "median_s": median, "min_s": times[0], "max_s": times[-1], "floor_s": floor}
        table.append(row | {"ratio": ratio if ratio <= 1 else None, "copies": copies})
        figures = " ".join(f"{1e6 * t:9.1f}" for t in (times[0], times[-1], floor))
        print(f"{cell.name:38} {1e6 * median:12.1f} {figures} {f'{ratio:.2f}' if ratio <= 1 else 'void':>7}")
        torch.cuda.empty_cache()
    if results:
        floor_row = {"card": card, "read_bytes_per_s": read, "flops_per_s": multiplied}
        Path(results).write_text(json.dumps({"floors": floor_row, "cells": table}, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
