"""Blocks that replicas fetch from one another: the option of `kvasir serve`, part of `options`, and for how long a replica
waits for a prompt that another one computes, by which the gateway chooses too.
"""

from typing import Final

from kvasir_api.option_fields import option

MOST_PREFILL_S: Final = 30.0
"""For a fetch of what the peer computes first."""
LEAST_PREFILL_S: Final = 2.0
PREFILL_TIMES: Final = 4.0
"""Such a fetch may take so many times as long as computing here would: the peer may compute other prompts before."""

KV_TRANSFER_PORT: int = option(
    -1,
    "Port on which this replica gives blocks of --kv-host-bytes to other replicas of the service; with it, it fetches theirs. Only they may reach it. They prove themselves by keys that follow from those of continuations, of --continuation-key-file or the operator. 0 takes a free one, -1 none. On CPUs only.",
    metavar="PORT",
    ge=-1,
    le=65_535,
)


def prefill_within_s(compute_s: float) -> float:
    """Seconds that a fetch of what the peer computes first may take. compute_s: that computing here would, above 0."""
    return min(MOST_PREFILL_S, max(LEAST_PREFILL_S, PREFILL_TIMES * compute_s))
