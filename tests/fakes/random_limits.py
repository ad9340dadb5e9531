"""Limits of small caches for the state machine of the scheduler: any cache groups, with a second tier or without."""

from hypothesis import strategies as st

from kvasir_api.cache_groups import FULL, LayerAttention

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
    }
)
