"""Which part of a model a process of several computes, in which formats, and what all of them take. Called by
`load_model`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kvasir_api import eplb, layouts, rank_forecast
from kvasir_api.eplb import EplbConfig
from kvasir_api.expert_layers import Parallelism
from kvasir_api.model_shape import ModelShape
from kvasir_api.options import ServeOptions
from kvasir_api.speculation import draft_model
from kvasir_api.stage_cut import LayerCosts, StageRoom, balanced_stages, stage_layers, unread_experts
from kvasir_runtime.errors import StartError
from kvasir_runtime.kernels import kv_quant
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.kernels.quantized import QuantFormat
from kvasir_runtime.layers import sharding, stages
from kvasir_runtime.layers.expert_copies import CopyRoom
from kvasir_runtime.layers.rank import Rank
from kvasir_runtime.layers.spec import DecoderSpec, parameter_shapes
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place
from kvasir_runtime.models.sharded_places import sharded_places
from kvasir_runtime.rank_states import RankSize
from kvasir_runtime.weights import quant_formats
from kvasir_runtime.weights.loader import kinds as stored_kinds
from kvasir_runtime.weights.quant_formats import PROCESSORS, DeviceFormats, Kinds

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPart:
    """spec, places, formats: of this process; device: where it is. num_bytes: of its weights; stage_bytes: of each
    stage's, in a rank like this one. stages: the specs of a rank like this one in each stage; this one alone where
    there is one. copy_room: for copies of experts, None without; copies_bytes: that it takes in a rank, with reading.
    """

    spec: DecoderSpec
    places: dict[str, Place]
    formats: dict[str, QuantFormat]
    device: DeviceFormats
    num_bytes: int
    stages: tuple[DecoderSpec, ...]
    stage_bytes: tuple[int, ...]
    copy_room: CopyRoom | None = None
    copies_bytes: int = 0

    @property
    def all_bytes(self) -> int:
        """Of the weights of all ranks."""
        return sum(self.stage_bytes) * self.spec.rank.count

    def token_bytes(self, options: ServeOptions, cache_dtype: torch.dtype) -> int:
        """Of the KV cache, of one token in the stage that has most."""
        return max(size.kv_bytes_per_token for size in self.rank_sizes(options, cache_dtype))

    def rank_sizes(self, options: ServeOptions, cache_dtype: torch.dtype) -> tuple[RankSize, ...]:
        """Of a rank like this one in each stage."""
        size = block_size(options, self.spec, cache_dtype)
        return tuple(
            RankSize(num_bytes, spec.kv_bytes_per_token(*_row_bytes(cache_dtype), size))
            for num_bytes, spec in zip(self.stage_bytes, self.stages, strict=True)
        )

    def sharing_ranks(self, options: ServeOptions) -> int:
        """Those that share this one's memory: all on its node, or it alone with a card."""
        return 1 if self.device is quant_formats.CARDS else options.local_ranks

    def host_bytes(self, options: ServeOptions) -> int:
        """Of the weights of the ranks that share this one's memory, with room for copies of experts."""
        if options.nnodes == 1 and self.spec.stage is not None:
            return self.all_bytes
        return (self.num_bytes + self.copies_bytes) * self.sharing_ranks(options)


def part_of(
    options: ServeOptions,
    folder: Path,
    family: Family,
    config: ModelConfig,
    ops: Ops,
    element_bytes: int,
    room: StageRoom | None,
    *,
    cuda: bool,
) -> ModelPart:
    """This process's. room: of each stage; None where it is not known. Raises StartError where the model cannot be
    divided so.
    """
    whole = family.spec(config)
    rank, stage = _rank(options, ops)
    part, places = _divided(family, whole, rank)
    kinds = stored_kinds(folder)
    device = quant_formats.CARDS if cuda else PROCESSORS
    formats = _formats(options, kinds, whole, part, places, device)
    specs = [part]
    if options.pipeline_parallel_size > 1:
        specs = _stages(options, kinds, family, whole, part, element_bytes, room)
    of_stages = [_of_stage(formats, spec) for spec in specs]
    shapes = [parameter_shapes(spec) for spec in specs]
    sizes = [quant_formats.num_bytes(*pair, element_bytes, device) for pair in zip(shapes, of_stages, strict=True)]
    of_copies = copy_room(eplb.parsed(options.eplb_config), part) if options.enable_eplb else None
    return ModelPart(
        spec=specs[stage],
        places=places,
        formats=of_stages[stage],
        device=device,
        num_bytes=sizes[stage],
        stages=tuple(specs),
        stage_bytes=tuple(sizes),
        copy_room=of_copies,
        copies_bytes=0 if of_copies is None else _copies_bytes(of_copies, part, formats, element_bytes, device),
    )


