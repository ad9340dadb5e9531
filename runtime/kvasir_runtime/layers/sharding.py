"""How a decoder is divided among ranks that compute each of its layers together (tensor parallelism).

Attention is divided by heads, feed-forward layers and each expert by intermediate numbers, the vocabulary by ids, after
Megatron-LM (Shoeybi et al. 2019): the projections into a part (qkv, gate_up) are divided by rows, those out of it
(output, down) by columns, and what these give is summed over the ranks. Norms, routers and gates are on every rank, as
are key heads that several ranks' queries share. What a rank has is the spec of its part: sizes, the cache and the
shapes of tensors follow from it as they do from a whole one.

With data parallelism each rank has all of attention, of layers without experts and of shared experts, for sequences of
its own (`data_parallel`); the vocabulary and each expert are divided as above.

With whole experts (expert parallelism, Lepikhin et al. 2020, without moving tokens) each rank computes what its experts
give to all tokens, which the same sums join; all else is divided as above.
"""

from dataclasses import replace
from itertools import pairwise

from kvasir_api import attention_heads, expert_layers
from kvasir_api.expert_layers import NOTHING_TO_SHARE, divided
from kvasir_runtime.layers.layer_specs import ExpertsSpec, StateSpec
from kvasir_runtime.layers.rank import Rank
from kvasir_runtime.layers.spec import DecoderSpec


def shard(spec: DecoderSpec, rank: Rank) -> DecoderSpec:
    """The spec of one rank's part. Raises ValueError, which says what does not divide, or which layers cannot be."""
    if rank.count == 1 and rank.whole_experts:
        raise ValueError("one rank has all experts")
    if rank.count == 1:
        return spec
    if spec.encoder is not None:
        raise ValueError("encoders are computed by one process")
    if rank.is_data:
        if spec.experts is None:
            raise ValueError(NOTHING_TO_SHARE)
        return replace(spec, rank=rank, experts=_experts(spec.experts, rank))
    if spec.wide_qk_norm:
        raise ValueError("norms over the queries of all heads cannot be divided among ranks")
    heads, kv_heads = attention_heads.part(spec.num_heads, spec.num_kv_heads, ranks=rank.count)
    return replace(
        spec,
        rank=rank,
        num_heads=heads,
        alibi=spec.alibi[rank.index * heads : (rank.index + 1) * heads],
        num_kv_heads=kv_heads,
        intermediate_size=divided(spec.intermediate_size, rank.count, "numbers of the feed-forward layers"),
        experts=_experts(spec.experts, rank),
        state=None if spec.state is None else _state(spec.state, rank.count),
    )


def _state(state: StateSpec, count: int) -> StateSpec:
    return replace(
        state,
        key_heads=divided(state.key_heads, count, "key heads of layers with a state"),
        value_heads=divided(state.value_heads, count, "value heads of layers with a state"),
    )


def _experts(experts: ExpertsSpec | None, rank: Rank) -> ExpertsSpec | None:
    if experts is None:
        if rank.whole_experts:
            raise ValueError("the model has no experts")
        return None
    total, whole = experts.num_experts, rank.whole_experts
    _, inner = expert_layers.part(total, experts.intermediate_size, ranks=rank.count, whole=whole)
    shared = experts.shared_size
    if not rank.is_data:
        shared = divided(shared, rank.count, "numbers of the shared expert")
    if not whole:
        return replace(experts, intermediate_size=inner, shared_size=shared)
    return replace(experts, held=held_experts(total, rank.count)[rank.index], shared_size=shared)


def held_experts(num_experts: int, ranks: int) -> tuple[range, ...]:
    """Of each of the ranks that have whole experts, the numbers of its own."""
    # The first rank has one of those that are left over: it is the one that measures its memory.
    ends = [-(-num_experts * index // ranks) for index in range(ranks + 1)]
    return tuple(range(first, end) for first, end in pairwise(ends))
