"""Drawing in C++ over several parts of a row and several threads; test_sample.py has what it draws."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvasir_runtime.kernels import sample
from kvasir_runtime.kernels.cpu.bindings import cpu_kernels
from kvasir_runtime.kernels.cpu.library import Library
from kvasir_runtime.kernels.sample import Draws

Sample = Callable[[Tensor, Draws], Tensor]

VOCAB = 50_001
WAYS = (
    (0.8, 0, 0.95, 0.0),
    (0.7, 20, 0.8, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 0.9, 0.02),
    (0.5, 45_000, 0.05, 0.0),
    (2.0, 300, 1.0, 1e-4),
)


def draws(rows: int) -> Draws:
    temperature, top_k, top_p, min_p = zip(*(WAYS[row % len(WAYS)] for row in range(rows)), strict=True)
    return Draws(
        temperature=torch.tensor(temperature),
        top_k=torch.tensor(top_k),
        top_p=torch.tensor(top_p),
        min_p=torch.tensor(min_p),
        seed=torch.arange(rows) * 31,
        position=torch.arange(rows) + 3,
        all_greedy=False,
        any_filter=True,
    )


def some(how: Draws, rows: slice) -> Draws:
    names = ("temperature", "top_k", "top_p", "min_p", "seed", "position")
    return replace(how, **{name: getattr(how, name)[rows] for name in names})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_draws_are_the_references_over_any_number_of_threads(
    variant: Library, dtype: torch.dtype, spread: float
) -> None:
    logits = (torch.randn(21, VOCAB, generator=torch.Generator().manual_seed(4)) * spread).to(dtype)
    logits[:, 5::9] = float("-inf")
    how, kernel = draws(21), cpu_kernels(variant).sample
    wanted = sample.reference(logits, how).tolist()
    for threads in (1, 2, 3):
        variant.start(threads)
        assert kernel(logits, how).tolist() == wanted
    variant.start(3)
    alone = [kernel(logits[row : row + 1], some(how, slice(row, row + 1))).item() for row in range(21)]
    assert alone == wanted, "rows by parts instead of whole ones"


def test_a_row_without_a_largest_logit_is_invalid(variant: Library) -> None:
    logits = torch.zeros(5 * len(WAYS), VOCAB)
    logits[0::5, 7], logits[1::5, VOCAB - 1], logits[2::5, 7] = float("nan"), float("nan"), float("inf")
    logits[3::5] = float("-inf")
    ids = cpu_kernels(variant).sample(logits, draws(len(logits)))
    assert ids.view(-1, 5)[:, :4].unique().tolist() == [-1]
    assert (ids.view(-1, 5)[:, 4] >= 0).all()


def test_numbers_at_the_ends_of_their_range_end(variant: Library) -> None:
    for largest in (3e38, 1e-38, -3e38):
        logits = torch.full((len(WAYS), 3000), -3e38)
        logits[:, 100:110] = largest
        for temperature in (1e-30, 1.0, 2.0):
            how = replace(draws(len(WAYS)), temperature=torch.full((len(WAYS),), temperature))
            ids = cpu_kernels(variant).sample(logits, how).tolist()
            assert all(0 <= token < 3000 for token in ids)
