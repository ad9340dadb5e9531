"""Penalties and logprobs are their formulas, and those of transformers where it has them."""

import math

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from kvasir_runtime.kernels import bitmask, penalties
from kvasir_runtime.kernels.logprobs import WantedLogprobs, reference, unpacked
from kvasir_runtime.kernels.penalties import penalise


def columns(*values: float) -> torch.Tensor:
    return torch.tensor(values).unsqueeze(1)


def test_penalties_are_their_formula() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, -1.0, -math.inf], [2.0, -2.0, 1.0, -1.0, 3.0]])
    counts = torch.tensor([[3, 1, 0, 0, 2], [0, 0, 0, 0, 1]], dtype=torch.int32)
    in_prompt = torch.tensor([[False, False, True, False, False], [False, True, False, False, False]])
    penalise(logits, counts, in_prompt, columns(2.0, 0.5), columns(0.5, 0.0), columns(0.25, -1.0))
    assert logits.tolist() == [
        [2 / 2 - 3 * 0.5 - 0.25, -2 * 2 - 0.5 - 0.25, 1 / 2, -1.0, -math.inf],
        [2.0, -2 * 0.5, 1.0, -1.0, 3 / 0.5 + 1.0],
    ]


def test_repetition_penalty_is_that_of_transformers() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 50, generator=generator) * 4
    ids = torch.randint(0, 50, (3, 20), generator=generator)
    wanted = RepetitionPenaltyLogitsProcessor(1.3)(ids, logits.clone())
    in_prompt = torch.zeros(3, 50, dtype=torch.bool).scatter_(1, ids[:, :12], True)
    counts = torch.zeros(3, 50, dtype=torch.int32)
    counts.scatter_add_(1, ids[:, 12:], torch.ones(3, 8, dtype=torch.int32))
    penalise(logits, counts, in_prompt, columns(1.3, 1.3, 1.3), columns(0, 0, 0), columns(0, 0, 0))
    torch.testing.assert_close(logits, wanted)


@pytest.mark.parametrize("num_top", [0, 1, 3, 9])
def test_logprobs_are_their_formula(num_top: int) -> None:
    logits = [1.0, 3.0, -math.inf, 2.0]
    mass = math.log(sum(math.exp(x) for x in logits))
    rows = reference(torch.tensor([logits, logits]), torch.tensor([3, 1]), WantedLogprobs(num_top=num_top))
    first, second = unpacked(rows, [num_top, 0])
    assert (first.rank, second.rank, second.top_ids, second.top) == (2, 1, (), ())
    assert (first.logprob, second.logprob) == (pytest.approx(2 - mass), pytest.approx(3 - mass))
    assert first.top_ids[:3] == (1, 3, 0)[:num_top]
    assert first.top[:3] == pytest.approx([3 - mass, 2 - mass, 1 - mass][:num_top])
    assert len(first.top) == min(num_top, 4), "a vocabulary may be smaller than what is asked for"


def test_rows_take_the_state_of_their_slots_and_others_stay() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0], [2.0, -2.0, 1.0], [2.0, -2.0, 1.0]])
    counts = torch.tensor([[0, 0, 4], [1, 2, 0]], dtype=torch.int32)
    in_prompt = torch.tensor([[True, False, False], [False, False, False]])
    strengths = torch.tensor([[2.0, 0.0, 0.5], [1.0, 0.25, 0.0]])
    penalties.reference(logits, torch.tensor([1, -1, 0]), counts, in_prompt, strengths)
    assert logits.tolist() == [[1.75, -2.5, 1.0], [2.0, -2.0, 1.0], [1.0, -2.0, 0.0]]


def test_only_ids_with_their_bit_set_stay_allowed() -> None:
    logits = torch.zeros(3, 70)
    masks = torch.tensor([[-1, 1 << 1], [-(1 << 31), 0]], dtype=torch.int32)
    bitmask.reference(logits, masks, torch.tensor([0, -1, 1]))
    allowed = [[id_ for id_ in range(70) if row[id_] == 0] for row in logits.tolist()]
    assert allowed == [[*range(32), 33], list(range(70)), [31]]
