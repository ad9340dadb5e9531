"""How a decoder is divided among ranks that compute each of its layers together (tensor parallelism).

Attention is divided by heads, feed-forward layers and each expert by intermediate numbers, the vocabulary by ids, after
Megatron-LM (Shoeybi et al. 2019): the projections into a part (qkv, gate_up) are divided by rows, those out of it
(output, down) by columns, and what these give is summed over the ranks. Norms, routers and gates are on every rank, as
are key heads that several ranks' queries share. What a rank has is the spec of its part: sizes, the cache and the
shapes of tensors follow from it as they do from a whole one.
"""

from dataclasses import replace

from kvasir_runtime.layers.layer_specs import ExpertsSpec, StateSpec
from kvasir_runtime.layers.spec import DecoderSpec, Rank


def shard(spec: DecoderSpec, rank: Rank) -> DecoderSpec:
    """The spec of one rank's part. Raises ValueError, which says what does not divide, or which layers cannot be."""
    if rank.count == 1:
        return spec
    if spec.encoder is not None:
        raise ValueError("encoders are computed by one process")
    if spec.wide_qk_norm:
        raise ValueError("norms over the queries of all heads cannot be divided among ranks")
    kv_heads = spec.num_kv_heads
    if kv_heads % rank.count and rank.count % kv_heads:
        raise ValueError(f"{kv_heads} key heads can neither be divided among {rank.count} ranks nor be shared by them")
    heads = _part(spec.num_heads, rank.count, "attention heads")
    return replace(
        spec,
        rank=rank,
        num_heads=heads,
        alibi=spec.alibi[rank.index * heads : (rank.index + 1) * heads],
        num_kv_heads=max(kv_heads // rank.count, 1),
        intermediate_size=_part(spec.intermediate_size, rank.count, "numbers of the feed-forward layers"),
        experts=None if spec.experts is None else _experts(spec.experts, rank.count),
        state=None if spec.state is None else _state(spec.state, rank.count),
    )


def _state(state: StateSpec, count: int) -> StateSpec:
    return replace(
        state,
        key_heads=_part(state.key_heads, count, "key heads of layers with a state"),
        value_heads=_part(state.value_heads, count, "value heads of layers with a state"),
    )


def _experts(experts: ExpertsSpec, count: int) -> ExpertsSpec:
    return replace(
        experts,
        intermediate_size=_part(experts.intermediate_size, count, "numbers of each expert"),
        shared_size=_part(experts.shared_size, count, "numbers of the shared expert"),
    )


def _part(size: int, count: int, what: str) -> int:
    if size % count:
        raise ValueError(f"{size} {what} cannot be divided among {count} ranks")
    return size // count
