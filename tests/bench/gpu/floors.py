"""The least time that a step, a prompt or a load could take, from the ceilings of the same run. Pure.

A step reads every weight once and every key and value of its sequences, or multiplies every weight with every row; a
prompt does the latter, and attention over what came before. What everybody has to do besides (norms, sampling, HTTP) is
left out, so 1 is out of reach; above 1 the measurement is wrong.
"""

from dataclasses import dataclass

from bench.gpu.book import Book
from bench.shapes import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """read: bytes a second; flops: multiplications and additions a second of a large product in the compute type."""

    read: float
    flops: float

    @property
    def known(self) -> bool:
        """Whether both were measured; else floors are 0, and no ratio is made."""
        return self.read > 0 and self.flops > 0


def ceilings_of(book: Book, dtype: str) -> Ceilings:
    """What the run measured: fp8 weights are multiplied in fp8."""
    product = "product, fp8" if dtype == "fp8" else "product, 16 bits"
    return Ceilings(read=book.value("ceilings", "reading"), flops=book.value("ceilings", product))


def step(batch: int, context: float, work: Work, weight_bytes: float, kv_bytes: float, top: Ceilings) -> float:
    """Seconds of a decode step. context: mean known tokens of a sequence; weight_bytes: of all that a step reads.

    kv_bytes: of one number in the cache.
    """
    if not top.known:
        return 0.0
    read = (weight_bytes + batch * context * work.kv_width * kv_bytes) / top.read
    return max(read, 2 * work.weights * batch / top.flops + batch * context * work.kv_width * kv_bytes / top.read)


def prefill(tokens: int, before: int, work: Work, head: int, weight_bytes: float, top: Ceilings) -> float:
    """Seconds of a prompt's tokens behind others that are cached. head: weights of the output layer, for one row."""
    if not top.known:
        return 0.0
    pairs = tokens * before + tokens * (tokens + 1) / 2
    flops = 2 * (work.weights - head) * tokens + 2 * head + work.attention * pairs
    return max(weight_bytes / top.read, flops / top.flops)


def load(
    clients: int, prompt: int, answer: int, work: Work, head: int, weight_bytes: float, kv_bytes: float, top: Ceilings
) -> float:
    """Tokens of answers a second of a saturated server: a prompt, and its share of the steps of its answer."""
    if not top.known:
        return 0.0
    one = prefill(prompt, 0, work, head, 0.0, top)
    one += answer * step(clients, prompt + answer / 2, work, weight_bytes, kv_bytes, top) / clients
    return answer / one
