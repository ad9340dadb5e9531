"""How near linear layers come to what this processor can do: `PYTHONPATH=tests python -m bench.cpu_linear`.

Weights are streamed from memory: as many copies of each shape as fill several caches. In every round the ceilings are
measured again, between the candidates, because other programs take bandwidth and cores as they like; figures are the
best of the rounds; least, median and most of a round stand in brackets. With one thread the processor time of that
thread counts instead of the time on the clock, which leaves preemption out.
"""

import argparse
import ctypes
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import torch
from torch import Tensor

from bench import probes
from kvasir_runtime.kernels import linear, quantized
from kvasir_runtime.kernels.cpu.library import Library, absence, library
from kvasir_runtime.kernels.cpu.linear import packed
from kvasir_runtime.kernels.quantized import MXFP4, NVFP4, QuantFormat

Call = Callable[[], object]

PIECE: Final = 1 << 17
READ_PIECES: Final = 2048  # 256 MiB
DOT_ROUNDS: Final = 50_000
CHAINS, LINE_PRODUCTS = 16, {16: 32, 8: 64}
FORMATS: Final = {
    "int8": QuantFormat(bits=8),
    "int8-128": QuantFormat(bits=8, group=128),
    "int4": QuantFormat(bits=4),
    "int4-128": QuantFormat(bits=4, group=128),
    "int4-by-64": QuantFormat(bits=4, group=64, wide=True),  # as GPTQ, AWQ and HQQ are held
    "int4-by-32": QuantFormat(bits=4, group=32, wide=True),
    "mxfp4": MXFP4,
    "nvfp4": NVFP4,
    "nf4": QuantFormat(bits=4, group=64, wide=True, codebook="nf4"),
    "iq4": QuantFormat(bits=4, codebook="iq4"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One shape at one number of rows: what each candidate does in a round, and the work in it. dots: 16 or 8."""

    label: str
    weight_bytes: Mapping[str, int]
    operations: int
    dots: int
    candidates: Mapping[str, Call]


def main(arguments: Sequence[str]) -> int:
    """Print a line for each kind, shape and number of rows. Returns 1 where there are no kernels."""
    given = _parser().parse_args(arguments)
    found = library()
    if found is None:
        sys.stderr.write(f"error: {absence()}\n")
        return 1
    torch.set_num_threads(given.threads)
    clock = time.thread_time if found.start(given.threads) == 1 else time.perf_counter
    ceilings = _ceilings(found, given.threads)
    sys.stdout.write(f"{found.isa}, {given.threads} threads; best of {given.rounds} rounds [least / median / most]\n")
    for kind in given.kinds:
        for shape in given.shapes:
            outputs, k = (int(part) for part in shape.split("x"))
            weights = _weights(found, kind, outputs, k, given.megabytes << 20)
            for rows in given.rows:
                case = _case(kind, weights, outputs, k, rows)
                sys.stdout.write(_measured(case, ceilings, given.threads, given.rounds, clock) + "\n")
                sys.stdout.flush()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure linear layers beside the ceilings of this processor.")
    parser.add_argument("--kinds", nargs="+", choices=["bf16", *FORMATS], default=["bf16"])
    parser.add_argument("--shapes", nargs="+", default=["3584x768", "768x3584"], metavar="OUTPUTSxINPUTS")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64, 256])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--megabytes", type=int, default=256, help="of weights that are streamed per round")
    return parser


def _ceilings(found: Library, threads: int) -> Mapping[str, Call]:
    """Plain reads of memory, and dot products of both kinds without any; none where the probes have no such variant."""
    probing = probes.library(found.isa)
    if not probing.has("ceiling_read"):
        return {}
    memory = torch.zeros(PIECE * READ_PIECES, dtype=torch.uint8)
    probing.start(threads)
    read = probing.function("ceiling_read", ctypes.c_void_p, ctypes.c_int64)
    dots = probing.function("ceiling_dots", ctypes.c_int32, ctypes.c_int64)
    return {
        "read": lambda: read(memory.data_ptr(), READ_PIECES),
        "16": lambda: dots(0, DOT_ROUNDS),
        "8": lambda: dots(1, DOT_ROUNDS),
    }


def _num_bytes(kind: str, outputs: int, k: int) -> int:
    return FORMATS[kind].num_bytes(outputs, k) if kind in FORMATS else 2 * outputs * k


def _weights(found: Library, kind: str, outputs: int, k: int, num_bytes: int) -> Mapping[str, list[linear.Linear]]:
    """Copies of one weight for each candidate: our own, and oneDNN's where it has the kind and the type."""
    copies = max(2, num_bytes // _num_bytes(kind, outputs, k))
    if kind not in FORMATS:
        plain = torch.randn(outputs, k).bfloat16()
        made = {"onednn": [linear.cpu(plain.clone(), None) for _ in range(copies)]}
        return {"ours": [packed(found, plain, None) for _ in range(copies)], **made}
    weight = quantized.drawn(FORMATS[kind], outputs, k, torch.Generator().manual_seed(0))
    return {"ours": [packed(found, weight, None) for _ in range(copies)]}


def _case(kind: str, weights: Mapping[str, list[linear.Linear]], outputs: int, k: int, rows: int) -> Case:
    copies = len(next(iter(weights.values())))
    x = torch.randn(rows, k).bfloat16()

    def all_of(layers: list[linear.Linear], x: Tensor) -> Call:
        return lambda: [layer(x) for layer in layers]

    return Case(
        label=f"{kind} {outputs}x{k} rows {rows:4d}",
        weight_bytes=dict.fromkeys(weights, copies * _num_bytes(kind, outputs, k)),
        operations=2 * rows * outputs * k * copies,
        dots=8 if kind in FORMATS else 16,
        candidates={name: all_of(layers, x) for name, layers in weights.items()},
    )


def _measured(case: Case, ceilings: Mapping[str, Call], threads: int, rounds: int, clock: Callable[[], float]) -> str:
    known = {"read": ceilings["read"], "dots": ceilings[str(case.dots)]} if ceilings else {}
    calls = {**known, **case.candidates}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = clock()
            call()
            times[name].append(clock() - start)
    read = PIECE * READ_PIECES / min(times["read"]) if known else 0
    peak = threads * CHAINS * LINE_PRODUCTS[case.dots] * 2 * DOT_ROUNDS / min(times["dots"]) if known else 0
    parts = [case.label]
    for name in case.candidates:
        best, middle = min(times[name]), median(times[name])
        rate, speed = case.weight_bytes[name] / best, case.operations / best
        of_read = f" ({rate / read:.2f} of {read / 1e9:.0f})" if known else ""
        of_peak = f" ({speed / peak:.2f} of {peak / 1e9:.0f})" if known else ""
        spread = " / ".join(f"{1e3 * one:.3g}" for one in (best, middle, max(times[name])))
        parts.append(f"{name} {rate / 1e9:5.1f} GB/s{of_read} {speed / 1e9:6.0f} GOP/s{of_peak} [{spread} ms]")
    if len(case.candidates) == 2:
        ours, other = (min(times[name]) for name in case.candidates)
        parts.append(f"{other / ours:.2f} x")
    return " | ".join(parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
