"""Whose turn it is in a change of the installation, and what those read that wait."""

import pytest

from kvasir_operator.rollout.turns import may_take, reason

A, B, C = ("one", "a"), ("one", "b"), ("two", "c")


@pytest.mark.parametrize(
    ("taking", "waiting", "most", "want"),
    [
        ((), (C, B, A), 1, (A,)),
        ((), (C, B, A), 2, (A, B)),
        ((A,), (B, C), 1, ()),
        ((A,), (B, C), 2, (B,)),
        ((A, B), (C,), 1, ()),  # the bound was lowered
        ((A,), (A, B), 3, (B,)),
        ((), (A,), 0, ()),
        ((), (), 5, ()),
    ],
)
def test_the_first_by_name_take_what_is_free(taking, waiting, most, want):
    assert may_take(taking, waiting, most=most) == want


@pytest.mark.parametrize(
    ("stalled", "words"),
    [
        ((A,), "; a took it and cannot go on"),
        ((B, A), "; a and b took it and cannot go on"),
        ((C,), "; one of another namespace took it and cannot go on"),
        ((C, ("three", "d")), "; 2 others took it and cannot go on"),
        ((A, C), "; a and 1 more took it and cannot go on"),
        ([("one", f"s{number}") for number in range(9)], "; s0 and s1 and s2 and 6 more took it and cannot go on"),
    ],
)
def test_who_cannot_go_on_is_named_within_a_namespace_alone(stalled, words):
    found = reason("one", stalled, most=2)
    assert found.endswith(words)
    assert "at most 2 services take it at a time" in found
    assert "two" not in found


def test_without_such_a_one_the_reason_names_none():
    assert ";" not in reason("one", (), most=1)
    assert "at most 1 service takes it" in reason("one", (), most=1)
