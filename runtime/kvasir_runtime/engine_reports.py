"""What the engine reports beside outputs of requests: its start, changes of its prefix cache, what tenants used.

Parts of what `wire` sends.
"""

from typing import Literal

import msgspec


class PrefixChanges(msgspec.Struct, frozen=True, kw_only=True):
    """How the set of prefixes changed, or all of it. sequence: changes since the start, these among them.

    hashes: route hashes, one behind the other; each is from now on a member where it was none, and none where it was
    one. whole: they are the whole set.
    """

    sequence: int
    hashes: bytes
    whole: bool = False


class TenantUsage(msgspec.Struct, kw_only=True):
    """What a tenant used of the engine in some time.

    kv_token_seconds: integral over time of the tokens of KV cache that its requests pinned. prompt_tokens: of requests
    that began to run; cached_tokens of them were found in the prefix cache.
    """

    kv_token_seconds: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Where the start is: phase loading or warming, fraction 0..1, seconds still expected (-1 unknown).

    message: why it is there, where that needs words. computes: the start of a node behind the first is over.
    missing_nodes: that have not joined this one, while it waits for them.
    """

    phase: Literal["starting", "loading", "warming"]
    progress_fraction: float
    eta_s: float = -1.0
    message: str = ""
    computes: bool = False
    missing_nodes: tuple[int, ...] = ()
