"""How long answers become, from those that ended."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_runtime.core.answer_lengths import KEPT, LEAST, AnswerLengths


def lengths(*counts):
    made = AnswerLengths()
    for count in counts:
        made.add(count)
    return made


def test_nothing_is_known_before_enough_answers_have_ended():
    assert not lengths(*[5] * (LEAST - 1)).is_known
    assert lengths(*[5] * LEAST).is_known


@pytest.mark.parametrize(
    ("generated", "want"),
    [
        (0, 30),  # of 10, 20 … 100
        (50, 20),  # of 60 … 100
        (95, 5),
        (100, 11),  # longer than any: a tenth more
        (500, 51),
        (5000, 101),  # but no more than the longest
    ],
)
def test_an_answer_is_expected_to_become_as_long_as_those_that_got_so_far(generated, want):
    assert lengths(*range(10, 101, 10)).expected(generated) == want


def test_old_answers_are_forgotten():
    made = lengths(*[1000] * KEPT, *[10] * KEPT)
    assert (made.expected(0), made.most_expected) == (10, 11)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=2 * KEPT), st.integers(0, 600))
def test_expectations_are_positive_bounded_and_of_the_last_answers(counts, generated):
    made = lengths(*counts)
    assert 1 <= made.expected(generated) <= made.most_expected == max(counts[-KEPT:]) + 1
    assert made.expected(generated) == lengths(*counts[-KEPT:]).expected(generated)
