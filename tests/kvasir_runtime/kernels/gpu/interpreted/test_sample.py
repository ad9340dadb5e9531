"""Sampling without a sort draws what the reference draws: with ties, forbidden ids and thresholds of every kind."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import triton_device

DEVICE = triton_device.device()

from kvasir_runtime.kernels import sample as operation  # noqa: E402 -- behind the question where it can run
from kvasir_runtime.kernels.gpu import sample  # noqa: E402
from kvasir_runtime.kernels.sample import Draws  # noqa: E402

# temperature, top_k, top_p, min_p
Row = tuple[float, int, float, float]


def draws(rows: list[Row], seed: int, device: torch.device) -> Draws:
    temperature, top_k, top_p, min_p = (torch.tensor(column, device=device) for column in zip(*rows, strict=True))
    seeds = torch.arange(len(rows), device=device) * 7919 + seed
    return Draws(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seeds, position=seeds.abs() % 5000,
        all_greedy=not any(row[0] for row in rows), any_filter=any(k > 0 or p < 1 or m > 0 for _, k, p, m in rows),
    )  # fmt: skip


def both(logits: torch.Tensor, rows: list[Row], seed: int) -> tuple[list[int], list[int]]:
    want = operation.reference(logits.clone(), draws(rows, seed, torch.device("cpu")))
    return want.tolist(), sample.launch(logits.to(DEVICE), draws(rows, seed, DEVICE)).tolist()


ROWS = st.tuples(
    st.sampled_from([0.0, 0.3, 1.0, 4.0]),
    st.sampled_from([0, 0, 1, 3, 40, 5000]),
    st.sampled_from([1.0, 1.0, 0.9, 0.5, 0.0001]),
    st.sampled_from([0.0, 0.0, 0.03, 1.0]),
)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    rows=st.lists(ROWS, min_size=1, max_size=3),
    vocab=st.sampled_from([3, 320, 2500]),
    step=st.sampled_from([0.0, 0.25, 2.0]),
    seed=st.integers(-(2**62), 2**62),
)
def test_draws_are_the_references(rows: list[Row], vocab: int, step: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed % 1000)
    logits = torch.randn(len(rows), vocab, generator=generator) * 3
    if step:
        logits = (logits / step).round() * step  # many equals, also at the edges of the filters
    logits[:, 1::7] = float("-inf")
    want, have = both(logits, rows, seed)
    assert have == want


FILTERS = [
    # probabilities 0.4 0.25 0.2 0.1 0.05 of tokens 7, 3, 0, 5, 1; the rest is impossible
    ((1.0, 3, 1.0, 0.0), {7, 3, 0}),
    ((1.0, 0, 0.41, 0.0), {7, 3}),
    ((1.0, 0, 1e-6, 0.0), {7}),
    ((1.0, 0, 1.0, 0.49), {7, 3, 0}),
    ((1.0, 2, 0.63, 0.0), {7, 3}),
    ((1.0, 0, 0.8, 0.3), {7, 3, 0}),
]


@pytest.mark.parametrize(("row", "kept"), FILTERS)
def test_filters_keep_exactly_their_set(row: Row, kept: set[int]) -> None:
    logits = torch.full((8, 12), float("-inf"))
    for token, share in ((7, 0.4), (3, 0.25), (0, 0.2), (5, 0.1), (1, 0.05)):
        logits[:, token] = math.log(share)
    want, have = both(logits, [row] * 8, 11)
    assert set(have) <= kept
    assert have == want


def test_lowest_of_equals_is_kept_and_taken() -> None:
    logits = torch.zeros(9, 3000)
    want, have = both(logits, [(1.0, 5, 1.0, 0.0)] * 9, 3)
    assert have == want
    assert set(have) <= set(range(5))
    assert both(logits[:2], [(0.0, 0, 1.0, 0.0)] * 2, 3)[1] == [0, 0]


def test_zeros_of_both_signs_are_equal() -> None:
    logits = torch.tensor([[-1.0, -0.0, 0.0, -0.0]]).repeat(12, 1)
    want, have = both(logits, [(1.0, 2, 1.0, 0.0)] * 12, 5)
    assert have == want
    assert set(have) == {1, 2}