def stage_room(
    options: ServeOptions, sizes: ModelShape | None, dtype: torch.dtype, rank_bytes: int
) -> StageRoom | None:
    """What memory of so many bytes for each rank leaves for the weights and the cache of a stage, as forecast. None of
    a model that is not forecast, without stages, and beside a draft model, whose weights rank 0 has as well.
    """
    if sizes is None or options.pipeline_parallel_size == 1 or draft_model(options.speculation):
        return None
    one, room_bytes = rank_forecast.of_one(sizes, options, str(dtype).removeprefix("torch."), rank_bytes)
    return layouts.stage_room(sizes, one, room_bytes, options.tensor_parallel_size)


def block_size(options: ServeOptions, spec: DecoderSpec, cache_dtype: torch.dtype) -> int:
    """Tokens of a block of the KV cache."""
    return spec.block_size(options.block_size, *_row_bytes(cache_dtype))


def _row_bytes(cache_dtype: torch.dtype) -> tuple[float, int]:
    """Of a number, and of the scale beside those of a head."""
    return kv_quant.number_bytes(cache_dtype), kv_quant.scale_bytes(cache_dtype)


def _rank(options: ServeOptions, ops: Ops) -> tuple[Rank, int]:
    """This process's, within its stage, and the number of the stage."""
    index, count = (0, 1) if ops.collectives is None else (ops.collectives.rank, ops.collectives.ranks)
    each = count // options.pipeline_parallel_size
    parallelism: Parallelism = "data" if options.data_parallel_size > 1 else "tensor"
    return Rank(index % each, each, options.enable_expert_parallel, parallelism), index // each


