"""Logprobs in C++ over several parts of a row and several threads; test_ops.py has more cases."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kvasir_runtime.kernels import logprobs
from kvasir_runtime.kernels.cpu.bindings import cpu_kernels
from kvasir_runtime.kernels.cpu.library import Library
from kvasir_runtime.kernels.logprobs import WantedLogprobs

VOCAB = 50_001


def case(rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Logits with many that are equal and some of minus infinity, ids, and others."""
    generator = torch.Generator().manual_seed(rows)
    logits = (torch.randn(rows, VOCAB, generator=generator) * 3).to(dtype)
    logits[:, 5::9] = float("-inf")
    ids = torch.randint(0, VOCAB, (rows,), generator=generator)
    return logits, ids, torch.randint(0, VOCAB, (rows, 3), generator=generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_they_are_the_references_and_the_same_bits_however_they_are_computed(
    variant: Library, dtype: torch.dtype
) -> None:
    kernel, (logits, ids, others) = cpu_kernels(variant).logprobs, case(21, dtype)
    wanted = WantedLogprobs(num_top=20, others=others)
    reference = logprobs.reference(logits, ids, wanted)
    variant.start(1)
    found = kernel(logits, ids, wanted)
    others_from = 2 + 2 * 20
    same = [*(0, 1), *range(2 + 20, others_from + 3)]  # of equal logits either id may come first
    torch.testing.assert_close(found[:, same], reference[:, same], atol=2e-6, rtol=1e-6)
    named = logits.float().gather(1, found[:, 2:22].long())
    torch.testing.assert_close(named.sort(descending=True).values, named, atol=0, rtol=0)
    for threads in (2, 3):
        variant.start(threads)
        assert torch.equal(kernel(logits, ids, wanted), found)
    assert torch.equal(kernel(logits.float(), ids, wanted), found), "the same numbers in another type"
    for row in (0, 20):
        one = slice(row, row + 1)
        alone = kernel(logits[one].contiguous(), ids[one], WantedLogprobs(num_top=20, others=others[one]))
        assert torch.equal(alone, found[one])
    picked = WantedLogprobs(num_top=20, others=others[[7, 3]].contiguous(), rows=[7, 3])
    assert torch.equal(kernel(logits, ids, picked), found[[7, 3]])


def test_of_equal_logits_the_lower_ids_come_first(variant: Library) -> None:
    logits = torch.zeros(2, VOCAB)
    logits[:, [9, VOCAB - 1, 40_000]] = 2.0
    found = cpu_kernels(variant).logprobs(logits, torch.tensor([7, 9]), WantedLogprobs(num_top=6))
    assert found[:, 2:8].tolist() == [[9, 40_000, VOCAB - 1, 0, 1, 2]] * 2
    assert found[:, 1].tolist() == [4, 1]
    mass = math.log(VOCAB - 3 + 3 * math.exp(2))
    assert found[:, 0].tolist() == pytest.approx([-mass, 2 - mass], abs=2e-6)


def test_a_whole_vocabulary_comes_in_order(variant: Library) -> None:
    logits, ids, _ = case(2, torch.bfloat16)
    found = cpu_kernels(variant).logprobs(logits, ids, WantedLogprobs(num_top=VOCAB))
    order = logits.float().sort(descending=True, stable=True).indices
    assert torch.equal(found[:, 2 : 2 + VOCAB].long(), order)
    assert torch.equal(found[:, 2 + VOCAB :].isinf(), logits.gather(1, order).isinf())


def test_candidates_alone_are_among_the_top(variant: Library) -> None:
    logits, ids, _ = case(3, torch.bfloat16)
    candidates = torch.full((2, VOCAB), float("-inf"))
    candidates[0, [3, 44_000]] = logits[2, [3, 44_000]].float()
    candidates[1, 8] = logits[0, 8].float()
    found = cpu_kernels(variant).logprobs(logits, ids, WantedLogprobs(num_top=3, rows=[2, 0]), candidates)
    assert set(found[0, 2:4].tolist()) == {3.0, 44_000.0}
    assert found[1, 2] == 8
    assert found[:, 7].tolist() == [float("-inf")] * 2


SPOILED: dict[str, Callable[[Tensor], object]] = {
    "nan": lambda row: row[VOCAB - 1 :].fill_(float("nan")),
    "infinity": lambda row: row[17:18].fill_(float("inf")),
    "nothing": lambda row: row.fill_(float("-inf")),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_rows_without_a_mass_have_no_logprobs_and_change_no_other(
    variant: Library, spoil: Callable[[Tensor], object]
) -> None:
    kernel, (logits, ids, _) = cpu_kernels(variant).logprobs, case(3, torch.float32)
    logits[:, ids] = 1.0
    before = kernel(logits, ids, WantedLogprobs(num_top=4))
    spoil(logits[1])
    found = kernel(logits, ids, WantedLogprobs(num_top=4))
    assert found[1, [0, 6, 7, 8, 9]].isnan().all()
    assert ((found[1, 2:6] >= 0) & (found[1, 2:6] < VOCAB)).all()
    assert torch.equal(found[[0, 2]], before[[0, 2]])
