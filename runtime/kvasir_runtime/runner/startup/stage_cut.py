"""Between which layers a model is cut into stages: by what a step of decoding reads, and how fast each node reads.

Of several nodes each measures that once, before the model is loaded, and rank 0 tells all of them what all found. From
that and the model's sizes, which are the same on all ranks, follows the same cut. Called by `build`, `rank_worker` and
`model_parts`.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import torch

from kvasir_api.layouts import BALANCED_ROWS
from kvasir_api.options import ServeOptions
from kvasir_runtime.kernels.collectives import Collectives, StageCollectives
from kvasir_runtime.kernels.quantized import QuantFormat
from kvasir_runtime.layers import stages
from kvasir_runtime.layers.spec import DecoderSpec, parameter_shapes
from kvasir_runtime.layers.stages import LayerCosts
from kvasir_runtime.runner.startup import host_resources
from kvasir_runtime.weights import quant_formats
from kvasir_runtime.weights.quant_formats import HEAD, TABLE, DeviceFormats, Shapes

ALIKE: Final = 0.75
"""Nodes that read at this share of the fastest one, or faster, count as equally fast: measurements differ by less."""
WEIGHTS_FRACTION: Final = 3 / 8
"""Of the memory of a node, which more weights than in the cut with the lightest stages may take, and no more: what is
left is for the cache. `kvasir_api.layouts` counts with a half of what is left beside the process."""
MEASURED_BYTES: Final = 64 << 20
TIMES: Final = 5


class NodeFigures(NamedTuple):
    """What the first rank of a node reads in a second, and the memory that the ranks of the node may use."""

    bytes_per_s: float
    memory_bytes: float


def told(options: ServeOptions, group: Collectives | None) -> tuple[NodeFigures, ...]:
    """Of each node, the same on all ranks; () where all stages are on one. Raises RankLostError."""
    if options.nnodes == 1 or not isinstance(group, StageCollectives):
        return ()
    return exchanged(group, _measured)


def exchanged(group: StageCollectives, measured: Callable[[], NodeFigures]) -> tuple[NodeFigures, ...]:
    """Figures go from stage to stage and come back to rank 0, which tells all. measured: own ones, of a first rank."""
    each = group.ranks // group.stages
    stage, is_first = divmod(group.rank, each)
    found = torch.zeros(group.stages, 2, dtype=torch.float64)
    if stage:
        found = group.receive(found)
    if not is_first:
        found[stage] = torch.tensor(measured(), dtype=torch.float64)
    group.send(found)
    if not group.rank:
        found = group.receive(found)
    message = group.broadcast(msgspec.json.encode(found.tolist()) if not group.rank else b"")
    return tuple(NodeFigures(*own) for own in msgspec.json.decode(message, type=list[tuple[float, float]]))


def cut(
    whole: DecoderSpec,
    formats: Mapping[str, QuantFormat],
    element_bytes: int,
    device: DeviceFormats,
    count: int,
    nodes: Sequence[NodeFigures],
) -> tuple[range, ...]:
    """The layers of each stage. formats: of the whole model's weights. Raises ValueError for more stages than layers.

    On one node only the time counts, since stages share its memory.
    """
    shapes = parameter_shapes(whole)
    of_layers = quant_formats.layer_bytes(shapes, formats, element_bytes, whole.num_layers, device)
    beside = quant_formats.num_bytes(shapes, formats, element_bytes, device) - sum(of_layers)
    least_memory = min([node.memory_bytes for node in nodes], default=math.inf)
    return stages.divided(
        read(whole, shapes, formats, element_bytes, device),
        count,
        whole.joined,
        speeds=speeds(nodes),
        sizes=LayerCosts(of_layers, beside),
        most_size=WEIGHTS_FRACTION * least_memory,
    )


def speeds(nodes: Sequence[NodeFigures]) -> tuple[float, ...]:
    """Of each node, as a share of the fastest; () without nodes."""
    fastest = max([node.bytes_per_s for node in nodes], default=0)
    shares = [node.bytes_per_s / fastest for node in nodes]
    return tuple(1.0 if share >= ALIKE else share for share in shares)


def read(
    spec: DecoderSpec, shapes: Shapes, formats: Mapping[str, QuantFormat], element_bytes: int, device: DeviceFormats
) -> LayerCosts:
    """Bytes of weights that a step of BALANCED_ROWS requests reads: some experts, the whole head, no table."""
    of_layers = quant_formats.layer_bytes(shapes, formats, element_bytes, spec.num_layers, device)
    head_shape = shapes.get(HEAD, shapes[TABLE])
    head = 0
    if HEAD in formats:
        head = device.num_bytes(formats[HEAD], *head_shape)
    elif spec.head != "none":
        head = math.prod(head_shape) * element_bytes
    if spec.experts is None:
        return LayerCosts(of_layers, head)
    asleep = (1 - spec.experts.top_k / spec.experts.num_experts) ** BALANCED_ROWS
    names = {name: shape for name, shape in shapes.items() if ".experts." in name}
    of_experts = quant_formats.layer_bytes(names, formats, element_bytes, spec.num_layers, device)
    return LayerCosts([size - asleep * own for size, own in zip(of_layers, of_experts, strict=True)], head)


def _measured() -> NodeFigures:
    """The best of some products of a matrix with a vector, with the threads of this process."""
    matrix, vector = torch.ones(MEASURED_BYTES // 16384, 4096), torch.ones(4096)
    took_s = []
    for _ in range(TIMES):
        begun = time.perf_counter()
        torch.mv(matrix, vector)
        took_s.append(time.perf_counter() - begun)
    return NodeFigures(MEASURED_BYTES / max(min(took_s), 1e-6), host_resources.memory_limit_bytes())
