"""Options of `kvasir serve` for a model that several hosts (nodes) compute together, by vLLM's names; part of `options`."""

from kvasir_api.option_fields import option

NNODES: int = option(
    1,
    "Hosts (nodes) that compute the model together, each with as many of the ranks of --tensor-parallel-size. Every one runs this command with its own --node-rank, and else the same options.",
    unit="nodes",
    ge=1,
    le=8,
)
NODE_RANK: int = option(
    0, "Number of this node; 0 leads and serves clients, the others compute for it.", metavar="N", ge=0, le=7
)
MASTER_ADDR: str = option(
    "", "Address or name of node 0, on which it waits for the other nodes.", metavar="ADDRESS", max_length=253
)
MASTER_PORT: int = option(29501, "Port on which node 0 waits for the other nodes.", metavar="PORT", ge=1, le=65_535)
NODE_KEY_FILE: str = option(
    "",
    "File with the key by which nodes recognize one another, the same on all of them: at least 32 characters.",
    metavar="FILE",
)
