"""Draw one token id per row of logits.

    for r in rows:
        if temperature[r] == 0: id = argmax(logits[r]); next row          # the lowest id of equals
        x = logits[r] / temperature[r]
        keep ids whose probability >= min_p[r] * the largest probability
        of these keep the top_k[r] largest                                # 0: all of them
        of these, renormalised, keep the smallest set of largest whose sum >= top_p[r]   # at least one id
        id = argmax over the kept of x[id] + gumbel(seed[r], position[r], id)
    id = argmax.INVALID of every row that holds a NaN or whose largest logit is infinite

logits: (rows, vocab) of any floating type, computed in float32, -inf for forbidden ids
temperature, top_p, min_p: (rows,) float32; top_k, seed, position: (rows,) int64; out: (rows,) int64
all_greedy and any_filter describe the rows and are known on the host, so that nothing waits for the device.
The kept set is exact; of equal logits at its edge the lower ids are kept. Order of the filters as in vLLM.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from kvasir_runtime.kernels import argmax
from kvasir_runtime.kernels.gumbel import HIGHEST, LOWEST, gumbel, keys

# Sorting a row of 150,000 costs 10 ms; nearly every filter is decided among its first ids.
_FEW = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """How each row is drawn, as in the module docstring."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    position: Tensor
    all_greedy: bool
    any_filter: bool


DRAW: Final = np.dtype(
    [
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("top_k", np.int32),
        ("seed", np.int64),
        ("position", np.int64),
    ]
)
"""A row of `Draws` as one record, for kernels that read it from host memory."""
MOST_TOP_K: Final = 2**31 - 1
"""Of a DRAW. No vocabulary has as many ids."""


def reference(logits: Tensor, draws: Draws) -> Tensor:
    """One id per row, by sorting whole rows."""
    greedy = argmax.reference(logits)
    if draws.all_greedy:
        return greedy
    scaled = logits.float() / _divisor(draws.temperature)
    if draws.any_filter:
        ordered, ids = scaled.sort(dim=-1, descending=True, stable=True)
        kept = _by_mass(ordered, _by_rank(ordered, draws), draws.top_p)
        scaled = _only(scaled, kept, ids)
    row_keys = keys(draws.seed, draws.position).unsqueeze(1)
    scaled += gumbel(row_keys, torch.arange(logits.shape[1], device=logits.device))
    return torch.where(_is_drawn(draws, greedy), scaled.argmax(dim=-1), greedy)


def cpu(logits: Tensor, draws: Draws) -> Tensor:
    """As reference, sorting only _FEW ids where those decide, with noise only for ids that can win."""
    greedy = argmax.reference(logits)
    if draws.all_greedy:
        return greedy
    scaled = logits.float() / _divisor(draws.temperature)
    if draws.any_filter:
        scaled = _filtered(scaled, draws)
    possible = scaled >= scaled.amax(dim=-1, keepdim=True) - (HIGHEST - LOWEST)
    rows, ids = possible.nonzero(as_tuple=True)
    noisy = scaled[rows, ids] + gumbel(keys(draws.seed, draws.position)[rows], ids)
    best = torch.full_like(scaled, float("-inf")).index_put_((rows, ids), noisy).argmax(dim=-1)
    return torch.where(_is_drawn(draws, greedy), best, greedy)


def _is_drawn(draws: Draws, greedy: Tensor) -> Tensor:
    """(rows,) bool: which rows do not take the most likely id."""
    return (draws.temperature > 0) & (greedy != argmax.INVALID)


def _divisor(temperature: Tensor) -> Tensor:
    """(rows, 1) to divide logits by: that of greedy rows does not matter, one near zero must not overflow."""
    return torch.where(temperature > 0, temperature, 1.0).clamp_min(1e-5).unsqueeze(1)


def _only(scaled: Tensor, kept: Tensor, ids: Tensor) -> Tensor:
    """scaled with -inf wherever ids are not kept; kept and ids: (rows, some)."""
    values = scaled.gather(1, ids).masked_fill(~kept, float("-inf"))
    return torch.full_like(scaled, float("-inf")).scatter_(1, ids, values)


def _by_rank(ordered: Tensor, draws: Draws) -> Tensor:
    """Which of the largest-first logits of each row pass min_p and top_k: (rows, ids) bool. A prefix of each row."""
    ranks, top_k = torch.arange(ordered.shape[1], device=ordered.device), draws.top_k.unsqueeze(1)
    kept = ordered >= ordered[:, :1] + draws.min_p.unsqueeze(1).log()
    return kept & ((top_k == 0) | (ranks < top_k))


