"""The longest hit of which every group has what it needs, against trying every length."""

from hypothesis import given
from hypothesis import strategies as st

from kvasir_api.cache_groups import FULL, LayerAttention, sliding
from kvasir_runtime.core.block_tables import ABSENT
from kvasir_runtime.core.prefix_index import PrefixIndex

CHAIN = [bytes([place]) for place in range(12)]


def index_of(groups: list[LayerAttention], known: list[set[int]], block_size: int = 4) -> PrefixIndex:
    """known: for each group the columns of the chain that it has, in block 100 * group + column."""
    index = PrefixIndex(groups, block_size)
    for group, columns in enumerate(known):
        for column in columns:
            assert index.add(group, CHAIN[column], 100 * group + column)
    return index


def test_one_group_that_keeps_everything_needs_all_of_it() -> None:
    index = index_of([FULL], [{0, 1, 2, 4}])
    assert index.longest(CHAIN, 12) == [[0, 1, 2]]
    assert index.longest(CHAIN, 2) == [[0, 1]]
    assert index.longest(CHAIN[1:], 9) == [[1, 2]]
    assert index.longest([], 9) == [[]]


def test_a_window_needs_its_last_blocks_only() -> None:
    index = index_of([FULL, sliding(6)], [{0, 1, 2, 3, 4}, {3, 4}])
    assert index.longest(CHAIN, 12) == [[0, 1, 2, 3, 4], [ABSENT, ABSENT, ABSENT, 103, 104]]
    assert index.longest(CHAIN, 4) == [[], []]  # the token behind 4 blocks sees the end of the third


def test_what_one_group_lacks_shortens_the_hit_of_all() -> None:
    index = index_of([FULL, sliding(4), sliding(8)], [{0, 1, 2, 3}, {0, 1, 3}, {0, 1, 2, 3}])
    # The smaller window could take 4 blocks or 2; the larger one any.
    assert index.longest(CHAIN, 4) == [[0, 1, 2, 3], [ABSENT, ABSENT, ABSENT, 103], [ABSENT, ABSENT, 202, 203]]
    index.remove(2, CHAIN[2])
    assert index.longest(CHAIN, 4) == [[0, 1], [ABSENT, 101], [200, 201]]
    assert (index.has(CHAIN[1]), index.has(CHAIN[2])) == (True, False)


def test_a_hash_belongs_to_the_first_block_that_had_it() -> None:
    index = index_of([FULL], [{0}])
    assert not index.add(0, CHAIN[0], 7)
    assert index.longest(CHAIN, 1) == [[0]]


GROUPS = st.one_of(
    st.just(FULL),
    st.just(LayerAttention("state")),
    st.builds(LayerAttention, st.sampled_from(["window", "chunked"]), st.integers(1, 20)),
)


@given(
    groups=st.lists(st.tuples(GROUPS, st.sets(st.integers(0, 11))), min_size=1, max_size=4),
    block_size=st.integers(1, 5),
    limit=st.integers(0, 14),
)
def test_no_longer_hit_exists(groups: list[tuple[LayerAttention, set[int]]], block_size: int, limit: int) -> None:
    attentions, known = [one for one, _ in groups], [columns for _, columns in groups]

    def suffices(length: int) -> bool:
        return all(
            set(range(attention.first_seen(length * block_size) // block_size, length)) <= columns
            for attention, columns in groups
        )

    want = max(length for length in range(min(limit, 12) + 1) if suffices(length))
    tables = index_of(attentions, known, block_size).longest(CHAIN, limit)
    assert [len(table) for table in tables] == [want] * len(groups)
    for group, (attention, table) in enumerate(zip(attentions, tables, strict=True)):
        first = attention.first_seen(want * block_size) // block_size
        assert table == [ABSENT] * first + [100 * group + column for column in range(first, want)]
