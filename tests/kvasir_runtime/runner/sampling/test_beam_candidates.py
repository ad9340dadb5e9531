"""Candidates of a beam: those that a check admits, found in a bounded number of questions."""

import pytest
import torch

from kvasir_runtime.core.plan import SampledTokens
from kvasir_runtime.runner.sampling.beam_candidates import MAX_CHECKED, MAX_REFUSED, continuations, keep_admitted
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
        ({0, 2, 5}, [0, 2, 5], 7),
        (set(range(20)), list(range(8)), 8),
        (set(), [30], 4),
        ({1, 3, 4, 39}, [1, 3, 4], 7),
    ],
)
def test_the_likeliest_that_are_admitted_remain(admitted, kept, num_asked):
    """Until so many are admitted, or so many refused; where none is, the token that is known to be right."""
    assert (MAX_CHECKED, MAX_REFUSED) == (8, 4)
    logits = torch.arange(40, 0, -1).float()
    before, check = logits.clone(), Check(admitted, end=30)
    keep_admitted(logits, check)
    assert left(logits) == kept
    assert torch.equal(logits[kept], before[kept])
    assert check.asked == list(range(num_asked))


def test_what_the_mask_forbids_is_not_asked_for():
    logits = torch.tensor([NEVER, 2.0, NEVER, 1.0])
    check = Check({1, 3}, end=3)
    keep_admitted(logits, check)
    assert (left(logits), check.asked) == ([1, 3], [1, 3])


def test_only_what_may_follow_is_reported():
    sample = SampledTokens(3, (7,), (Logprobs(-1.0, 1, (7, 8, 0), (-1.0, -2.0, NEVER)),))
    check = Check(set(), 0)
    assert continuations(sample, check).logprobs == (Logprobs(-1.0, 1, (7, 8), (-1.0, -2.0)),)
    check.error = "at a loss"
    assert continuations(sample, check) == SampledTokens(3, (), error="at a loss")
