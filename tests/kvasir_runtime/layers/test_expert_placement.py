"""Of which experts ranks should have copies: those by which the largest load sinks, within the room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_runtime.kernels.expert_division import Copies, divided
from kvasir_runtime.layers.expert_placement import is_worth, placed
from kvasir_runtime.layers.sharding import held_experts

HALVES = (range(4), range(4, 8))
HOT = (100, 80, 50, 10, 5, 5, 5, 5)


@pytest.mark.parametrize(
    ("tokens", "room", "want"),
    [
        (HOT, (1, 1), ((), (0,))),
        (HOT, (2, 2), ((), (0, 1))),
        (HOT, (1, 0), ((), ())),
        ((10,) * 8, (2, 2), ((), ())),
        ((0,) * 8, (2, 2), ((), ())),
        ((0, 0, 0, 0, 90, 1, 1, 1), (1, 1), ((4,), ())),
    ],
)
def test_hot_experts_are_copied_to_the_rank_with_least(
    tokens: tuple[int, ...], room: tuple[int, ...], want: Copies
) -> None:
    assert placed(tokens, HALVES, room) == want


def test_many_ranks_are_levelled_by_few_copies() -> None:
    homes = held_experts(16, 4)
    tokens = [400.0, 10, 10, 10] + [60.0] * 4 + [30.0] * 8
    copies = placed(tokens, homes, (1, 1, 1, 1))
    loads, _ = divided([int(one) for one in tokens], homes, copies)
    assert max(loads) < 1.1 * sum(tokens) / 4


@given(tokens=st.lists(st.floats(0, 1000), min_size=12, max_size=12), room=st.tuples(*[st.integers(0, 4)] * 3))
def test_copies_never_take_more_room_and_never_raise_the_largest_load(
    tokens: list[float], room: tuple[int, ...]
) -> None:
    homes = held_experts(12, 3)
    copies = placed(tokens, homes, room)
    counts = [int(one) for one in tokens]
    assert all(len(held) <= most for held, most in zip(copies, room, strict=True))
    assert not any(set(held) & set(home) for held, home in zip(copies, homes, strict=True))
    assert max(divided(counts, homes, copies, 1)[0]) <= max(divided(counts, homes, ((),) * 3, 1)[0])


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [(((), ()), ((), (0,)), True), (((), (0,)), ((), (0,)), False), (((), (0,)), ((), (3,)), False)],
)
def test_copies_are_read_again_for_a_gain_alone(old: Copies, new: Copies, want: bool) -> None:
    assert is_worth(HOT, HALVES, old, new) == want
