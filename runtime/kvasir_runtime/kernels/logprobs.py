"""What a model thought of given tokens: logarithms of probabilities from raw logits, without a softmax of all of them.

    for r in rows:
        logprob = logits[r, ids[r]] - log(sum(exp(logits[r])))
        rank = 1 + number of ids with larger logits
        top = the num_top largest, largest first, as logarithms of probabilities too

Called by the runner for the rows that ask for it. The result is packed into one float32 matrix, so that it comes to the
host in one piece; ids and ranks are exact in it, as vocabularies are far below 2**24.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvasir_runtime.wire import Logprobs


def packed(logits: Tensor, ids: Tensor, num_top: int) -> Tensor:
    """(rows, 2 + 2 * num_top) float32: logprob, rank, ids of the top, their logprobs.

    logits: (rows, vocab) float32; ids: (rows,) int64.
    """
    mass = logits.logsumexp(dim=-1, keepdim=True)
    chosen = logits.gather(1, ids.unsqueeze(1))
    rank = (logits > chosen).sum(dim=-1, keepdim=True) + 1
    columns = [chosen - mass, rank.float()]
    if num_top:
        top, top_ids = logits.topk(min(num_top, logits.shape[1]), dim=-1)
        columns += [top_ids.float(), top - mass]
    return torch.cat(columns, dim=1)


def unpacked(rows: Tensor, num_top: Sequence[int]) -> list[Logprobs]:
    """Rows of packed(), in host memory, each with as many of the top as it asked for."""
    made, width = [], (rows.shape[1] - 2) // 2
    for row, count in zip(rows.tolist(), num_top, strict=True):
        made.append(
            Logprobs(
                logprob=row[0],
                rank=int(row[1]),
                top_ids=tuple(map(int, row[2 : 2 + min(count, width)])),
                top=tuple(row[2 + width : 2 + width + min(count, width)]),
            )
        )
    return made
