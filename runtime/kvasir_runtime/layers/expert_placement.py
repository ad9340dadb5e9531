"""Of which experts a rank should have copies, so that all ranks compute about as much. Pure; called by `expert_copies`.

As DeepSeek's EPLB (2025) the experts with most tokens are copied to the ranks with least. Here an expert stays at its
home, so that a rank reads no more experts than it has room for copies. All ranks compute the same from the same counts,
so all numbers are whole.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from kvasir_runtime.kernels.copied_experts import Copies

Counts = npt.NDArray[np.int64]
_TRIED: Final = 4
"""Experts of the rank with most rows, of which one is copied next."""
_DIVISIBLE: Final = 840
"""By all numbers of ranks that may share an expert's rows, 1 to 8."""


def loads(tokens: Counts, homes: Sequence[int], copies: Copies) -> Counts:
    """(ranks,), of each its rows, times 840. tokens: (experts,), that went to each. homes: as of `CopiedExperts`."""
    return _loads(tokens, _held(homes, copies))


def placed(tokens: Counts, homes: Sequence[int], old: Copies, room: int) -> Copies:
    """Copies in place of others, or the old ones where these lower the largest load by at most 5 percent.

    room: copies on each rank. One after another is made where it lowers the largest loads most, until none does.
    """
    nothing: Copies = ((),) * len(old)
    own = _held(homes, nothing)
    held, load = own.copy(), _loads(tokens, own)
    while (found := _next(tokens, held, load, (held & ~own).sum(axis=1) < room)) is not None:
        held[found] = True
        load = _loads(tokens, held)
    if 20 * load.max() >= 19 * loads(tokens, homes, old).max():
        return old
    return tuple(tuple(np.flatnonzero(of_rank).tolist()) for of_rank in held & ~own)


def _next(
    tokens: Counts, held: npt.NDArray[np.bool_], load: Counts, is_free: npt.NDArray[np.bool_]
) -> tuple[int, int] | None:
    """The rank with least that has room, and the expert of the rank with most that should be there too."""
    hottest = int(load.argmax())
    free = [rank for rank in np.flatnonzero(is_free).tolist() if rank != hottest]
    if not free:
        return None
    target = min(free, key=lambda rank: (load[rank], rank))
    share = tokens * _DIVISIBLE // held.sum(axis=0)
    able = np.flatnonzero(held[hottest] & ~held[target]).tolist()
    best, found = sorted(load.tolist(), reverse=True), None
    for expert in sorted(able, key=lambda expert: (-share[expert], expert))[:_TRIED]:
        held[target, expert] = True
        if (tried := sorted(_loads(tokens, held).tolist(), reverse=True)) < best:
            best, found = tried, (target, expert)
        held[target, expert] = False
    return found


def _held(homes: Sequence[int], copies: Copies) -> npt.NDArray[np.bool_]:
    """(ranks, experts), which rank has which expert."""
    held: npt.NDArray[np.bool_] = np.asarray(homes) == np.arange(len(copies))[:, None]
    for rank, own in enumerate(copies):
        held[rank, list(own)] = True
    return held


def _loads(tokens: Counts, held: npt.NDArray[np.bool_]) -> Counts:
    found: Counts = (held * (tokens * _DIVISIBLE // held.sum(axis=0))).sum(axis=1)
    return found
