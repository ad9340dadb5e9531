"""The option of `kvasir serve` for blocks that replicas fetch from one another; part of `options`."""

from kvasir_api.option_fields import option

KV_TRANSFER_PORT: int = option(
    -1,
    "Port on which this replica gives blocks of --kv-host-bytes to other replicas of the service; with it, it fetches theirs. Only they may reach it. They prove themselves by keys that follow from those of continuations, of --continuation-key-file or the operator. 0 takes a free one, -1 none. On CPUs only.",
    metavar="PORT",
    ge=-1,
    le=65_535,
)
