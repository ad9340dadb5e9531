"""The counting behind what the pages say of trees of drafts."""

import pytest

from bench import draft_trees
from bench.speculation import PAGE


def test_the_best_tree_of_a_size_has_the_likeliest_drafts() -> None:
    total, levels = draft_trees.kept(3, 0.5, 0.0)
    assert (total, levels) == (0.5 + 0.25 + 0.125, 3)
    # One of 0.5, two of 0.25 (behind the first, and beside it) and one of 0.125.
    assert draft_trees.kept(4, 0.5, 0.5)[0] == pytest.approx(0.5 + 0.25 + 0.25 + 0.125)
    assert draft_trees.kept(2, 0.9, 0.5)[0] == pytest.approx(0.9 + 0.81)
    assert draft_trees.kept(2, 0.9, 0.5)[1] == 2


def test_second_guesses_count_where_the_first_was_wrong() -> None:
    """Seven places have a known end. Wrong are 3, where nothing else is known, and 4, beside which 3 is known too."""
    first, second = draft_trees.guesses([1, 2, 3, 9, 1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 3])
    assert first == pytest.approx(5 / 7)
    assert second == 0.5


def test_costs_of_a_step_are_those_of_the_page_and_lie_on_lines() -> None:
    page = "| streams | ms without | 1 drafts | 4 drafts |\n| --- |\n| 1 | 9.00 | 1.10 (9 %) | 1.70 (30 %) |\n"
    costs = draft_trees.measured_costs(page)
    assert costs == {0: 1.0, 1: 1.1, 4: 1.7}
    assert [draft_trees.step_cost(count, costs) for count in (0, 1, 2, 4, 6)] == pytest.approx([1, 1.1, 1.3, 1.7, 2.1])
    assert draft_trees.speed(0.0, 0.0, costs, 0.0) == 1
    assert draft_trees.speed(1.0, 0.0, {0: 1.0, 1: 1.0}, 0.0) == 16
    assert min(draft_trees.measured_costs(PAGE.read_text())) == 0
