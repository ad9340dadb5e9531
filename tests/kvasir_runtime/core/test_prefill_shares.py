"""How a step is divided: the first prompt keeps half, shorter ones pass, nothing is left over."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_runtime.core.prefill_shares import PromptPart, gets_share, shares

PARTS = st.lists(st.builds(PromptPart, st.integers(1, 300), st.integers(-1, 1)), max_size=12)


@pytest.mark.parametrize(
    ("tokens", "want"),
    [
        ([], []),
        ([500], [100]),
        ([30], [30]),
        ([500, 500, 500], [100, 0, 0]),  # equal ones, one after the other
        ([500, 20, 10], [70, 20, 10]),  # shorter ones pass
        ([500, 40, 30], [50, 20, 30]),  # the shortest first, in half of the step
        ([500, 400, 600], [50, 50, 0]),
        ([30, 40, 500, 20], [30, 40, 10, 20]),  # what the first leaves goes by order, but for shorter ones
        ([30, 25, 80, 60], [30, 25, 45, 0]),
    ],
)
def test_the_first_keeps_half_and_shorter_ones_pass(tokens, want):
    assert shares([PromptPart(count) for count in tokens], 100) == want


def test_less_urgent_ones_do_not_pass():
    first, urgent, equal, late = PromptPart(500, 0), PromptPart(9, -1), PromptPart(20, 0), PromptPart(5, 1)
    assert shares([first, urgent, equal, late], 100) == [71, 9, 20, 0]


@given(parts=PARTS, budget=st.integers(0, 200))
def test_a_step_is_full_and_the_first_has_half(parts, budget):
    given = shares(parts, budget)
    assert sum(given) == min(budget, sum(part.tokens for part in parts))
    assert all(0 <= count <= part.tokens for count, part in zip(given, parts, strict=True))
    assert not parts or given[0] >= min(parts[0].tokens, budget - budget // 2)


@given(parts=PARTS, part=st.builds(PromptPart, st.integers(1, 300), st.integers(-1, 1)), budget=st.integers(0, 200))
def test_one_more_gets_a_share_exactly_when_it_is_told_so(parts, part, budget):
    assert gets_share(part, parts, budget) == (shares([*parts, part], budget)[-1] > 0)
