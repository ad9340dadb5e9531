"""Draw one token id per row of logits.

    for r in rows:
        if temperature[r] == 0: id = argmax(logits[r]); next row          # the lowest id of equals
        x = logits[r] / temperature[r]
        keep ids whose probability >= min_p[r] * the largest probability
        of these keep the top_k[r] largest                                # 0: all of them
        of these, renormalised, keep the smallest set of largest whose sum >= top_p[r]   # at least one id
        id = argmax over the kept of x[id] + gumbel(seed[r], position[r], id)

logits: (rows, vocab) float32, -inf for forbidden ids, at least one finite per row
temperature, top_p, min_p: (rows,) float32; top_k, seed, position: (rows,) int64; out: (rows,) int64
all_greedy and any_filter describe the rows and are known on the host, so that nothing waits for the device.
The kept set is exact; of equal logits at its edge the lower ids are kept. Order of the filters as in vLLM.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kvasir_runtime.kernels.noise import HIGHEST, LOWEST, gumbel

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


def reference(logits: Tensor, draws: Draws) -> Tensor:
    """One id per row, by sorting whole rows."""
    greedy = logits.argmax(dim=-1)
    if draws.all_greedy:
        return greedy
    scaled = logits / _positive(draws.temperature).unsqueeze(1)
    if draws.any_filter:
        ordered, ids = scaled.sort(dim=-1, descending=True, stable=True)
        kept = _by_mass(ordered, _by_rank(ordered, draws.top_k, draws.min_p), draws.top_p)
        scaled = torch.empty_like(scaled).scatter_(1, ids, ordered.masked_fill(~kept, float("-inf")))
    noise = gumbel(draws.seed, draws.position, torch.arange(logits.shape[1], device=logits.device))
    return torch.where(draws.temperature > 0, (scaled + noise).argmax(dim=-1), greedy)


def cpu(logits: Tensor, draws: Draws) -> Tensor:
    """As reference, row by row, looking only at ids that can win."""
    out = logits.argmax(dim=-1)
    if draws.all_greedy:
        return out
    for row, temperature in enumerate(draws.temperature.tolist()):
        if temperature > 0:
            scaled = logits[row] / max(temperature, _COLDEST)
            ids = _filtered(scaled, draws, row) if draws.any_filter else _possible(scaled)
            noise = gumbel(draws.seed[row : row + 1], draws.position[row : row + 1], ids)[0]
            out[row] = ids[(scaled[ids] + noise).argmax()]
    return out


_COLDEST = 1e-5


def _positive(temperature: Tensor) -> Tensor:
    """Temperatures to divide by: those of greedy rows do not matter, those near zero must not overflow."""
    return torch.where(temperature > 0, temperature, 1.0).clamp_min(_COLDEST)


def _by_rank(ordered: Tensor, top_k: Tensor, min_p: Tensor) -> Tensor:
    """Which of the largest-first logits of each row pass min_p and top_k: (rows, ids) bool. A prefix of each row."""
    ranks = torch.arange(ordered.shape[1], device=ordered.device)
    kept = ordered >= ordered[:, :1] + min_p.unsqueeze(1).log()
    return kept & ((top_k.unsqueeze(1) == 0) | (ranks < top_k.unsqueeze(1)))


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


def _filtered(scaled: Tensor, draws: Draws, row: int) -> Tensor:
    """Ids that pass the filters of one row, found among its first _FEW where those decide."""
    one = slice(row, row + 1)
    top_k, top_p, min_p = draws.top_k[one], draws.top_p[one], draws.min_p[one]
    if scaled.shape[0] > _FEW:
        ordered, ids = scaled.topk(_FEW)
        ordered = ordered.unsqueeze(0)
        kept = _by_rank(ordered, top_k, min_p)
        if not kept[0, -1]:
            return ids[_by_mass(ordered, kept, top_p)[0]]
        if not top_k and not min_p:
            kept = _by_mass(ordered, kept, top_p, scaled.logsumexp(dim=0).view(1, 1))
            if not kept[0, -1]:
                return ids[kept[0]]
    ordered, ids = scaled.sort(descending=True, stable=True)
    ordered = ordered.unsqueeze(0)
    return ids[_by_mass(ordered, _by_rank(ordered, top_k, min_p), top_p)[0]]


def _possible(scaled: Tensor) -> Tensor:
    """Ids of one row that some noise could make the largest: all others are too far below the best."""
    return (scaled >= scaled.max() - (HIGHEST - LOWEST)).nonzero().squeeze(1)


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """Greedy, plain, each filter alone, all of them, mixed rows; vocabularies below and above the short cut."""
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
            temperature, top_k, top_p, min_p = zip(*rows, strict=True)
            yield (
                logits,
                Draws(
                    temperature=torch.tensor(temperature),
                    top_k=torch.tensor(top_k),
                    top_p=torch.tensor(top_p),
                    min_p=torch.tensor(min_p),
                    seed=torch.arange(len(rows)) * 7919,
                    position=torch.arange(len(rows)) + 100,
                    all_greedy=not any(temperature),
                    any_filter=any(k > 0 or p < 1 or m > 0 for _, k, p, m in rows),
                ),
            )
