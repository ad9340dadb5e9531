"""What a model thought of given tokens: logarithms of probabilities from raw logits, without a softmax of all of them.

    for r in rows:
        logprob = logits[r, ids[r]] - log(sum(exp(logits[r])))    # NaN where that sum is not finite or 0
        rank = 1 + number of ids with larger logits
        top = the num_top largest, largest first, as logarithms of probabilities too; of equals any may come first

Called by the runner for the rows that ask for it, through `Ops.logprobs`. The result is packed into one float32 matrix,
so that it comes to the host in one piece; ids and ranks are exact in it, as vocabularies are far below 2**24.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvasir_runtime import wire


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedLogprobs:
    """What is reported of rows. others: (rows, num_others) int64 ids whose logprobs come too; None for none.

    rows: indices among the rows of the logits; None for all of them.
    """

    num_top: int
    others: Tensor | None = None
    rows: Sequence[int] | None = None


ComputeLogprobs = Callable[[Tensor, Tensor, WantedLogprobs, Tensor | None], Tensor]
"""(rows, 2 + 2 * num_top + num_others) float32 of logits, ids, what is wanted, and candidates: as `reference`."""


def reference(logits: Tensor, ids: Tensor, wanted: WantedLogprobs, candidates: Tensor | None = None) -> Tensor:
    """(wanted rows, 2 + 2 * num_top + num_others) float32: logprob, rank, ids of the top, their logprobs, those of
    others. There are no more of the top than ids.

    logits: (rows, vocab) float32 or bfloat16; ids: (rows,) int64. candidates: (wanted rows, vocab) float32, logits with
    -inf in place of those that may not be among the top.
    """
    if wanted.rows is not None:
        picked = torch.tensor(wanted.rows, device=logits.device)
        logits, ids = logits[picked], ids[picked]
    logits, num_top, others = logits.float(), wanted.num_top, wanted.others
    mass = logits.logsumexp(dim=-1, keepdim=True)
    mass = torch.where(mass.isfinite(), mass, float("nan"))
    chosen = logits.gather(1, ids.unsqueeze(1))
    rank = (logits > chosen).sum(dim=-1, keepdim=True) + 1
    columns = [chosen - mass, rank.float()]
    if num_top:
        candidates = logits if candidates is None else candidates
        top, top_ids = candidates.topk(min(num_top, logits.shape[1]), dim=-1)
        columns += [top_ids.float(), top - mass]
    if others is not None:
        columns.append(logits.gather(1, others) - mass)
    return torch.cat(columns, dim=1)


def unpacked(
    rows: Tensor, num_top: Sequence[int], others: Sequence[tuple[int, ...]] = (), num_others: int = 0
) -> list[wire.Logprobs]:
    """Rows of `reference`, in host memory, each with as many of the top as its request wants, or with the others."""
    made, width = [], (rows.shape[1] - 2 - num_others) // 2
    for index, (row, count) in enumerate(zip(rows.tolist(), num_top, strict=True)):
        named = others[index] if others else ()
        if named:
            first = 2 + 2 * width
            values = tuple(row[first : first + len(named)])
            made.append(wire.Logprobs(logprob=row[0], rank=int(row[1]), top_ids=named, top=values))
            continue
        made.append(
            wire.Logprobs(
                logprob=row[0],
                rank=int(row[1]),
                top_ids=tuple(map(int, row[2 : 2 + min(count, width)])),
                top=tuple(row[2 + width : 2 + width + min(count, width)]),
            )
        )
    return made


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """None, some and all of the top, others, some rows, candidates; vocabularies of one part and of several."""
    for rows, vocab, num_top in ((1, 17, 17), (3, 333, 0), (2, 40_000, 20), (4, 17_003, 1)):
        logits = torch.randn(rows, vocab, generator=generator) * 4
        logits[:, 3] = float("-inf")
        ids = torch.randint(0, vocab, (rows,), generator=generator)
        yield logits, ids, WantedLogprobs(num_top=num_top)
        others = torch.randint(0, vocab, (rows, 5), generator=generator)
        yield logits, ids, WantedLogprobs(num_top=num_top, others=others)
        candidates = logits.masked_fill(torch.rand(logits.shape, generator=generator) < 0.3, float("-inf"))
        few = min(num_top, 5)
        yield logits, ids, WantedLogprobs(num_top=few, rows=list(range(rows))), candidates
        yield logits, ids, WantedLogprobs(num_top=num_top, rows=list(range(rows))[::-2])