def copy_room(config: EplbConfig, spec: DecoderSpec) -> CopyRoom:
    """For copies of experts in a rank with whole ones. Raises StartError for more than the others have."""
    assert spec.experts is not None
    homes = sharding.held_experts(spec.experts.num_experts, spec.rank.count)
    copies = max(config.num_redundant_experts // spec.rank.count, 1)
    if (others := spec.experts.num_experts - len(homes[0])) < copies:
        raise StartError(
            f"--eplb-config: {copies} copies on each rank are more than the {others} experts of the others"
        )
    return CopyRoom(
        homes=tuple(rank for rank, own in enumerate(homes) for _ in own),
        copies=copies,
        layers=tuple(index for index in spec.layers if spec.experts_of(index) is not None),
        config=config,
    )


def _copies_bytes(
    room: CopyRoom, spec: DecoderSpec, formats: Mapping[str, QuantFormat], element_bytes: int, device: DeviceFormats
) -> int:
    """Of all layers, and of the largest twice more: what is read, and packed, while the copies before it are there."""
    assert spec.experts is not None
    shapes = {name: shape for name, shape in parameter_shapes(spec).items() if ".experts." in name}
    of_layers = quant_formats.layer_bytes(shapes, formats, element_bytes, spec.num_layers, device)
    return (sum(of_layers) + 2 * max(of_layers)) * room.copies // spec.experts.num_held


def _divided(family: Family, whole: DecoderSpec, rank: Rank) -> tuple[DecoderSpec, dict[str, Place]]:
    """What this rank computes of each layer, and where it lies. Raises StartError."""
    try:
        spec = sharding.shard(whole, rank)
        return spec, sharded_places(family.places, whole, spec)
    except ValueError as error:
        raise StartError(f"{rank.option} is not possible: {error}") from error


def _stages(
    options: ServeOptions,
    kinds: Kinds,
    family: Family,
    whole: DecoderSpec,
    part: DecoderSpec,
    element_bytes: int,
    room: StageRoom | None,
) -> list[DecoderSpec]:
    """Of a rank in each stage. All ranks cut between the same layers: by the bytes of whole ones. Raises StartError."""
    shapes = parameter_shapes(whole)
    formats = quant_formats.formats(options.quantization, whole, shapes, family.places(whole), kinds, device=PROCESSORS)
    of_layers = quant_formats.layer_bytes(shapes, formats, element_bytes, whole.num_layers, PROCESSORS)
    beside = quant_formats.num_bytes(shapes, formats, element_bytes, PROCESSORS) - sum(of_layers)
    count = options.pipeline_parallel_size
    try:
        if room is None:
            cut = stage_layers(of_layers, beside, count, whole.joined)
        else:
            read = _read(whole, shapes, formats, element_bytes, of_layers)
            cut = balanced_stages(read, LayerCosts(layers=of_layers, first=beside), count, room, whole.joined)
        return [stages.staged(part, layers) for layers in cut]
    except ValueError as error:
        raise StartError(f"--pipeline-parallel-size {count} is not possible: {error}") from error


def _read(
    spec: DecoderSpec,
    shapes: Shapes,
    formats: Mapping[str, QuantFormat],
    element_bytes: int,
    of_layers: Sequence[int],
) -> LayerCosts:
    """Bytes of weights that a step of a few requests reads: some of the experts, the whole head, and no table."""
    head = 0
    if spec.head == "vocabulary":
        chosen = {name: format_ for name, format_ in formats.items() if name == quant_formats.HEAD}
        shape = shapes.get(quant_formats.HEAD, shapes[quant_formats.TABLE])
        head = quant_formats.num_bytes({quant_formats.HEAD: shape}, chosen, element_bytes, PROCESSORS)
    if spec.experts is None:
        return LayerCosts(layers=of_layers, first=head)
    unread = unread_experts(spec.experts.top_k, spec.experts.num_experts)
    names = {name: shape for name, shape in shapes.items() if ".experts." in name}
    of_experts = quant_formats.layer_bytes(names, formats, element_bytes, spec.num_layers, PROCESSORS)
    layers = [int(size - unread * own) for size, own in zip(of_layers, of_experts, strict=True)]
    return LayerCosts(layers=layers, first=head)


def _of_stage(formats: Mapping[str, QuantFormat], spec: DecoderSpec) -> dict[str, QuantFormat]:
    """Those of a stage's weights; a quantized copy of the table is a head."""
    shapes = parameter_shapes(spec)
    return {
        name: format_
        for name, format_ in formats.items()
        if name in shapes or (name == quant_formats.HEAD and spec.is_first)
    }


def _formats(
    options: ServeOptions,
    kinds: Kinds,
    whole: DecoderSpec,
    part: DecoderSpec,
    places: Mapping[str, Place],
    device: DeviceFormats,
) -> dict[str, QuantFormat]:
    """Of a rank's weights. Raises StartError where its part of one is no whole groups of columns that lie side by side,
    as the weight is: it would be held in more bits than requested.
    """
    shapes = (parameter_shapes(whole), parameter_shapes(part))
    wanted, found = (
        quant_formats.formats(options.quantization, spec, of_spec, places, kinds, device=device)
        for spec, of_spec in zip((whole, part), shapes, strict=True)
    )
    cut = wanted.keys() - found.keys()
    cut |= {
        name
        for name, format_ in found.items()
        if format_.ordered and name in shapes[0] and shapes[0][name][1] != shapes[1][name][1]
    }
    if cut:
        name = min(cut)
        how = "in an order of their own" if wanted[name].ordered else f"no whole groups of {wanted[name].group}"
        raise StartError(
            f"{part.rank.option} is not possible in {wanted[name].name}: the columns of {name} are {how} for each rank"
        )
    return found
