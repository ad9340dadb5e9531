"""The most likely token of each row, where nothing but that is asked: a greedy draw without a copy of the logits.

    for r in rows: id = argmax(logits[r])                      # the lowest id of equals

logits: (rows, vocab), contiguous, any floating type, no NaN; out: (rows,) int64. Exact, as a draw at temperature 0.
"""

from collections.abc import Iterator

import torch
from torch import Tensor


def reference(logits: Tensor) -> Tensor:
    """One id per row."""
    return logits.argmax(dim=-1)


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """One row and many, equals, forbidden ids; vocabularies that are no multiple of anything, and long ones."""
    for rows, vocab in ((1, 17), (5, 333), (2, 40_001)):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            logits = torch.randn(rows, vocab, generator=generator).to(dtype)
            logits[:, ::3] = float("-inf")
            yield (logits,)
            logits = logits.clone()
            logits[:, vocab // 2] = logits[:, vocab - 1] = 100.0
            yield (logits,)
