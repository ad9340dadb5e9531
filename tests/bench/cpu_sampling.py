"""How long drawing tokens and their logprobs take beside a greedy step's argmax: `python -m bench.cpu_sampling`, with
PYTHONPATH=tests.

Rows of bfloat16 logits as the head of a large vocabulary gives them, drawn in several ways. Candidates take turns, and
figures are the medians of the rounds, in milliseconds: torch's operations, the C++ kernel, and both against the argmax.
With one thread its processor time counts instead of the time on the clock, which leaves preemption out.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Final

import torch
from torch import Tensor

from kvasir_runtime.kernels import logprobs, sample
from kvasir_runtime.kernels.cpu.bindings import CpuKernels, cpu_kernels
from kvasir_runtime.kernels.cpu.library import absence, library
from kvasir_runtime.kernels.logprobs import WantedLogprobs
from kvasir_runtime.kernels.sample import Draws

VOCAB: Final = 151_936
WAYS: Final = {
    "temperature": ((0.8, 0, 1.0, 0.0),),
    "top_p": ((0.8, 0, 0.95, 0.0),),
    "top_k, top_p": ((0.7, 20, 0.8, 0.0),),
    "min_p": ((1.0, 0, 1.0, 0.05),),
    "mixed": ((0.8, 0, 0.95, 0.0), (0.7, 20, 0.8, 0.0), (1.0, 0, 1.0, 0.0), (0.0, 0, 1.0, 0.0), (1.0, 0, 0.9, 0.05)),
}
"""Temperature, top_k, top_p and min_p of rows, in turn."""
NUM_TOP: Final = (0, 20)
SPREADS: Final = {"flat": 0.5, "peaked": 3.0}
"""Standard deviations of logits: of random weights, and about that of trained ones."""


Compute = Callable[[], Tensor]


def main(arguments: Sequence[str]) -> int:
    """Print a line for each shape and way. Returns 1 where there are no kernels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=(32, 1))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args(arguments)
    found = library()
    if found is None:
        sys.stderr.write(f"error: {absence()}\n")
        return 1
    torch.set_num_threads(given.threads)
    clock = time.thread_time if found.start(given.threads) == 1 else time.perf_counter
    kernels = cpu_kernels(found)
    sys.stdout.write(f"{found.isa}, {given.threads} threads, {VOCAB} ids; milliseconds, medians of {given.rounds}\n")
    sys.stdout.write(f"{'':<32}{'argmax':>9}{'kernel':>9}{'torch':>9}{'torch / kernel':>16}\n")
    for rows in given.rows:
        for spread, scale in SPREADS.items():
            logits = (torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(0)) * scale).bfloat16()
            for way, *candidates in candidates_of(kernels, logits):
                greedy, ours, torchs = taken(candidates, given.rounds, clock)
                name = f"{rows} {spread}, {way}"
                sys.stdout.write(f"{name:<32}{greedy:>9.3f}{ours:>9.3f}{torchs:>9.2f}{torchs / ours:>16.1f}\n")
                sys.stdout.flush()
    return 0


def candidates_of(kernels: CpuKernels, logits: Tensor) -> Iterator[tuple[str, Compute, Compute, Compute]]:
    """What is computed, and how: as a greedy step, by the kernel, by torch's operations."""
    rows, greedy = len(logits), partial(kernels.argmax, logits)
    for way in WAYS:
        draws = draws_of(rows, way)
        yield way, greedy, partial(kernels.sample, logits, draws), partial(sample.cpu, logits, draws)
    for num_top in NUM_TOP:
        args = logits, kernels.argmax(logits), WantedLogprobs(num_top=num_top)
        yield f"logprobs={num_top}", greedy, partial(kernels.logprobs, *args), partial(logprobs.reference, *args)


def draws_of(rows: int, way: str) -> Draws:
    """So many rows, each at a position of its own."""
    chosen = [WAYS[way][row % len(WAYS[way])] for row in range(rows)]
    temperature, top_k, top_p, min_p = zip(*chosen, strict=True)
    return Draws(
        temperature=torch.tensor(temperature),
        top_k=torch.tensor(top_k),
        top_p=torch.tensor(top_p),
        min_p=torch.tensor(min_p),
        seed=torch.arange(rows),
        position=torch.arange(rows) + 100,
        all_greedy=not any(temperature),
        any_filter=any(k > 0 or p < 1 or m > 0 for _, k, p, m in chosen),
    )


def taken(candidates: Sequence[Compute], rounds: int, clock: Callable[[], float]) -> list[float]:
    """Milliseconds of each, medians over rounds in which they take turns; the first round does not count."""
    times: list[list[float]] = [[] for _ in candidates]
    for _ in range(rounds + 1):
        for own, candidate in zip(times, candidates, strict=True):
            started = clock()
            candidate()
            own.append((clock() - started) * 1e3)
    return [median(own[1:]) for own in times]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
