"""Loads the model of the options onto a device, after checks that it fits into memory. Called by `build`."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import torch

from kvasir_api import forecast, hf_config, inspection, weight_offload
from kvasir_api.model_shape import ModelShape
from kvasir_api.options import ServeOptions
from kvasir_api.roofline import StepWork, table_bytes
from kvasir_runtime.engine_reports import Progress
from kvasir_runtime.errors import CapacityError, StartError
from kvasir_runtime.kernels import kv_quant
from kvasir_runtime.kernels.collectives import StageCollectives
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.layers.layer_offload import LayerOffload
from kvasir_runtime.layers.ranks import decoder_of
from kvasir_runtime.layers.spec import DecoderSpec, parameter_shapes
from kvasir_runtime.models import registry
from kvasir_runtime.models.config import ModelConfig, read_document, read_longest_text
from kvasir_runtime.models.family import Family
from kvasir_runtime.rank_states import RankSize
from kvasir_runtime.runner.startup import capacity, host_resources, load_transformers, model_parts, placement
from kvasir_runtime.runner.startup.expert_reader import expert_copies, files_before
from kvasir_runtime.runner.state.device_stream import CopyStream
from kvasir_runtime.weights import quant_formats
from kvasir_runtime.weights.loader import OnRead, load

ETA_FRACTION: Final = 0.05
ETA_AFTER_S: Final = 1.0
POLL_S: Final = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model whose weights are on the device. max_model_len: what was requested, or what the model was made for.

    model: this rank's part; weights_bytes: of all ranks together; other_bytes: what the largest stage has of them more
    than this one, and copies_bytes: of copies of experts. rank_sizes: of a rank in each stage.

    folder: of its checkpoint. quantization: which weights are stored in which format, for the banner.
    host_weights_bytes: of weights_bytes, what is on the host; weights_copy_s: seconds in which that is copied to the
    device. work: what steps compute and read. through_transformers: model computes with modules of that library.
    """

    folder: Path
    config: ModelConfig
    model: Decoder
    dtype: torch.dtype
    cache_dtype: torch.dtype
    max_model_len: int
    weights_bytes: int
    rank_sizes: tuple[RankSize, ...]
    host_weights_bytes: int
    weights_copy_s: float
    quantization: str
    work: StepWork | None
    other_bytes: int = 0
    copies_bytes: int = 0
    through_transformers: bool = False

    @property
    def token_bytes(self) -> int:
        """Of the KV cache, of one token in the stage that has most."""
        return max(size.kv_bytes_per_token for size in self.rank_sizes)

    def kernels(self, ops: Ops) -> str:
        """What computes it, for the banner; blocks on disk that another version wrote are not read."""
        if self.through_transformers:
            return f"{ops.name}, layers of transformers {metadata.version('transformers')}"
        ranks, is_staged = ops.collectives, self.model.spec.stage is not None
        how = f" in {ranks.stages} stages" if is_staged and isinstance(ranks, StageCollectives) else ""
        return ops.name if ranks is None else f"{ops.name}, {ranks.ranks} ranks{how}"


