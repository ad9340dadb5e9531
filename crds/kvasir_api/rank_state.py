"""What the `/state` document says of each process, where several compute a model together.

Made by the runtime; part of `state.RuntimeState`, and read by the operator there.
"""

import msgspec

from kvasir_api.state_count import Count

MOST_RANKS = 8
"""Of one replica."""


class RankState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One of the processes that compute a model together.

    node: of `--node-rank`, where it runs. stage: of the layers, and shard: its part of each of them, from 0. alive: it
    has joined; one that ends later ends the replica. weights_bytes, kv_bytes: of its weights and its part of the KV
    cache, 0 until they are known.
    """

    rank: Count = 0
    node: Count = 0
    stage: Count = 0
    shard: Count = 0
    alive: bool = False
    weights_bytes: Count = 0
    kv_bytes: Count = 0
