"""Lists in messages name the first few."""

import pytest

from kvasir_operator.status.listing import listed


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, ""), (1, "p0"), (10, "p0, p1, p2, p3, p4, p5, p6, p7, p8, p9")],
)
def test_a_short_list_is_whole(count, said):
    assert listed([f"p{i}" for i in range(count)]) == said


def test_a_long_list_says_how_many_more_there_are():
    assert listed([f"p{i}" for i in range(1000)], "; ") == "p0; p1; p2; p3; p4; p5; p6; p7; p8; p9 and 990 more"
