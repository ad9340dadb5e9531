"""Options for a model that several processes (ranks) compute together, on one host or several (nodes), by vLLM's names;
part of `options`."""

from typing import Any, Final

from kvasir_api import names
from kvasir_api.option_fields import option
from kvasir_api.rank_state import MOST_RANKS
from kvasir_api.speculation import draft_model

RULES: Final[tuple[dict[str, Any], ...]] = (
    {
        "rule": "self.?kvHostBytes.orValue(0) == 0 || self.?prefixCache.orValue(true) && self.?tensorParallelSize.orValue(1) * self.?pipelineParallelSize.orValue(1) * self.?dataParallelSize.orValue(1) == 1",
        "message": "runtime.kvHostBytes needs runtime.prefixCache and one rank",
        "fieldPath": ".kvHostBytes",
    },
    {
        "rule": "self.?tensorParallelSize.orValue(1) * self.?pipelineParallelSize.orValue(1) <= 8 && (self.?pipelineParallelSize.orValue(1) == 1 ? self.?tensorParallelSize.orValue(1) % self.?nnodes.orValue(1) == 0 : self.?nnodes.orValue(1) in [1, self.pipelineParallelSize])",
        "message": "at most 8 ranks; runtime.nnodes must divide tensorParallelSize, or be pipelineParallelSize",
        "fieldPath": ".nnodes",
    },
    {
        "rule": "self.?dataParallelSize.orValue(1) == 1 || (self.?tensorParallelSize.orValue(1) * self.?pipelineParallelSize.orValue(1) * self.?nnodes.orValue(1) == 1 && (!has(self.speculation) || !self.speculation.contains('/')))",
        "message": "runtime.dataParallelSize goes with no other ranks, nodes or draft model",
        "fieldPath": ".dataParallelSize",
    },
)
"""What the custom resource says of several ranks."""


def check(tensor: int, stages: int, nodes: int) -> None:
    """Raises ValueError where nodes cannot have as many of the ranks each: of all stages one part, or one stage."""
    if stages == 1 and tensor % nodes:
        raise ValueError(f"nnodes {nodes} does not divide tensorParallelSize {tensor}: each has as many ranks")
    if stages > 1 and nodes not in (1, stages):
        raise ValueError(
            f"nnodes {nodes} is not pipelineParallelSize {stages}: each node has one stage, or one has all"
        )
    if tensor * stages > MOST_RANKS:
        raise ValueError(
            f"tensorParallelSize {tensor} times pipelineParallelSize {stages} is more than {MOST_RANKS} ranks"
        )


def check_data(size: int, tensor: int, stages: int, nodes: int, speculation: str) -> None:
    """Raises ValueError where data parallelism is requested beside something that it does not go with yet."""
    sizes = {"tensorParallelSize": tensor, "pipelineParallelSize": stages, "nnodes": nodes}
    others = [f"{name} {number}" for name, number in sizes.items() if number > 1]
    if draft_model(speculation):
        others.append(f"speculation {speculation}, since a draft model has a block for each of all ranks")
    if size > 1 and others:
        raise ValueError(f"dataParallelSize {size} cannot be used with {' and '.join(others)}: leave out one of both")


def option_of(tensor: int, stages: int, data: int) -> str:
    """The option by which there are several ranks, for messages."""
    if stages > 1:
        return f"--pipeline-parallel-size {stages}"
    return f"--data-parallel-size {data}" if data > 1 else f"--tensor-parallel-size {tensor}"


TENSOR_PARALLEL_SIZE: int = option(
    1,
    "Processes (ranks) that compute each layer together, a part of it each. With CUDA each has a device.",
    unit="processes",
    ge=1,
    le=8,
)
PIPELINE_PARALLEL_SIZE: int = option(
    1,
    "Stages of consecutive layers, each with ranks of its own.",
    ge=1,
    le=8,
)
DATA_PARALLEL_SIZE: int = option(
    1,
    "Processes (ranks) with attention and KV cache for requests of their own, which share the experts. On CPUs only.",
    unit="processes",
    ge=1,
    le=MOST_RANKS,
)
ENABLE_EXPERT_PARALLEL: bool = option(False, "Ranks have whole experts, in place of a part of each.")
NNODES: int = option(
    1,
    "Hosts (nodes), each with as many of the ranks; in a service the pods of a replica, each with its resources.",
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
MASTER_PORT: int = option(
    names.PORT_NODES, "Port on which node 0 waits for the other nodes.", metavar="PORT", ge=1, le=65_535
)
NODE_KEY_FILE: str = option(
    "",
    "File with the key by which nodes recognize one another, the same on all of them: at least 32 characters.",
    metavar="FILE",
)
NODE_GROUP: str = option(
    "",
    "Name that these nodes have in common: others with the same key and another name, such as another replica's, do not join.",
    metavar="NAME",
    max_length=253,
)
