"""A second tier of the KV cache, and blocks that replicas fetch from one another: their options, part of `options`, and for how long a replica
waits for a prompt that another one computes, by which the gateway chooses too.
"""

from typing import Final

from kvasir_api.option_fields import option

MOST_PREFILL_S: Final = 30.0
"""For a fetch of what the peer computes first."""
LEAST_PREFILL_S: Final = 2.0
PREFILL_TIMES: Final = 4.0
"""Such a fetch may take so many times as long as computing here would: the peer may compute other prompts before."""

KV_HOST_BYTES: int = option(
    0,
    "Memory of the host for a second tier of the KV cache: computed blocks are copied there and come back where that is quicker. On a CPU a file that replicas on the node share, and later ones. 0 keeps none.",
    unit="bytes",
    ge=0,
    le=1_099_511_627_776,
)
KV_HOST_DIR: str = option(
    "",
    "Directory of the files of --kv-host-bytes on a CPU, each for one model, type and layout and readable by its owner only; on tmpfs, as /dev/shm is, they take memory and no disk. Default: the variable KVASIR_KV_HOST_DIR, else kvasir/kv in the user's cache.",
    metavar="DIR",
)
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
