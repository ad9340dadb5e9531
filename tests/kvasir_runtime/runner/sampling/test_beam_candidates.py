"""Candidates of beams: those that a check admits, found in a bounded number of questions a step."""

import pytest
import torch

from kvasir_runtime.core.plan import SampledTokens
from kvasir_runtime.runner.sampling.beam_candidates import (
    MAX_ADMITTED,
    MAX_CANDIDATES,
    MAX_REFUSED,
    continuations,
    keep_admitted,
)
from kvasir_runtime.wire import Logprobs

NEVER = float("-inf")


class Check:
    """A matcher that admits some tokens, and knows one that ends the answer."""

    error = ""

    def __init__(self, admitted: set[int], end: int) -> None:
        self._admitted, self._end = admitted, end
        self.asked: list[int] = []

    def admits(self, token: int) -> bool:
        self.asked.append(token)
        return token in self._admitted

    def token_to_end(self) -> int:
        return self._end


def left(logits: torch.Tensor) -> list[int]:
    return (logits > NEVER).nonzero()[:, 0].tolist()


@pytest.mark.parametrize(
    ("admitted", "kept", "num_asked"),
    [
        ({0, 2, 5}, [0, 2, 5], 11),
        (set(range(20)), list(range(12)), 12),
        (set(), [30], 8),
        ({1, 3, 4, 39}, [1, 3, 4], 11),
    ],
)
def test_the_likeliest_that_are_admitted_remain(admitted, kept, num_asked):
    """Until so many are asked for, or so many refused; where none is admitted, the token that is known to be right."""
    assert (MAX_CANDIDATES, MAX_REFUSED) == (12, 8)
    logits = torch.arange(40, 0, -1).float()[None]
    before, check = logits.clone(), Check(admitted, end=30)
    keep_admitted(logits, {0: check})
    assert left(logits[0]) == kept
    assert torch.equal(logits[0, kept], before[0, kept])
    assert check.asked == list(range(num_asked))


@pytest.mark.parametrize(
    ("admitted", "num_asked", "kept"),
    [(set(), [1] * 8 + [0] * 8, [[30]] * 16), (set(range(40)), [2] * 16, [[0, 1]] * 16)],
    ids=["refused", "admitted"],
)
def test_checks_of_all_beams_together_are_bounded(admitted, num_asked, kept):
    """The likeliest of each beam come first, then the second ones; a beam that is left over takes the known token."""
    assert (MAX_ADMITTED, MAX_REFUSED) == (32, 8)
    logits = torch.arange(40, 0, -1).float().repeat(17, 1)
    before = logits.clone()
    checks = {row: Check(admitted, end=30) for row in range(1, 17)}
    keep_admitted(logits, checks)
    assert [len(check.asked) for check in checks.values()] == num_asked
    assert [left(logits[row]) for row in checks] == kept
    assert torch.equal(logits[0], before[0]), "a row without a check"


def test_what_the_mask_forbids_is_no_candidate():
    logits = torch.tensor([[NEVER, 2.0, NEVER, 1.0]])
    check = Check({1, 3}, end=3)
    keep_admitted(logits, {0: check})
    assert (left(logits[0]), check.asked) == ([1, 3], [1, 3])


def test_only_what_may_follow_is_reported():
    sample = SampledTokens(3, (7,), (Logprobs(-1.0, 1, (7, 8, 0), (-1.0, -2.0, NEVER)),))
    check = Check(set(), 0)
    assert continuations(sample, check).logprobs == (Logprobs(-1.0, 1, (7, 8), (-1.0, -2.0)),)
    check.error = "at a loss"
    assert continuations(sample, check) == SampledTokens(3, (), error="at a loss")
