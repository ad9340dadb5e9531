"""The processes that compute a model together, as `/state` has them: where each is, and what it holds.

Used by the engine once the model is loaded, and by the API process while it starts and at nodes behind the first. Pure.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from kvasir_api.options import ServeOptions
from kvasir_api.rank_state import RankState


class RankSize(NamedTuple):
    """Bytes of a rank's weights, and of its part of the KV cache for each token."""

    weights_bytes: int
    kv_bytes_per_token: int


def joined(options: ServeOptions, missing_nodes: Collection[int] = ()) -> tuple[RankState, ...]:
    """What this node knows of them without the model: node 0 of all, another one of its own; none of a single process.

    missing_nodes: those that have not joined.
    """
    if options.ranks == 1:
        return ()
    shards = options.ranks // options.pipeline_parallel_size
    found = (
        RankState(
            rank=rank,
            node=(node := rank // options.local_ranks),
            stage=rank // shards,
            shard=rank % shards,
            alive=node not in missing_nodes,
        )
        for rank in range(options.ranks)
    )
    return tuple(one for one in found if options.node_rank in (0, one.node))


def loaded(options: ServeOptions, sizes: Sequence[RankSize], kv_tokens: int) -> tuple[RankState, ...]:
    """All of them at node 0, with what they hold. sizes: of a rank in each stage. kv_tokens: of the KV cache of one."""
    return tuple(
        msgspec.structs.replace(
            one,
            weights_bytes=sizes[one.stage].weights_bytes,
            kv_bytes=sizes[one.stage].kv_bytes_per_token * kv_tokens,
        )
        for one in joined(options)
    )
