"""The most likely token of each row, where nothing but that is asked: a greedy draw without a copy of the logits.

    for r in rows: id = argmax(logits[r])                      # the lowest id of equals
                   id = INVALID where logits[r] holds a NaN or its largest is infinite

logits: (rows, vocab), contiguous, any floating type; out: (rows,) int64. Exact, as a draw at temperature 0.
"""

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

INVALID: Final = -1
"""The id of a row from which nothing can be drawn. Whatever looks ids up takes 0 in its place."""


def reference(logits: Tensor) -> Tensor:
    """One id per row."""
    ids = logits.argmax(dim=-1)
    largest = logits.gather(1, ids.unsqueeze(1)).squeeze(1)  # torch takes a NaN for the largest
    return torch.where(largest.isfinite(), ids, INVALID)


def invalid_rows(vocab: int, generator: torch.Generator) -> Tensor:
    """(6, vocab) float32 for cases: a NaN first, last, everywhere; infinity; -infinity alone; and a good row."""
    logits = torch.randn(6, vocab, generator=generator)
    logits[0, 0] = logits[1, -1] = logits[2] = float("nan")
    logits[3, vocab // 2], logits[4] = float("inf"), float("-inf")
    logits[5, ::3] = float("-inf")
    return logits


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """One row and many, equals, forbidden ids, invalid rows; vocabularies that are no multiple of anything, and
    long ones."""
    for rows, vocab in ((1, 17), (5, 333), (2, 40_001)):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            logits = torch.randn(rows, vocab, generator=generator).to(dtype)
            logits[:, ::3] = float("-inf")
            yield (logits,)
            logits = logits.clone()
            logits[:, vocab // 2] = logits[:, vocab - 1] = 100.0
            yield (logits,)
            yield (invalid_rows(vocab, generator).to(dtype),)
