"""Which layers share blocks, what a sequence needs at each position, and how many blocks that is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_api.cache_groups import (
    FULL,
    MAX_GROUPS,
    CacheGroup,
    LayerAttention,
    blocks_of_sequence,
    group_layers,
    keeps_nothing,
    longest_sequence,
    sliding,
)

ATTENTIONS = st.one_of(
    st.just(FULL),
    st.just(LayerAttention("latent")),
    st.just(LayerAttention("state")),
    st.builds(LayerAttention, st.just("window"), st.integers(1, 40)),
    st.builds(LayerAttention, st.just("chunked"), st.integers(1, 40)),
)
WINDOW, CHUNKED, STATE = sliding(4), LayerAttention("chunked", 4), LayerAttention("state")


@pytest.mark.parametrize(("kind", "span"), [("window", 0), ("chunked", -1), ("full", 3), ("state", 1)])
def test_a_span_belongs_to_windows_and_chunks(kind, span):
    with pytest.raises(ValueError, match=f"attention {kind} with a span of {span} tokens"):
        LayerAttention(kind, span)


@pytest.mark.parametrize(
    ("attention", "first"),
    [
        (FULL, [0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (WINDOW, [0, 0, 0, 0, 1, 2, 3, 4, 5]),
        (CHUNKED, [0, 0, 0, 0, 4, 4, 4, 4, 8]),
        (STATE, [0, 0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_what_each_position_sees(attention, first):
    assert [attention.first_seen(position) for position in range(9)] == first


@given(attention=ATTENTIONS, end=st.integers(1, 100))
def test_a_place_is_left_where_no_later_token_sees_it(attention, end):
    left = attention.left_at(end)
    if attention.keeps_all:
        assert left is None
        assert attention.first_seen(10_000) == 0
    else:
        assert left is not None
        assert attention.first_seen(left) >= end
        assert attention.first_seen(left - 1) < end


@pytest.mark.parametrize(
    ("full", "windows", "sizes"),
    [
        (32, 0, [32]),  # Llama
        (0, 32, [32]),  # Mistral
        (13, 13, [13, 13]),  # Gemma 2 2B
        (4, 22, [4, 4, 4, 4, 4, 2, 4]),  # Gemma 3 1B
        (5, 29, [5, 5, 5, 5, 5, 4, 5]),  # Gemma 3 4B
        (8, 40, [8, 8, 8, 8, 8, 8]),  # Gemma 3 12B
        (10, 52, [10, 10, 10, 10, 10, 2, 10]),  # Gemma 3 27B
        (12, 12, [12, 12]),  # gpt-oss 20B
        (1, 47, [7, 7, 7, 7, 7, 7, 5, 1]),
    ],
)
def test_layers_form_groups_whose_blocks_have_the_same_bytes(full, windows, sizes):
    groups = group_layers((sliding(128),) * windows + (FULL,) * full)
    assert [len(group.layers) for group in groups] == sizes


@given(st.lists(ATTENTIONS, min_size=1, max_size=70))
def test_every_layer_is_in_one_group_of_its_own_attention(attentions):
    groups = group_layers(attentions)
    assert sorted(layer for group in groups for layer in group.layers) == list(range(len(attentions)))
    assert all(attentions[layer] == group.attention for group in groups for layer in group.layers)
    assert len(groups) <= max(MAX_GROUPS, len(set(attentions)))


@pytest.mark.parametrize(
    ("attention", "tokens", "chunk", "blocks"),
    [
        (FULL, 1000, 8, 250),
        (WINDOW, 1000, 8, 4),  # 4 tokens before a chunk of 8, at any place of a block
        (WINDOW, 6, 8, 2),
        (CHUNKED, 1000, 1, 3),
        (STATE, 1000, 8, 3),
        (STATE, 3, 8, 1),
    ],
)
def test_blocks_of_a_sequence(attention, tokens, chunk, blocks):
    assert blocks_of_sequence((attention,), tokens, block_size=4, chunk_tokens=chunk) == blocks


@given(
    attentions=st.lists(ATTENTIONS, min_size=1, max_size=4),
    num_blocks=st.integers(0, 60),
    block_size=st.integers(1, 8),
    chunk=st.integers(1, 30),
    limit=st.integers(0, 400),
)
def test_the_longest_sequence_is_the_longest_that_fits(attentions, num_blocks, block_size, chunk, limit):
    sizes = {"block_size": block_size, "chunk_tokens": chunk}
    longest = longest_sequence(attentions, num_blocks, **sizes, limit=limit)
    assert 0 <= longest <= limit
    assert blocks_of_sequence(attentions, longest, **sizes) <= num_blocks
    assert longest == limit or blocks_of_sequence(attentions, longest + 1, **sizes) > num_blocks


@given(
    attention=ATTENTIONS,
    block_size=st.integers(1, 8),
    chunks=st.lists(st.integers(1, 20), min_size=1, max_size=12),
)
def test_a_sequence_never_needs_more_than_is_counted(attention, block_size, chunks):
    computed = 0
    for chunk in chunks:
        end = computed + chunk
        first, last = attention.first_seen(computed) // block_size, -(-end // block_size)
        needed = 1 + (computed > 0) if attention.kind == "state" else last - first
        assert min(needed, last) <= attention.most_blocks(end, block_size, max(chunks))
        computed = end


def test_layers_that_keep_nothing_are_one_group_without_memory():
    both, near = LayerAttention("bidirectional"), LayerAttention("bidirectional", 8)
    (group,) = group_layers([both, near, near, both])
    assert group == CacheGroup(both, (0, 1, 2, 3))
    assert keeps_nothing([both, near])
    assert not keeps_nothing([both, FULL])
    assert (both.most_seen(40), near.most_seen(40), near.most_seen(9)) == (40, 17, 9)
