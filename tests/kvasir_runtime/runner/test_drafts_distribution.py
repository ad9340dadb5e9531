"""A million answers of two tokens, of which the first is drafted, have the distribution that they have without drafts.

The draft of a model, a head or a layer is drawn with the noise of its position from other logits, of all ids or of
those that it has; so it is right more often where that noise is large, which must not show in what is kept. A text's
draft is the same token in each answer, and so is one that a grammar forces or that a model of another vocabulary wrote.
The logits of the second position differ with the first token, as they do in a model and by penalties.
"""

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from kvasir_runtime.core.plan import Chunk, SampledTokens
from kvasir_runtime.kernels.cpu.ops import cpu_ops
from kvasir_runtime.kernels.sample import Draws
from kvasir_runtime.runner.drafts import verified

NUM, VOCAB, POSITION = 1_000_000, 8, 100
FIRST = torch.tensor([2.0, 1.0, 0.0, -0.2, -1.0, -0.4, 0.5, 1.5])
DRAFTER = torch.tensor([1.0, 1.5, 0.0, -1.0, 0.3, 0.0, 0.5, 1.0])
SECOND = torch.stack([FIRST.roll(token) * (1 + token % 3) / 2 for token in range(VOCAB)])
"""(VOCAB, VOCAB): of each first token the logits behind it."""
DRAFTERS = {
    "a model": DRAFTER,
    "few ids": torch.where(torch.arange(VOCAB) % 3 == 1, -1e30, DRAFTER),
    "a text": torch.where(torch.arange(VOCAB) == 0, 0.0, -1e30),
}
"""Logits that drafts are drawn from."""
OPTIONS = {
    "plain": {},
    "warm": {"temperature": 1.7},
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.1},
    "all": {"temperature": 0.8, "top_k": 6, "top_p": 0.9, "min_p": 0.05},
}
QUICK = ("plain", "all")
"""Options that `make test` has with each drafter. `make test-cases` has the rest."""


def drawn(logits: Tensor, seeds: Tensor, position: int, **option: float) -> Tensor:
    """(rows,) ids of logits (rows, VOCAB)."""
    how = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | option
    rows = {name: torch.full((len(seeds),), value) for name, value in how.items()}
    positions = torch.full_like(seeds, position)
    draws = Draws(**rows, seed=seeds, position=positions, all_greedy=False, any_filter=True)
    return cpu_ops().sample(logits.contiguous(), draws)


def shares(logits: Tensor, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0):
    """The probability of each id, by the definition of the filters; of no equals at an edge."""
    found = (logits.double() / temperature).softmax(0)
    found = torch.where(found >= min_p * found.max(), found, 0)
    if top_k:
        found = torch.where(found >= found.sort(descending=True).values[top_k - 1], found, 0)
    found = found / found.sum()
    larger = torch.stack([found[found > one].sum() for one in found])
    kept = torch.where(larger < top_p, found, 0)
    return kept / kept.sum()


def is_kept() -> Tensor:
    """(VOCAB, VOCAB) bool: whether of this draft and this first token what was drawn behind the draft is kept."""
    kept = torch.zeros(VOCAB, VOCAB, dtype=torch.bool)
    for draft, first in product(range(VOCAB), repeat=2):
        chunk = Chunk(row=0, start=POSITION, num_tokens=2, samples=True, drafts=(draft,))
        (entry,) = verified([chunk], [SampledTokens(0, (first,)), SampledTokens(0, (3,))])
        kept[draft, first] = len(entry.tokens) == 2
    return kept


def chi_square(first: Tensor, second: Tensor, wanted: Tensor) -> tuple[float, float]:
    """The statistic of pairs of tokens, and what it exceeds with a probability of 1e-6 (Wilson and Hilferty 1931)."""
    seen = torch.bincount(first * VOCAB + second, minlength=VOCAB**2).double().reshape(VOCAB, VOCAB)
    assert not seen[wanted == 0].any()
    possible, spread = wanted > 0, 2 / (9 * (int((wanted > 0).sum()) - 1))
    expected = wanted[possible] * NUM
    limit = (1 - spread + 4.753 * math.sqrt(spread)) ** 3 * 2 / (9 * spread)
    return float(((seen[possible] - expected) ** 2 / expected).sum()), limit


@pytest.mark.parametrize(
    ("name", "drafter"),
    [
        pytest.param(name, drafter, marks=[pytest.mark.long] * (drafter != "a model" and name not in QUICK))
        for name, drafter in product(OPTIONS, DRAFTERS)
    ],
)
def test_a_million_drafted_answers_follow_the_models_distribution(name: str, drafter: str):
    option, seeds = OPTIONS[name], torch.arange(NUM)
    drafts = drawn(DRAFTERS[drafter].expand(NUM, -1), seeds, POSITION, **option)
    first = drawn(FIRST.expand(NUM, -1), seeds, POSITION, **option)
    behind_draft = drawn(SECOND[drafts], seeds, POSITION + 1, **option)
    kept = is_kept()[drafts, first]
    assert 0.2 < kept.double().mean() < 0.95
    second = behind_draft.clone()
    second[~kept] = drawn(SECOND[first[~kept]], seeds[~kept], POSITION + 1, **option)
    wanted = torch.stack(
        [share * shares(SECOND[token], **option) for token, share in enumerate(shares(FIRST, **option))]
    )
    statistic, limit = chi_square(first, second, wanted)
    assert statistic < limit
    # Only answers whose draft is right are another distribution, and so many draws show it.
    among = shares(FIRST, **option)
    counted = torch.bincount(first[kept], minlength=VOCAB).double()
    expected = (among * int(kept.sum())).clamp_min(1e-9)
    assert float(((counted - expected) ** 2 / expected)[among > 0].sum()) > 10 * limit
