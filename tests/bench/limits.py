"""What the machine allows: the least time that each figure of a workload could take, from ceilings of the same run.

Pure. Decode reads every weight once a step, and the keys and values of every sequence in it, and multiplies each weight
once a token; a step takes the longer of the two. Prompts are products of large matrices, and attention over what came
before. What a limit leaves out (sampling, HTTP, the client on the same cores) nobody gets for free, so a fraction of 1
is out of reach; fractions of two runs can be compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.shapes import Work
from kvasir_runtime.bench.workload import WorkloadRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """read: bytes a second; products: multiplications and additions a second by rows of the left matrix."""

    read: float
    products: dict[int, float]

    def rate(self, rows: int) -> float:
        """The rate at the nearest measured number of rows not above, or the least one."""
        at = max((known for known in self.products if known <= rows), default=min(self.products))
        return self.products[at]

    def or_better(self, other: "Ceilings") -> "Ceilings":
        """The better of two measurements, each rate by itself: what a busy machine showed once, it can do.

        Both with the same numbers of rows.
        """
        products = {rows: max(rate, other.products[rows]) for rows, rate in self.products.items()}
        return Ceilings(read=max(self.read, other.read), products=products)


def prefill(tokens: int, before: int, work: Work, ceilings: Ceilings) -> float:
    """Seconds for a prompt's tokens behind others that are cached: products of all, attention of each to all before."""
    pairs = tokens * before + tokens * (tokens + 1) / 2
    return (2 * work.weights * tokens + work.attention * pairs) / ceilings.rate(tokens)


def step(rows: int, work: Work, weight_bytes: float, ceilings: Ceilings, seen: float) -> float:
    """Seconds of one decode step of so many sequences. seen: tokens whose keys and values it reads, in 16 bits."""
    read = (work.weights * weight_bytes + 2 * work.kv_width * seen) / ceilings.read
    return max(read, 2 * work.weights * rows / ceilings.rate(rows))


def crowd(
    tasks: Sequence[WorkloadRequest], shared: int, at_once: int, work: Work, weight_bytes: float, top: Ceilings
) -> float:
    """Seconds for many requests: the common prefix once, all prompts at the rate of large products, and their decode.

    Decode at the best: every step as full as the number at once allows, keys and values of the prefix read once in it.
    """
    prompts = prefill(shared, 0, work, top) if shared else 0.0
    prompts += sum(2 * work.weights * (task.words - shared) for task in tasks) / top.rate(512)
    steps = sum(task.output_tokens - 1 for task in tasks) / at_once
    seen = sum((task.words - shared + task.output_tokens / 2) * (task.output_tokens - 1) for task in tasks)
    return prompts + steps * step(at_once, work, weight_bytes, top, seen / steps + shared)
