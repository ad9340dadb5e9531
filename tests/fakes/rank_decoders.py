"""Decoders of ranks within one process, loaded without measuring what fits."""

from pathlib import Path
from typing import Final

import torch

from fakes.recording import Recordings
from kvasir_api.eplb import EplbConfig
from kvasir_api.options import Quantization
from kvasir_runtime.errors import RankLostError
from kvasir_runtime.kernels.collectives import Collectives
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers import sharding, stages
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.layers.expert_copies import ExpertCopies
from kvasir_runtime.layers.rank import Rank
from kvasir_runtime.layers.rank_messages import NewCache
from kvasir_runtime.layers.ranks import decoder_of, follow
from kvasir_runtime.layers.spec import DecoderSpec, parameter_shapes
from kvasir_runtime.models.config import read_config
from kvasir_runtime.models.registry import family_of
from kvasir_runtime.models.sharded_places import sharded_places
from kvasir_runtime.runner.startup import model_parts
from kvasir_runtime.runner.startup.cache_allocation import allocate_cache
from kvasir_runtime.runner.startup.expert_reader import expert_copies, files_before
from kvasir_runtime.weights import quant_formats as weight_formats
from kvasir_runtime.weights.loader import kinds, load

CPU_DEVICE: Final = torch.device("cpu")


@torch.inference_mode()
def decoder_of_rank(
    folder: Path,
    whole: DecoderSpec,
    rank: Rank,
    ops: Ops,
    device: torch.device,
    quantization: Quantization,
    dtype: torch.dtype,
    limit: int,
    layers: range | None = None,
    eplb: tuple[EplbConfig, list[ExpertCopies]] | None = None,
) -> Decoder:
    """As `runner_of` makes it. layers: of its stage."""
    spec, family = sharding.shard(whole, rank), family_of(read_config(folder, ""))
    of_rank = sharded_places(family.places, whole, spec)
    spec = spec if layers is None else stages.staged(spec, layers)
    shapes = parameter_shapes(spec)
    formats = weight_formats.formats(quantization, spec, shapes, of_rank, kinds(folder))
    room = None if eplb is None else model_parts.copy_room(eplb[0], spec)
    files = files_before(folder, room)
    tensors = load(
        folder, of_rank, shapes, dtype, device, lambda read, total: None, formats, ops.quantize, unused=family.unused
    )
    copies = expert_copies(folder, files, family, whole, spec, formats, room, ops, dtype)
    if eplb is not None and copies is not None:
        eplb[1].append(copies)
    return decoder_of(spec, ops, tensors, limit, copies=copies)


def follow_rank(decoder: Decoder, rank: Collectives) -> None:
    """One rank behind the first. What it raises ends the others."""

    def allocate(made: NewCache) -> KvCache:
        return allocate_cache(decoder.spec, made.num_blocks, made.block_size, getattr(torch, made.dtype), CPU_DEVICE)

    try:
        follow(decoder, rank, allocate, Recordings())
    except RankLostError:
        return
    except BaseException as error:
        rank.abort(f"rank {rank.rank}: {error!r}")
        raise
