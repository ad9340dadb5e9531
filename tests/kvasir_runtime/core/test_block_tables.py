"""Tables of one sequence: what it lacks, what it may give up, and that both come to what its groups see."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_api.cache_groups import FULL, LayerAttention, blocks_of_sequence, sliding
from kvasir_runtime.core.block_tables import ABSENT, NEVER, BlockTables

STATE = LayerAttention("state")
GROUPS = st.lists(
    st.one_of(
        st.just(FULL),
        st.just(STATE),
        st.builds(LayerAttention, st.sampled_from(["window", "chunked"]), st.integers(1, 20)),
    ),
    min_size=1,
    max_size=4,
)


def test_full_attention_keeps_everything() -> None:
    tables = BlockTables((FULL,), 4)
    assert (tables.lacks(9), tables.leaves_at) == (3, NEVER)
    assert tables.extend(9, iter((7, 5, 6))) == [(0, (7, 5, 6))]
    assert (tables.by_group, tables.held, tables.covered) == ([[7, 5, 6]], [7, 5, 6], 12)
    assert (tables.lacks(12), tables.lacks(13)) == (0, 1)
    assert tables.drop_unseen(12) == []


def test_a_window_gives_up_what_it_has_left_block_by_block() -> None:
    tables = BlockTables((FULL, sliding(4)), 2)
    tables.extend(8, count())
    assert tables.by_group == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert tables.leaves_at == 5  # which sees positions 2 to 5
    assert tables.drop_unseen(5) == [4]
    assert tables.drop_unseen(8) == [5]  # which sees 5 to 8
    assert tables.by_group == [[0, 1, 2, 3], [ABSENT, ABSENT, 6, 7]]
    assert tables.held == [0, 1, 2, 6, 3, 7]
    assert tables.leaves_at == 9


def test_chunks_are_given_up_whole() -> None:
    tables = BlockTables((LayerAttention("chunked", 4),), 2)
    tables.extend(8, count())
    assert (tables.leaves_at, tables.drop_unseen(4), tables.leaves_at) == (4, [0, 1], 8)
    assert tables.drop_unseen(8) == [2, 3]
    assert tables.held == []


def test_a_state_is_held_as_of_the_last_token_only() -> None:
    tables = BlockTables((STATE,), 4)
    assert tables.lacks(11) == 1
    assert tables.extend(11, count(3)) == [(0, (ABSENT, ABSENT, 3))]
    assert tables.lacks(12) == 0
    assert tables.extend(13, count(4)) == [(0, (4,))]
    assert (tables.drop_unseen(12), tables.drop_unseen(13)) == ([], [3])


def test_near_bounds_what_windows_take_ahead() -> None:
    tables = BlockTables((FULL, sliding(4)), 2)
    assert tables.lacks(20, near=6) == 10 + 3
    tables.extend(20, count(), near=6)
    assert ([len(table) for table in tables.by_group], tables.covered) == ([10, 3], 6)
    assert tables.lacks(8) == 1


def test_a_hit_begins_where_the_window_does() -> None:
    tables = BlockTables((FULL, sliding(4)), 2, [[8, 9, 3], [ABSENT, 5, 6]])
    assert (tables.covered, tables.held, tables.leaves_at) == (6, [8, 9, 5, 3, 6], 7)


def test_a_fork_has_tables_of_its_own() -> None:
    tables = BlockTables((FULL, sliding(4)), 2)
    tables.extend(8, count())
    tables.drop_unseen(5)
    fork = tables.fork(3)
    assert (fork.by_group, fork.covered) == ([[0, 1, 2], [ABSENT, 5, 6]], 6)
    fork.extend(8, count(20))
    assert (fork.drop_unseen(8), tables.by_group[1]) == ([5], [ABSENT, 5, 6, 7])


@given(groups=GROUPS, block_size=st.integers(1, 5), chunks=st.lists(st.integers(1, 12), min_size=1, max_size=15))
def test_what_is_held_is_what_the_groups_see(groups: list[LayerAttention], block_size: int, chunks: list[int]) -> None:
    tables, blocks, held, computed = BlockTables(groups, block_size), count(), set[int](), 0
    for chunk in chunks:
        end = computed + chunk
        lacks = tables.lacks(end)
        fresh = [next(blocks) for _ in range(lacks)]
        rest = iter(fresh)
        tables.extend(end, rest)
        assert next(rest, None) is None
        held |= set(fresh)
        assert len(held) <= blocks_of_sequence(groups, end, block_size=block_size, chunk_tokens=max(chunks))
        computed = end
        assert tables.covered >= computed
        before = tables.leaves_at
        dropped = tables.drop_unseen(computed)
        assert bool(dropped) <= (computed >= before)
        held -= set(dropped)
        assert set(tables.held) == held
        for attention, table in zip(groups, tables.by_group, strict=True):
            first, last = attention.first_seen(computed) // block_size, -(-computed // block_size)
            assert set(table[:first]) <= {ABSENT}
            if attention.kind != "state":
                assert ABSENT not in table[first:]
            elif computed:
                assert table[last - 1] != ABSENT


@pytest.mark.parametrize("computed", [0, 3, 4, 7])
def test_nothing_leaves_before_it_is_said_to(computed: int) -> None:
    tables = BlockTables((sliding(4),), 4)
    tables.extend(8, count())
    assert tables.leaves_at == 7
    assert tables.drop_unseen(computed) == ([0] if computed >= 7 else [])
