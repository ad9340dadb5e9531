"""How near our kernels come to what one card can read and multiply: a section of `make bench-gpu`.

Shapes are those of one layer of an 8B Llama. Each cell is a recorded graph over copies of its inputs that together
exceed the second-level cache; a ratio is floor time over median time of a call.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from bench.gpu import experts, products
from bench.gpu.book import Cell as Measured
from bench.gpu.book import Goal, failed, measured, skipped
from bench.gpu.section import NO_TIME, Context
from bench.gpu.timing import peak_bytes, seconds
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.backends import ops_for
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.kernels.sample import Draws

CACHE_BYTES = 512 << 20  # of rotated inputs: far more than any second-level cache
LEAST_S = 3.0
HEAD_ROWS = 256  # no step requests more rows of logits
GOALS = {
    "attention, decode, 64 x 8192": Goal(sense="ratio", value=0.95),
    "experts, Mixtral 8x7B, 64": Goal(sense="ratio", value=0.97),
    "experts, Mixtral 8x7B, 4096": Goal(sense="ratio", value=0.83),
}


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
    prefill: tuple[int, ...] = (1024, 8192, 32_768)
    products: tuple[int, ...] = (1, 16, 64, 256, 8192)
    few: tuple[int, ...] = (1, 64, 256)
    tokens: tuple[int, ...] = (1, 64, 8192)
    rows: tuple[int, ...] = (1, 64)
    mixtures: tuple[experts.Mixture, ...] = experts.MIXTURES


SMALL = Scale(
    heads=4, kv_heads=2, head=16, hidden=64, intermediate=48, vocab=300, block_size=4,
    decode=((2, 9),), prefill=(6,), products=(1, 5), few=(1, 3), tokens=(1, 3), rows=(2,), mixtures=experts.SMALL,
)  # fmt: skip
"""For a CPU, where it shows that every cell can be called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One thing to time. make: a call on new inputs; moved_bytes, flops: of one call, the slower of which bounds it."""

    name: str
    make: Callable[[], Callable[[], object]]
    moved_bytes: int = 0
    flops: int = 0


def cells(scale: Scale, ops: Ops, device: torch.device, dtype: torch.dtype) -> Iterator[Cell]:
    """All cells, none of whose inputs is made yet."""
    yield from attention_cells(scale, ops, device, dtype)
    yield from linear_cells(scale, ops, device, dtype)
    sizes = (scale.hidden, scale.intermediate, scale.few)
    for name, make, moved, flops in (
        *products.gates(*sizes, ops, device, dtype),
        *products.normed(*sizes, ops, device, dtype),
        *products.short(*sizes, ops, device, dtype),
        *products.changes(scale.vocab, scale.rows, ops, device),
        *experts.calls(scale.mixtures, ops, device, dtype),
    ):
        yield Cell(name=name, make=make, moved_bytes=moved, flops=flops)
    yield from elementwise_cells(scale, ops, device, dtype)
    yield from sampling_cells(scale, ops, device)


def linear_cells(scale: Scale, ops: Ops, device: torch.device, dtype: torch.dtype) -> Iterator[Cell]:
    """The products of a layer, from those of a step to those of a long prompt."""
    queries, kv = scale.heads * scale.head, scale.kv_heads * scale.head
    products = {
        "qkv": (queries + 2 * kv, scale.hidden),
        "output": (scale.hidden, queries),
        "down": (scale.hidden, scale.intermediate),
        "head": (scale.vocab, scale.hidden),
    }

    def call(rows: int, columns: int, tokens: int) -> Callable[[], object]:
        product = ops.linear(torch.randn(rows, columns, device=device).to(dtype), None)
        x = torch.randn(tokens, columns, device=device).to(dtype)
        return lambda: product(x)

    for name, (rows, columns) in products.items():
        for tokens in scale.products:
            if name == "head" and tokens > HEAD_ROWS:
                continue
            moved = (rows * columns + tokens * (rows + columns)) * dtype.itemsize
            make = partial(call, rows, columns, tokens)
            flops = 2 * rows * columns * tokens
            yield Cell(name=f"linear, {name}, {tokens}", make=make, moved_bytes=moved, flops=flops)


def attention_cells(scale: Scale, ops: Ops, device: torch.device, dtype: torch.dtype) -> Iterator[Cell]:
    def call(query_lens: list[int], known: int) -> Callable[[], object]:
        columns = -(-known // scale.block_size)
        num_blocks = columns * len(query_lens)
        cache = torch.randn(2, num_blocks, scale.block_size, scale.kv_heads, scale.head, dtype=dtype, device=device)
        tables = torch.randperm(num_blocks, device=device).view(len(query_lens), columns)
        query = torch.randn(sum(query_lens), scale.heads, scale.head, dtype=dtype, device=device)
        attn_metadata = AttentionMetadata(query_lens, [known] * len(query_lens), tables)
        return lambda: ops.attention(query, cache, attn_metadata, scale.head**-0.5, 0)

    for batch, known in scale.decode:
        moved = batch * known * 2 * scale.kv_heads * scale.head * dtype.itemsize
        make = partial(call, [1] * batch, known)
        yield Cell(name=f"attention, decode, {batch} x {known}", make=make, moved_bytes=moved)
    for tokens in scale.prefill:
        flops = 2 * tokens * (tokens + 1) * scale.heads * scale.head
        make = partial(call, [tokens], tokens)
        yield Cell(name=f"attention, prefill, {tokens}", make=make, flops=flops)


def elementwise_cells(scale: Scale, ops: Ops, device: torch.device, dtype: torch.dtype) -> Iterator[Cell]:
    def random(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=dtype, device=device)

    def norm(tokens: int) -> Callable[[], object]:
        x, residual, weight = random(tokens, scale.hidden), random(tokens, scale.hidden), random(scale.hidden)
        return lambda: ops.rms_norm(x, residual, weight, 1e-5)

    def gate(tokens: int) -> Callable[[], object]:
        x = random(tokens, 2 * scale.intermediate)
        return lambda: ops.act_and_mul(x, "silu")

    def split(tokens: int) -> Callable[[], object]:
        num_blocks = -(-tokens // scale.block_size)
        qkv, angle = random(tokens, scale.heads + 2 * scale.kv_heads, scale.head), random(tokens, 1, scale.head)
        cache = random(2, num_blocks, scale.block_size, scale.kv_heads, scale.head)
        slots = torch.randperm(num_blocks * scale.block_size, device=device)[:tokens]
        return lambda: ops.split_qkv(qkv, None, 1e-5, angle, angle, cache, slots)

    width = (scale.heads + 2 * scale.kv_heads) * scale.head
    for tokens in scale.tokens:
        for name, make, elements in (
            ("rms_norm with residual", norm, 4 * scale.hidden),
            ("act_and_mul", gate, 3 * scale.intermediate),
            ("split_qkv", split, 2 * width + 2 * scale.head),
        ):
            moved = tokens * elements * dtype.itemsize
            yield Cell(name=f"{name}, {tokens}", make=partial(make, tokens), moved_bytes=moved)


def sampling_cells(scale: Scale, ops: Ops, device: torch.device) -> Iterator[Cell]:
    def call(rows: int, temperature: float, top_k: int, top_p: float) -> Callable[[], object]:
        def every(value: float) -> Tensor:
            return torch.full((rows,), value, device=device)

        seeds = torch.arange(rows, device=device)
        draws = Draws(
            temperature=every(temperature), top_k=every(top_k).long(), top_p=every(top_p), min_p=every(0.0),
            seed=seeds, position=seeds, all_greedy=temperature == 0, any_filter=top_k > 0,
        )  # fmt: skip
        logits = torch.randn(rows, scale.vocab, device=device) * 4
        return lambda: ops.sample(logits, draws)

    for rows in scale.rows:
        for name, how in (("greedy", (0.0, 0, 1.0)), ("plain", (1.0, 0, 1.0)), ("top-k and top-p", (1.0, 50, 0.9))):
            make = partial(call, rows, *how)
            yield Cell(name=f"sample, {name}, {rows}", make=make, moved_bytes=rows * scale.vocab * 4)


def grid(context: Context) -> Iterator[Measured]:
    """All cells in the compute type of the run."""
    device = context.torch_device
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    top = context.ceilings()
    for cell in cells(SMALL if context.sizes.name == "dry" else Scale(), ops_for(device), device, dtype):
        if context.left_s < LEAST_S:
            yield skipped("kernels", cell.name, NO_TIME)
            continue
        copies = min(64, 1 + CACHE_BYTES // cell.moved_bytes) if cell.moved_bytes and device.type == "cuda" else 1
        floor = max(cell.moved_bytes / top.read, cell.flops / top.flops) if top.known else 0.0
        try:
            times = seconds([cell.make() for _ in range(copies)], device, 30 if device.type == "cuda" else 2)
        except Exception as error:  # noqa: BLE001 -- one kernel must not cost the others
            yield failed("kernels", cell.name, str(error))
            continue
        yield measured("kernels", cell.name, times, floor=floor, goal=GOALS.get(cell.name, Goal()))
        if cell.name.startswith("attention"):
            peak = peak_bytes(cell.make(), device) / (1 << 20)
            yield measured("kernels", f"{cell.name}, peak memory", [peak], unit="MiB")
        if device.type == "cuda":
            torch.cuda.empty_cache()
