"""What the machine allows: the least time that each figure of a workload could take, from ceilings of the same run.

Pure. Decode reads every weight once a step, the keys and values of every sequence in it and its logits, and multiplies
each weight once a token; a step takes the longer of the two. Prompts are products of large matrices, and attention over
what came before. Limits leave out the arithmetic of sampling, HTTP and the client on the same cores, which all cost
time, so a fraction of 1 is out of reach; fractions of two runs can be compared.
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


def step(rows: int, work: Work, weight_bytes: float, ceilings: Ceilings, seen: float, shared: float = 0) -> float:
    """Seconds of one decode step of so many sequences. seen: tokens whose keys and values it reads, in 16 bits; shared:
    those that it reads once for all.

    Their logits, in 32 bits, are read once.
    """
    read = work.weights * weight_bytes + 2 * work.kv_width * (seen + shared) + 4 * work.vocabulary * rows
    return max(
        read / ceilings.read, (2 * work.weights * rows + work.attention * (seen + rows * shared)) / ceilings.rate(rows)
    )


def crowd(
    tasks: Sequence[WorkloadRequest], shared: int, at_once: int, work: Work, weight_bytes: float, top: Ceilings
) -> float:
    """Seconds for many requests: the common prefix once, each prompt at the rate of large products, and their decode.

    A prompt is computed as soon as there is a place for it, and between the steps: with its last token the first of its
    answer is there. Steps have as many rows as there are answers then, the last ones few; keys and values of the prefix
    are read once in each.
    """
    waiting, running = list(tasks), list[tuple[int, int]]()
    seconds = prefill(shared, 0, work, top) if shared else 0.0
    while waiting or running:
        while waiting and len(running) < at_once:
            task = waiting.pop(0)
            own = task.words - shared
            pairs = own * shared + own * (own + 1) / 2
            seconds += (2 * work.weights * own + work.attention * pairs) / top.rate(512)
            if task.output_tokens > 1:
                running.append((own + 1, task.output_tokens - 1))
        if running:
            seconds += step(len(running), work, weight_bytes, top, sum(seen for seen, _ in running), shared)
        running = [(seen + 1, left - 1) for seen, left in running if left > 1]
    return seconds