def _by_mass(ordered: Tensor, kept: Tensor, top_p: Tensor, log_mass: Tensor | None = None) -> Tensor:
    """Which of the kept also pass top_p: (rows, ids) bool.

    log_mass: (rows, 1) log of the sum of exp that the probabilities refer to; by default that of the kept.
    """
    passed = ordered.masked_fill(~kept, float("-inf"))
    mass = passed.logsumexp(dim=-1, keepdim=True) if log_mass is None else log_mass
    probabilities = (passed - mass).exp()
    before = probabilities.cumsum(dim=-1) - probabilities
    kept = kept & ((top_p.unsqueeze(1) >= 1) | (before < top_p.unsqueeze(1)))
    kept[:, 0] = True
    return kept


def _filtered(scaled: Tensor, draws: Draws) -> Tensor:
    """scaled with -inf for what the filters drop, found among the first _FEW of each row where those decide."""
    num_few = min(_FEW, scaled.shape[1])
    ordered, ids = _largest(scaled, num_few)
    ranked = _by_rank(ordered, draws)
    # Rows that only top_p narrows refer to the mass of the whole row, which needs no sorting.
    only_mass = ((draws.top_k == 0) & (draws.min_p == 0)).unsqueeze(1)
    of_ranked = ordered.masked_fill(~ranked, float("-inf")).logsumexp(dim=-1, keepdim=True)
    mass = torch.where(only_mass, scaled.logsumexp(dim=-1, keepdim=True), of_ranked)
    kept = _by_mass(ordered, ranked, draws.top_p, mass)
    plain = only_mass & (draws.top_p >= 1).unsqueeze(1) | (draws.temperature == 0).unsqueeze(1)
    decided = plain.squeeze(1) | ~ranked[:, -1] | (only_mass.squeeze(1) & ~kept[:, -1])
    # Of equals at the end of the few any may be missing.
    decided &= plain.squeeze(1) | (ordered.masked_fill(~kept, math.inf).amin(dim=-1) > ordered[:, -1])
    if num_few < scaled.shape[1] and not bool(decided.all()):
        ordered, ids = scaled.sort(dim=-1, descending=True, stable=True)
        kept = _by_mass(ordered, _by_rank(ordered, draws), draws.top_p)
    return torch.where(plain, scaled, _only(scaled, kept, ids))


def _largest(scaled: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(rows, count) the largest of each row and their ids; of equals the lower ids first."""
    ids = scaled.topk(count).indices.sort(dim=-1).values
    ordered, places = scaled.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return ordered, ids.gather(1, places)


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """Greedy, plain, each filter alone, all of them, mixed rows, invalid rows; vocabularies below and above the short
    cut."""
    settings = (
        ((0.0, 0, 1.0, 0.0),),
        ((1.0, 0, 1.0, 0.0), (0.3, 0, 1.0, 0.0), (0.0, 0, 1.0, 0.0)),
        ((0.7, 5, 1.0, 0.0), (1.0, 0, 0.8, 0.0), (1.0, 0, 1.0, 0.1), (0.0, 3, 0.5, 0.5)),
        ((2.0, 50, 0.95, 0.02), (1.0, 1, 1.0, 0.0), (1.0, 0, 1e-9, 0.0), (5.0, 0, 0.999, 0.0)),
    )
    for vocab in (17, 5000):
        for rows in settings:
            logits = torch.randn(len(rows), vocab, generator=generator) * 3
            logits[:, 3] = float("-inf")
            yield logits, _draws(rows)
        for row in (row for rows in settings for row in rows):
            yield argmax.invalid_rows(vocab, generator), _draws((row,) * 6)


def _draws(rows: tuple[tuple[float, int, float, float], ...]) -> Draws:
    """rows: of each temperature, top_k, top_p and min_p."""
    temperature, top_k, top_p, min_p = zip(*rows, strict=True)
    return Draws(
        temperature=torch.tensor(temperature),
        top_k=torch.tensor(top_k),
        top_p=torch.tensor(top_p),
        min_p=torch.tensor(min_p),
        seed=torch.arange(len(rows)) * 7919,
        position=torch.arange(len(rows)) + 100,
        all_greedy=not any(temperature),
        any_filter=any(k > 0 or p < 1 or m > 0 for _, k, p, m in rows),
    )
