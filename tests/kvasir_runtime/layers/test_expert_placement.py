"""Which experts are copied where: the largest load falls, room and homes are kept, and small gains change nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_runtime.kernels.copied_experts import Copies
from kvasir_runtime.layers import expert_placement

HOMES = (0, 0, 1, 1, 2, 2)


@pytest.mark.parametrize(
    ("tokens", "room", "want"),
    [
        ((60, 0, 10, 0, 5, 0), 1, ((2,), (0,), (0,))),
        ((60, 60, 0, 0, 10, 0), 1, ((), (0,), (1,))),
        ((60, 60, 0, 0, 10, 0), 2, ((4,), (0, 1), (0, 1))),
        ((10, 10, 10, 10, 10, 10), 2, ((), (), ())),
        ((0, 0, 0, 0, 0, 0), 2, ((), (), ())),
    ],
)
def test_hot_experts_come_to_the_ranks_with_least(tokens: tuple[int, ...], room: int, want: Copies) -> None:
    assert expert_placement.placed(np.array(tokens), HOMES, ((), (), ()), room) == want


def test_copies_stay_where_others_gain_less_than_a_twentieth() -> None:
    old = expert_placement.placed(np.array((60, 0, 10, 0, 5, 0)), HOMES, ((), (), ()), 1)
    assert expert_placement.placed(np.array((61, 0, 12, 0, 3, 0)), HOMES, old, 1) == old
    assert expert_placement.placed(np.zeros(6, np.int64), HOMES, old, 1) == old
    assert expert_placement.placed(np.array((0, 0, 60, 0, 5, 0)), HOMES, old, 1) == ((2,), (4,), (2,))


@given(st.lists(st.integers(0, 10_000), min_size=8, max_size=8), st.integers(1, 4))
def test_no_load_grows_and_no_rank_has_more_than_its_room(tokens: list[int], room: int) -> None:
    counts, homes = np.array(tokens), (0, 0, 1, 1, 2, 2, 3, 3)
    nothing: Copies = ((),) * 4
    copies = expert_placement.placed(counts, homes, nothing, room)
    before, after = (expert_placement.loads(counts, homes, found) for found in (nothing, copies))
    assert after.max() <= before.max()
    for rank, held in enumerate(copies):
        assert len(held) <= room
        assert all(homes[expert] != rank for expert in held)
