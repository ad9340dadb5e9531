"""Drawn tokens follow their distribution, filters keep exactly their sets, and neighbours change nothing."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvasir_runtime.kernels.cpu.bindings import cpu_kernels
from kvasir_runtime.kernels.cpu.library import Library, library, variants
from kvasir_runtime.kernels.cpu.ops import CPU
from kvasir_runtime.kernels.gumbel import HIGHEST, LOWEST, gumbel, keys, mix32, mix64
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.kernels.reference import REFERENCE
from kvasir_runtime.kernels.sample import Draws


def in_cpp() -> list[Ops]:
    """A table for each variant that this processor runs."""
    if (found := library()) is None:
        return []
    made = {isa: cpu_kernels(Library(isa=isa, handle=found.handle)) for isa in variants(found.handle)}
    return [replace(CPU, name=isa, sample=kernels.sample) for isa, kernels in made.items()]


TABLES = pytest.mark.parametrize("table", [REFERENCE, CPU, *in_cpp()], ids=lambda table: table.name)
LOGITS = [2.0, 1.0, 0.0, 0.0, -1.0, -30.0, 0.5, 1.5]


def draws(
    num_rows: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 5,
    position: int = 0,
) -> Draws:
    return Draws(
        temperature=torch.full((num_rows,), temperature),
        top_k=torch.full((num_rows,), top_k),
        top_p=torch.full((num_rows,), top_p),
        min_p=torch.full((num_rows,), min_p),
        seed=torch.full((num_rows,), seed),
        position=torch.arange(num_rows) + position,
        all_greedy=temperature == 0,
        any_filter=top_k > 0 or top_p < 1 or min_p > 0,
    )


def chi_square(table: Ops, logits: list[float], wanted: list[float], **how: float) -> float:
    """Sum of (seen - expected)^2 / expected over the tokens that can be drawn; all others must not occur."""
    num = 4000
    ids = table.sample(torch.tensor(logits).expand(num, -1).clone(), draws(num, **how)).tolist()
    seen = Counter(ids)
    assert all(wanted[token] > 0 for token in seen)
    likely = [token for token, share in enumerate(wanted) if share * num >= 1]
    return sum((seen[token] - num * wanted[token]) ** 2 / (num * wanted[token]) for token in likely)


def softmax(logits: list[float], temperature: float = 1.0) -> list[float]:
    weights = [math.exp(logit / temperature) for logit in logits]
    return [weight / sum(weights) for weight in weights]


@TABLES
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_draws_follow_the_distribution(table: Ops, temperature: float) -> None:
    # 7 degrees of freedom at most: above 29 with a probability of 1e-4, and the seeds are fixed.
    assert chi_square(table, LOGITS, softmax(LOGITS, temperature), temperature=temperature) < 29


@TABLES
def test_filtered_draws_follow_the_renormalised_distribution(table: Ops) -> None:
    kept = softmax([2.0, 1.0, 1.5])
    wanted = [kept[0], kept[1], 0, 0, 0, 0, 0, kept[2]]
    assert chi_square(table, LOGITS, wanted, top_k=3) < 21
    assert chi_square(table, LOGITS, wanted, min_p=0.3) < 21


FILTERS = [
    # probabilities 0.4 0.25 0.2 0.1 0.05 of tokens 7, 3, 0, 5, 1; the rest is impossible
    ({"top_k": 1}, {7}),
    ({"top_k": 3}, {7, 3, 0}),
    ({"top_k": 100}, {7, 3, 0, 5, 1}),
    ({"top_p": 0.39}, {7}),
    ({"top_p": 0.41}, {7, 3}),
    ({"top_p": 0.86}, {7, 3, 0, 5}),
    ({"top_p": 1e-6}, {7}),
    ({"min_p": 0.49}, {7, 3, 0}),
    ({"min_p": 0.51}, {7, 3}),
    ({"min_p": 1.0}, {7}),
    # of the two largest, 0.4 / 0.65 = 0.615
    ({"top_k": 2, "top_p": 0.6}, {7}),
    ({"top_k": 2, "top_p": 0.63}, {7, 3}),
    # min_p leaves 0.4 0.25 0.2: 0.47 0.29 0.24
    ({"min_p": 0.3, "top_p": 0.5}, {7, 3}),
    ({"min_p": 0.3, "top_p": 0.8}, {7, 3, 0}),
]


@TABLES
@pytest.mark.parametrize("vocab", [8, 3000])
@pytest.mark.parametrize(("how", "kept"), FILTERS)
def test_filters_keep_exactly_their_set(table: Ops, vocab: int, how: dict[str, float], kept: set[int]) -> None:
    logits = torch.full((600, vocab), float("-inf"))
    for token, share in ((7, 0.4), (3, 0.25), (0, 0.2), (5, 0.1), (1, 0.05)):
        logits[:, token] = math.log(share)
    # A high temperature after the fact would change the sets, so the many rows bring out the rare ones instead.
    assert set(table.sample(logits, draws(600, **how)).tolist()) == kept


@TABLES
def test_row_is_drawn_alike_alone_and_in_any_batch(table: Ops) -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(9, 2000, generator=generator) * 2
    how = Draws(
        temperature=torch.tensor([0.0, 1.0, 0.7, 2.0, 1.0, 1.0, 0.0, 1.3, 1.0]),
        top_k=torch.tensor([0, 0, 5, 0, 0, 50, 3, 0, 0]),
        top_p=torch.tensor([1.0, 1.0, 1.0, 0.9, 1.0, 0.5, 0.2, 1.0, 1.0]),
        min_p=torch.tensor([0.0, 0.0, 0.0, 0.0, 0.05, 0.0, 0.0, 0.0, 0.0]),
        seed=torch.tensor([0, -1, 2**62, 3, 4, 5, 6, 7, 7]),
        position=torch.tensor([0, 100, 2, 3, 4, 5, 6, 7, 8]),
        all_greedy=False,
        any_filter=True,
    )
    together = table.sample(logits.clone(), how).tolist()
    for row in range(9):
        assert table.sample(logits[row : row + 1].clone(), one_row(how, row)).tolist() == [together[row]]


def one_row(how: Draws, row: int) -> Draws:
    def cut(values: Tensor) -> Tensor:
        return values[row : row + 1]

    top_k, top_p, min_p = cut(how.top_k), cut(how.top_p), cut(how.min_p)
    return Draws(
        temperature=cut(how.temperature),
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=cut(how.seed),
        position=cut(how.position),
        all_greedy=not cut(how.temperature).any(),
        any_filter=bool(top_k > 0) or bool(top_p < 1) or bool(min_p > 0),
    )


@TABLES
def test_greedy_takes_the_lowest_of_equals(table: Ops) -> None:
    assert table.sample(torch.tensor([[0.0, 3.0, 3.0]]), draws(1, temperature=0.0)).tolist() == [1]


@TABLES
def test_tiny_temperature_is_nearly_greedy(table: Ops) -> None:
    logits = torch.tensor([[1e4, 1e4 - 1, -1e4]]).repeat(50, 1)
    assert set(table.sample(logits, draws(50, temperature=1e-30)).tolist()) == {0}


@TABLES
def test_forbidden_tokens_are_never_drawn(table: Ops) -> None:
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), -5.0]]).repeat(500, 1)
    for how in (draws(500, temperature=50.0), draws(500, temperature=50.0, top_p=0.999999)):
        assert set(table.sample(logits.clone(), how).tolist()) == {1, 3}


BEYOND = (
    {"top_p": 0.2},
    {"top_p": 0.95},
    {"top_p": 0.01},
    {"top_k": 2500, "top_p": 0.3},
    {"min_p": 0.05, "top_p": 0.3},
)


@TABLES
@pytest.mark.parametrize("how", [*BEYOND, {"top_k": 1}, {"top_k": 40}, {"top_k": 3999}, {}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draws_are_those_of_the_full_sort(table: Ops, how: dict[str, float], dtype: torch.dtype) -> None:
    logits = torch.randn(64, 4000, generator=torch.Generator().manual_seed(3)) * 0.5
    logits[:, ::7] = float("-inf")
    for temperature in (0.3, 1.0):
        args = draws(64, temperature=temperature, **how)
        some = logits.to(dtype)  # which has many equals
        assert table.sample(some.clone(), args).tolist() == REFERENCE.sample(some.clone(), args).tolist()


@TABLES
def test_of_equals_the_lower_ids_are_kept(table: Ops) -> None:
    logits = torch.zeros(400, 3000)
    assert max(table.sample(logits.clone(), draws(400, top_k=70)).tolist()) == 69
    assert 740 < max(table.sample(logits.clone(), draws(400, top_p=0.25)).tolist()) <= 750


def test_noise_depends_on_seed_position_and_token_alone() -> None:
    seeds, positions, ids = torch.tensor([1, 1, 2]), torch.tensor([9, 10, 9]), torch.arange(50)
    noise = gumbel(keys(seeds, positions).unsqueeze(1), ids)
    assert torch.equal(noise[1, 20:], gumbel(keys(seeds[1:2], positions[1:2]), ids[20:]))
    assert len({round(float(x), 6) for x in noise.flatten()}) > 140
    assert noise.min() >= LOWEST
    assert noise.max() <= HIGHEST


def test_noise_is_the_same_on_every_platform() -> None:
    # Written out from the formula in plain integers, so that another backend, or a new torch, cannot drift.
    def plain(x: int, width: int, shifts: tuple[int, int, int], factors: tuple[int, int]) -> int:
        for shift, factor in zip(shifts, (*factors, 1), strict=True):
            x = ((x ^ x >> shift) * factor) & (2**width - 1)
        return x

    def plain64(x: int) -> int:
        return plain(x, 64, (30, 27, 31), (0xBF58476D1CE4E5B9, 0x94D049BB133111EB))

    for seed, position, token in ((0, 0, 0), (123, 456, 789), (2**63, 5, 150_000)):
        key = plain64(seed ^ plain64(position)) >> 32
        bits = plain((key + token * 0x9E3779B9) % 2**32, 32, (16, 15, 16), (0x7FEB352D, 0x846CA68B))
        wanted = -math.log(-math.log(((bits >> 9) + 0.5) / 2**23))
        signed = seed - 2**64 if seed >= 2**63 else seed
        got = gumbel(keys(torch.tensor([signed]), torch.tensor([position])), torch.tensor([token]))
        assert float(got) == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_mixers_have_no_collisions_nearby() -> None:
    near = torch.arange(-5000, 5000)
    assert len(set(mix64(near).tolist())) == 10_000
    assert len(set(mix32(near.int()).tolist())) == 10_000
