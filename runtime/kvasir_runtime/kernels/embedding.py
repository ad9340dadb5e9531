"""Rows of a table by id.

    for t in tokens: out[t] = table[ids[t]]

table: (vocab, hidden); ids: (tokens,) int64, 0 <= id < vocab; out: (tokens, hidden). Exact.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor


def reference(ids: Tensor, table: Tensor) -> Tensor:
    """table[ids]."""
    return F.embedding(ids, table)


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """Repeated ids, first and last row."""
    table = torch.randn(10, 6, generator=generator)
    yield torch.tensor([0]), table
    yield torch.tensor([3, 9, 3, 0]), table
