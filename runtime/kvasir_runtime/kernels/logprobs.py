"""What a model thought of given tokens: logarithms of probabilities from raw logits, without a softmax of all of them.

    for r in rows:
        logprob = logits[r, ids[r]] - log(sum(exp(logits[r])))    # NaN where that sum is not finite or 0
        rank = 1 + number of ids with larger logits
        top = the num_top largest, largest first, as logarithms of probabilities too

Called by the runner for the rows that ask for it. The result is packed into one float32 matrix, so that it comes to the
host in one piece; ids and ranks are exact in it, as vocabularies are far below 2**24.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvasir_runtime.wire import Logprobs


def packed(
    logits: Tensor, ids: Tensor, num_top: int, others: Tensor | None = None, allowed: Tensor | None = None
) -> Tensor:
    """(rows, 2 + 2 * num_top + num_others) float32: logprob, rank, ids of the top, their logprobs, those of others.

    logits: (rows, vocab) float32; ids: (rows,) int64; others: (rows, num_others) int64. allowed: logits with -inf in
    place of those that are no candidates for the top.
    """
    mass = logits.logsumexp(dim=-1, keepdim=True)
    mass = torch.where(mass.isfinite(), mass, float("nan"))
    chosen = logits.gather(1, ids.unsqueeze(1))
    rank = (logits > chosen).sum(dim=-1, keepdim=True) + 1
    columns = [chosen - mass, rank.float()]
    if num_top:
        candidates = logits if allowed is None else allowed
        top, top_ids = candidates.topk(min(num_top, logits.shape[1]), dim=-1)
        columns += [top_ids.float(), top - mass]
    if others is not None:
        columns.append(logits.gather(1, others) - mass)
    return torch.cat(columns, dim=1)


def unpacked(
    rows: Tensor, num_top: Sequence[int], others: Sequence[tuple[int, ...]] = (), num_others: int = 0
) -> list[Logprobs]:
    """Rows of packed(), in host memory, each with as many of the top as it asked for, or with the others it named."""
    made, width = [], (rows.shape[1] - 2 - num_others) // 2
    for index, (row, count) in enumerate(zip(rows.tolist(), num_top, strict=True)):
        named = others[index] if others else ()
        if named:
            first = 2 + 2 * width
            values = tuple(row[first : first + len(named)])
            made.append(Logprobs(logprob=row[0], rank=int(row[1]), top_ids=named, top=values))
            continue
        made.append(
            Logprobs(
                logprob=row[0],
                rank=int(row[1]),
                top_ids=tuple(map(int, row[2 : 2 + min(count, width)])),
                top=tuple(row[2 + width : 2 + width + min(count, width)]),
            )
        )
    return made
