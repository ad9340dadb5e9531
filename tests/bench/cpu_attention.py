"""What attention of a decode step takes, by variant: `PYTHONPATH=tests python -m bench.cpu_attention`.

One query for each of some sequences, whose blocks of bfloat16 lie scattered in the cache. Variants take turns; times
are processor time of one thread, which leaves preemption out: least, median and most of all calls, in milliseconds.
"""

import argparse
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

import torch
from torch import Tensor

from fakes.cache_layers import layer_of
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.cpu.bindings import cpu_kernels
from kvasir_runtime.kernels.cpu.library import absence, library, variants

BLOCK_SIZE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """heads, kv_heads, head_dim as a model has them; kv_lens: what each sequence sees."""

    heads: int
    kv_heads: int
    head_dim: int
    kv_lens: Sequence[int]


MIXED: Final = random.Random(1).choices(range(50, 701), k=30)
CASES: Final = (
    Case(heads=12, kv_heads=4, head_dim=64, kv_lens=[4160]),
    Case(heads=12, kv_heads=4, head_dim=64, kv_lens=MIXED),
    Case(heads=16, kv_heads=8, head_dim=128, kv_lens=[4160]),
    Case(heads=14, kv_heads=2, head_dim=64, kv_lens=[1000] * 8),
)


def main() -> int:
    """A line for each case and variant. Returns 1 where there are no kernels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    found = library()
    if found is None:
        print(absence())
        return 1
    found.start(1)
    kernels = {isa: cpu_kernels(replace(found, isa=isa)) for isa in variants(found.handle)}
    for case in CASES:
        query, cache, seen = _made(case)
        times: Mapping[str, list[float]] = {isa: [] for isa in kernels}
        for _ in range(rounds):
            for isa, one in kernels.items():
                began = time.thread_time()
                one.attention(query, cache, seen, case.head_dim**-0.5, 0)
                times[isa].append(1e3 * (time.thread_time() - began))
        label = f"{case.heads}/{case.kv_heads} heads of {case.head_dim}, {len(case.kv_lens)} x {max(case.kv_lens)}"
        for isa, own in times.items():
            print(f"{label:<36}{isa:<14}{min(own):8.3f} / {median(own):.3f} / {max(own):.3f} ms", flush=True)
    return 0


def _made(case: Case) -> tuple[Tensor, Tensor, AttentionMetadata]:
    generator, count = torch.Generator().manual_seed(1), len(case.kv_lens)
    columns = -(-max(case.kv_lens) // BLOCK_SIZE)
    cache = torch.randn(2, columns * count, BLOCK_SIZE, case.kv_heads, case.head_dim, generator=generator).bfloat16()
    tables = torch.randperm(columns * count, generator=generator).view(count, columns)
    query = torch.randn(count, case.heads, case.head_dim, generator=generator).bfloat16()
    return query, layer_of(cache), AttentionMetadata((1,) * count, tuple(case.kv_lens), tables)


if __name__ == "__main__":
    raise SystemExit(main())
