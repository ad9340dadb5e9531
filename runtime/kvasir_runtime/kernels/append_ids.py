"""Write drawn ids behind the tokens of their rows, in place, so that the next step finds them without the host.

    for i in draws:
        tokens[rows[i], ends[i]] = max(ids[i], 0)           # argmax.INVALID is no id that can be looked up
        lens[rows[i]] = ends[i] if rows[i] < last row else 0

ids:    (draws,) int64; rows: (draws,) int64; ends: (draws,) int32, positions that are computed by now
tokens: (rows, positions) int32; lens: (rows,) int32, computed positions of every row
The last row is padding's, which may sample any number of times: its length stays 0. Exact.
"""

from collections.abc import Iterator

import torch
from torch import Tensor


def reference(ids: Tensor, rows: Tensor, ends: Tensor, tokens: Tensor, lens: Tensor) -> None:
    """The module docstring, on any device."""
    tokens[rows, ends.long()] = ids.int().clamp_min(0)
    lens[rows] = torch.where(rows < lens.shape[0] - 1, ends, 0)


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """One draw, several, padding, and invalid rows."""
    for rows in ([2], [4, 0, 3], [1, 5, 5]):
        ids = torch.randint(0, 500, (len(rows),), generator=generator)
        ids[rows.index(5) if 5 in rows else 0 :] = 7
        ends = torch.randint(1, 9, (len(rows),), generator=generator, dtype=torch.int32)
        ends[rows.index(5) if 5 in rows else 0 :] = 1
        tokens = torch.randint(0, 500, (6, 10), generator=generator, dtype=torch.int32)
        yield ids, torch.tensor(rows), ends, tokens, torch.arange(6, dtype=torch.int32)
        yield torch.full_like(ids, -1), torch.tensor(rows), ends, tokens, torch.arange(6, dtype=torch.int32)
