"""Decoders of one rank's part, without a runner, and the loop of those behind the first."""

from dataclasses import replace
from pathlib import Path

import torch

from kvasir_api.cache_groups import LayerAttention
from kvasir_api.eplb import EplbConfig
from kvasir_api.options import Quantization
from kvasir_runtime.errors import RankLostError
from kvasir_runtime.kernels.collectives import Collectives
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers import sharding, stages
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.layers.expert_copies import ExpertCopies
from kvasir_runtime.layers.ranks import NewCache, follow
from kvasir_runtime.layers.spec import DecoderSpec, Rank, parameter_shapes
from kvasir_runtime.models.config import ModelConfig, read_config
from kvasir_runtime.models.registry import family_of
from kvasir_runtime.models.sharded_places import sharded_places
from kvasir_runtime.runner.startup import expert_reader, load_model, model_parts
from kvasir_runtime.runner.startup.cache_allocation import allocate_cache
from kvasir_runtime.runner.startup.model_parts import ModelPart
from kvasir_runtime.weights import quant_formats as weight_formats
from kvasir_runtime.weights.loader import kinds, load

CPU_DEVICE = torch.device("cpu")


def whole_spec(config: ModelConfig, attentions: tuple[LayerAttention, ...] | None = None) -> DecoderSpec:
    """The family's. attentions: of each layer, in place of the family's."""
    spec = family_of(config).spec(config)
    return spec if attentions is None else replace(spec, attentions=attentions)


@torch.inference_mode()
def decoder(
    folder: Path,
    whole: DecoderSpec,
    rank: Rank,
    ops: Ops,
    device: torch.device,
    quantization: Quantization,
    dtype: torch.dtype,
    limit: int,
    stage: tuple[int, int] = (0, 1),
    config: EplbConfig | None = None,
) -> tuple[Decoder, ExpertCopies | None]:
    """With its copies of experts. stage: its number, and of how many, of about equally many layers."""
    spec, family = sharding.shard(whole, rank), family_of(read_config(folder, ""))
    of_rank = sharded_places(family.places, whole, spec)
    index, count = stage
    if count > 1:
        spec = stages.staged(spec, stages.divided([1] * whole.num_layers, 0, count, whole.joined)[index])
    shapes = parameter_shapes(spec)
    formats = weight_formats.formats(quantization, spec, shapes, of_rank, kinds(folder))
    tensors = load(
        folder, of_rank, shapes, dtype, device, lambda read, total: None, formats, ops.quantize, unused=family.unused
    )
    room = None if config is None else model_parts.copy_room(config, spec)
    part = ModelPart(
        spec=spec,
        places=of_rank,
        formats=formats,
        device=weight_formats.PROCESSORS,
        num_bytes=0,
        stages=(spec,),
        stage_bytes=(0,),
        room=room,
    )
    copies = expert_reader.copies(folder, family, read_config(folder, ""), part, ops, dtype)
    return load_model.decoder_of(spec, ops, tensors, limit, None, copies), copies


def follow_in_thread(decoder: Decoder, copies: ExpertCopies | None, rank: Collectives) -> None:
    """One rank behind the first. What it raises ends the others."""

    def allocate(made: NewCache) -> KvCache:
        return allocate_cache(decoder.spec, made.num_blocks, made.block_size, getattr(torch, made.dtype), CPU_DEVICE)

    try:
        follow(decoder, rank, allocate, copies)
    except RankLostError:
        return
    except BaseException as error:
        rank.abort(f"rank {rank.rank}: {error!r}")
        raise