def load_model(
    options: ServeOptions,
    folder: Path,
    device: torch.device,
    ops: Ops,
    on_progress: Callable[[Progress], None],
    copies: CopyStream | None = None,
    beside_bytes: int = 0,
    rank_bytes: int = 0,
) -> LoadedModel:
    """Raises StartError before anything is read where the weights, or a KV cache beside them, cannot fit.

    copies: for weights that stay on the host, None where that is the device. beside_bytes: weights of another model.
    rank_bytes: memory of a rank, which decides where stages begin.
    """
    if load_transformers.is_chosen(options, folder):
        return _through_transformers(options, folder, device, ops, on_progress, copies, beside_bytes)
    config, family = registry.read(folder, options.hf_overrides)
    document = read_document(folder, options.hf_overrides)
    limit = _sequence_limit(options, folder, family, document)
    dtype = placement.dtype_of(options, config.dtype or config.torch_dtype, device, packs_bfloat16=ops.packs_bfloat16)
    room = model_parts.stage_room(options, sizes := _sizes(document), dtype, rank_bytes)
    part = model_parts.part_of(options, folder, family, config, ops, dtype.itemsize, room, cuda=device.type == "cuda")
    spec, formats, total_bytes = part.spec, part.formats, part.num_bytes
    _check_options(options, dtype, ops, spec, pins=copies is not None)
    shapes, files = parameter_shapes(spec), files_before(folder, part.copy_room)
    layer_bytes = quant_formats.layer_bytes(shapes, formats, dtype.itemsize, spec.num_layers, part.device)
    on_host = _layers_on_host(options, layer_bytes, copies)
    host_bytes = sum(layer_bytes[index] for index in on_host)
    weights_bytes = beside_bytes + total_bytes - host_bytes + _buffer_bytes(on_host, layer_bytes)
    here_bytes = part.host_bytes(options)
    sharing = part.sharing_ranks(options)
    if ops.collectives is None or ops.collectives.rank % sharing == 0:  # before the others have taken theirs
        check_memory(weights_bytes - total_bytes + here_bytes, device, folder)
        _check_forecast(options, sizes, device, dtype, here_bytes)
    cache_dtype = placement.cache_dtype_of(options, spec, dtype, device)
    _check_cache(options, part, cache_dtype, weights_bytes, _limit_bytes(device) // sharing)
    with torch.inference_mode():
        names, on_read = _names_on_host(shapes, on_host), loading_progress(on_progress)
        tensors = load(folder, part.places, shapes, dtype, device, on_read, formats, ops.quantize, names, family.unused)
        offload = LayerOffload(on_host, copies) if copies is not None and on_host else None
        made = expert_copies(folder, files, family, family.spec(config), spec, formats, part.copy_room, ops, dtype)
        model = decoder_of(spec, ops, tensors, limit, offload, made)
        weights_copy_s = 0.0 if offload is None else _copy_s(offload)
    return LoadedModel(
        folder=folder,
        config=config,
        model=model,
        dtype=dtype,
        cache_dtype=cache_dtype,
        max_model_len=limit,
        weights_bytes=part.all_bytes,
        other_bytes=max(part.stage_bytes) - total_bytes + part.copies_bytes,
        copies_bytes=part.copies_bytes,
        rank_sizes=part.rank_sizes(options, cache_dtype),
        host_weights_bytes=host_bytes,
        weights_copy_s=weights_copy_s,
        quantization=quant_formats.described(formats),
        work=None if sizes is None else _work(sizes, part.all_bytes, dtype, cache_dtype),
    )


def _through_transformers(
    options: ServeOptions,
    folder: Path,
    device: torch.device,
    ops: Ops,
    on_progress: Callable[[Progress], None],
    copies: CopyStream | None,
    beside_bytes: int,
) -> LoadedModel:
    """`load_model` of a model that transformers computes."""
    _check_pinned(options, pins=copies is not None)
    document = read_document(folder, options.hf_overrides)
    stored = document.get("dtype") or document.get("torch_dtype")
    dtype = placement.dtype_of(options, stored, device)
    on_progress(Progress(phase="loading", progress_fraction=0.0))

    def check_bytes(taken: int) -> None:
        check_memory(beside_bytes + taken, device, folder)
        if device.type != "cpu":
            _check_host(taken, folder)
        if registry.declared(registry.named_in(document)) is not None:  # of others the sizes are read by guess
            _check_forecast(options, _sizes(document), device, dtype, taken)

    found = load_transformers.load(options, folder, document, dtype, device, ops, check_bytes)
    spec, weights_bytes, sizes = found.decoder.spec, found.weights_bytes, _sizes(document)
    cache_dtype = placement.cache_dtype_of(options, spec, dtype, device)
    token_bytes = spec.kv_bytes_per_token(kv_quant.number_bytes(cache_dtype), kv_quant.scale_bytes(cache_dtype))
    capacity.check_cache(options.kv_cache_tokens, token_bytes, weights_bytes + beside_bytes, _limit_bytes(device))
    return LoadedModel(
        folder=folder,
        config=found.config,
        model=found.decoder,
        dtype=dtype,
        cache_dtype=cache_dtype,
        max_model_len=found.max_model_len,
        weights_bytes=weights_bytes,
        rank_sizes=(RankSize(weights_bytes, token_bytes),),
        host_weights_bytes=0,
        weights_copy_s=0.0,
        quantization="",
        work=None if sizes is None else _work(sizes, weights_bytes, dtype, cache_dtype),
        through_transformers=True,
    )


def _sequence_limit(options: ServeOptions, folder: Path, family: Family, document: Mapping[str, Any]) -> int:
    """Tokens of the longest sequence. Raises ModelError where the option is more than the model has positions."""
    limit = capacity.sequence_limit(options.max_model_len, hf_config.sequence_limits(document))
    is_encoder = family.is_encoder or document.get("use_bidirectional_attention") is True
    return read_longest_text(folder, limit) if is_encoder and not options.max_model_len else limit


def _names_on_host(shapes: model_parts.Shapes, on_host: Sequence[int]) -> set[str]:
    """Of the weights of layers that stay there."""
    return {name for name in shapes for index in on_host if name.startswith(f"layers.{index}.")}


def _buffer_bytes(on_host: Sequence[int], layer_bytes: Sequence[int]) -> int:
    """Of the device, in which layers on the host are computed with."""
    return weight_offload.BUFFERS * max(layer_bytes) if on_host else 0


def _layers_on_host(options: ServeOptions, layer_bytes: Sequence[int], copies: CopyStream | None) -> tuple[int, ...]:
    """Raises StartError where the option cannot be followed."""
    limit_bytes = options.weights_host_bytes
    if not limit_bytes:
        return ()
    if copies is None:
        raise StartError(weight_offload.NOT_ON_CPU)
    indices = weight_offload.chosen(layer_bytes, limit_bytes)
    if not indices:
        raise StartError(
            f"--weights-host-bytes {limit_bytes:,} must hold {weight_offload.LEAST_LAYERS} layers of up to"
            f" {max(layer_bytes):,} bytes, of {len(layer_bytes)}: two of those on the host are on the device at a time"
        )
    return indices


def _copy_s(offload: LayerOffload) -> float:
    """Measured seconds in which all that is on the host is copied once."""
    before, behind = offload.copy_all()
    while not behind.has_passed():
        time.sleep(POLL_S)
    seconds: float = behind.seconds_since(before)
    return seconds


def _check_options(options: ServeOptions, dtype: torch.dtype, ops: Ops, spec: DecoderSpec, *, pins: bool) -> None:
    """Reject options that cannot be followed. pins: whether they pin memory of the host."""
    _check_batch_invariant(options, dtype, ops)
    _check_layers(options, spec)
    _check_encoder(options, spec)
    _check_pinned(options, pins=pins)


def _check_pinned(options: ServeOptions, *, pins: bool) -> None:
    """Reject options that pin more of the host's memory, all together, than this process may use: the kernel would kill
    it half way, and again after each restart.
    """
    asked = {"--weights-host-bytes": options.weights_host_bytes, "--kv-host-bytes": options.kv_host_bytes}
    limit_bytes = host_resources.memory_limit_bytes()
    if pins and sum(asked.values()) > limit_bytes:
        named = " and ".join(f"{option} {size:,}" for option, size in asked.items() if size)
        raise StartError(f"{named}: this process may use {limit_bytes:,} bytes of the host's memory")


def _check_batch_invariant(options: ServeOptions, dtype: torch.dtype, ops: Ops) -> None:
    """Reject the option where the kernels cannot compute a token with the same bits in every batch."""
    if not options.batch_invariant or dtype in ops.invariant_dtypes:
        return
    able = " and ".join(str(one).removeprefix("torch.") for one in ops.invariant_dtypes)
    name = str(dtype).removeprefix("torch.")
    instead = f"set --dtype to {able}, or leave the option out" if able else "leave the option out"
    raise StartError(f"--batch-invariant is not possible in {name} with the kernels of {ops.name}: {instead}")


def _check_layers(options: ServeOptions, spec: DecoderSpec) -> None:
    """Reject layers with a state or latent attention where they cannot be computed as the options request."""
    if options.batch_invariant and (spec.state is not None or spec.latent is not None):
        kind = "latent attention" if spec.state is None else "layers with a state (linear attention)"
        raise StartError(
            f"--batch-invariant is not possible for {kind}, whose sums depend on the length of chunks: leave the option"
            " out"
        )


def _check_encoder(options: ServeOptions, spec: DecoderSpec) -> None:
    """Reject options that need a KV cache where there is none. --kv-cache-tokens has no effect, as in a forecast."""
    if spec.encoder is not None and options.kv_host_bytes:
        raise StartError("--kv-host-bytes is not possible for an encoder, which has no KV cache: leave the option out")


def check_memory(weights_bytes: int, device: torch.device, folder: Path) -> None:
    """Reject weights that cannot fit before they are read: on a CPU the kernel would kill the process half way."""
    if device.type == "cpu":
        available = min(
            host_resources.memory_limit_bytes(),
            host_resources.memory_available_bytes() + host_resources.resident_bytes(),
        )
        capacity.check_weights(weights_bytes, available, available, folder)
    else:
        capacity.check_weights(weights_bytes, *torch.cuda.mem_get_info(device), folder)


def _check_host(weights_bytes: int, folder: Path) -> None:
    """`check_memory` of weights that are made as a whole on the host before a card takes them."""
    try:
        check_memory(weights_bytes, torch.device("cpu"), folder)
    except CapacityError as error:
        raise CapacityError(f"{error} on the host, through which transformers loads them") from error


def _check_cache(
    options: ServeOptions, part: model_parts.ModelPart, cache_dtype: torch.dtype, weights_bytes: int, limit_bytes: int
) -> None:
    """Reject a KV cache of a given size that cannot fit beside the weights of a rank and its copies of experts."""
    tokens = -(-options.kv_cache_tokens // options.data_parallel_size)
    token_bytes = part.token_bytes(options, cache_dtype)
    capacity.check_cache(tokens, token_bytes, weights_bytes, limit_bytes, part.copies_bytes)


def _limit_bytes(device: torch.device) -> int:
    """Most memory that this process may use on the device."""
    return host_resources.memory_limit_bytes() if device.type == "cpu" else torch.cuda.mem_get_info(device)[1]


def _sizes(document: Mapping[str, Any]) -> ModelShape | None:
    """None where config.json lacks what the forecast counts with."""
    try:
        return forecast.shape(document)
    except ValueError:
        return None


def _work(sizes: ModelShape, weights_bytes: int, dtype: torch.dtype, cache_dtype: torch.dtype) -> StepWork:
    names = {torch.int8: "int8", kv_quant.FLOAT8: "fp8", kv_quant.INT4: "int4"}
    return StepWork(
        shape=sizes,
        weights_bytes=weights_bytes,
        table_bytes=table_bytes(sizes, str(dtype).removeprefix("torch.")),
        kv_bytes=sizes.layer_bytes_per_token(names.get(cache_dtype, str(cache_dtype).removeprefix("torch."))),
    )


def _check_forecast(
    options: ServeOptions,
    model: ModelShape | None,
    device: torch.device,
    dtype: torch.dtype,
    weights_bytes: int,
) -> None:
    """Reject by forecast before anything is read, unless it counts more weights than there are, or the options give
    the size of the KV cache.
    """
    name = str(dtype).removeprefix("torch.")
    model = model and inspection.held_on(model, "cpu" if device.type == "cpu" else "cuda")
    if model is None or options.kv_cache_tokens or model.weights_bytes(name, options.quantization) > weights_bytes:
        return
    capacity.check_forecast(
        model,
        limit_bytes=_limit_bytes(device),
        fraction=options.memory_fraction,
        dtype=name,
        requested=options.max_model_len,
        block_size=options.block_size,
        kv_cache_dtype=options.kv_cache_dtype,
        quantization=options.quantization,
        weights_host_bytes=options.weights_host_bytes,
    )


def loading_progress(on_progress: Callable[[Progress], None], clock: Callable[[], float] = time.monotonic) -> OnRead:
    """Report bytes read as progress, at most every hundredth; the time left from the speed of reading so far.

    Before a twentieth was read for a second the speed means nothing: reading is still starting, or caches are warm.
    """
    reported, began_at, began_fraction = -1, 0.0, 0.0

    def on_read(read: int, total: int) -> None:
        nonlocal reported, began_at, began_fraction
        fraction, now = read / total if total else 1.0, clock()
        if reported < 0:
            began_at, began_fraction = now, fraction
        if int(fraction * 100) > reported:
            reported = int(fraction * 100)
            done, elapsed = fraction - began_fraction, now - began_at
            known = done >= ETA_FRACTION and elapsed >= ETA_AFTER_S
            eta_s = elapsed * (1 - fraction) / done if known else -1.0
            on_progress(Progress(phase="loading", progress_fraction=fraction, eta_s=eta_s))

    return on_read
