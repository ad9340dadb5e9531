"""Limits of small caches for the state machine of the scheduler: any cache groups, with a second tier or without."""

from typing import Any

from hypothesis import strategies as st

from kvasir_api.cache_groups import FULL, LayerAttention
from kvasir_runtime.core.scheduler import Scheduler

ATTENTIONS = st.lists(
    st.one_of(
        st.just(FULL),
        st.builds(LayerAttention, st.just("window"), st.integers(1, 9)),
        st.builds(LayerAttention, st.just("chunked"), st.integers(1, 9)),
        st.just(LayerAttention("latent")),
        st.just(LayerAttention("state")),
    ),
    min_size=1,
    max_size=4,
).map(tuple)


def _divided(limits: dict[str, Any]) -> dict[str, Any]:
    """With as many of the blocks for each data-parallel rank, which a second tier does not go with."""
    ranks = limits["data_ranks"]
    own = {"num_blocks": max(limits["num_blocks"] // ranks, 1) * ranks}
    return limits | own | ({"host_blocks": 0, "fetches_blocks": False} if ranks > 1 else {})


LIMITS = st.fixed_dictionaries(
    {
        "attentions": st.one_of(st.just((FULL,)), ATTENTIONS),
        "block_bytes": st.just(96),
        "num_blocks": st.integers(4, 30),
        "block_size": st.sampled_from([1, 2, 4]),
        "max_batch_tokens": st.integers(1, 24),
        "max_sequences": st.integers(1, 5),
        "max_model_len": st.integers(8, 40),
        "prefix_cache": st.booleans(),
        "eos_token_ids": st.just((0,)),
        "host_blocks": st.sampled_from([0, 3, 40]),
        "fetches_blocks": st.just(True),
        "speculation": st.sampled_from(["off", "ngram", "suffix", "oracle"]),
        "data_ranks": st.sampled_from([1, 1, 2, 3]),
    }
).map(_divided)


def all_blocks_lie_at_their_ranks(scheduler: Scheduler) -> None:
    """All blocks of a request are of its data-parallel rank, and all blocks of a rank pinned, cached or free there."""
    each = scheduler.limits.rank_blocks
    held: dict[int, set[int]] = {rank: set() for rank in range(scheduler.limits.data_ranks)}
    for kind in scheduler._running.values():
        for sequence in (kind.sequence, *getattr(kind, "members", ())):
            held[kind.request.data_rank].update(sequence.blocks.held)
    for rank, blocks in held.items():
        pool = scheduler.pool.of_rank(rank)
        assert all(block // each == rank for block in blocks)
        assert pool.num_pinned + pool.num_cached + pool.num_free == each == pool.num_blocks
        assert len(blocks) <= pool.num_pinned
