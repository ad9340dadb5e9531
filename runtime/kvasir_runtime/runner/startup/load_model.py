"""Loads the model of the options onto a device, after checks that it fits into memory. Called by `build`."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from kvasir_api import forecast, hf_config, weight_offload
from kvasir_api.options import ServeOptions
from kvasir_api.roofline import StepWork, table_bytes
from kvasir_runtime.errors import StartError
from kvasir_runtime.kernels import kv_quant
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.layers.layer_offload import LayerOffload
from kvasir_runtime.layers.spec import DecoderSpec, parameter_shapes
from kvasir_runtime.models.config import ModelConfig, read_config, read_document
from kvasir_runtime.models.registry import family_of
from kvasir_runtime.runner.startup import capacity, host_resources, placement
from kvasir_runtime.runner.state.device_stream import CopyStream
from kvasir_runtime.weights import quant_formats
from kvasir_runtime.weights.loader import OnRead, load
from kvasir_runtime.weights.loader import kinds as stored_kinds
from kvasir_runtime.wire import Progress

ETA_FRACTION: Final = 0.05
ETA_AFTER_S: Final = 1.0
POLL_S: Final = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model whose weights are on the device. max_model_len: what was requested, or what the model was made for.

    quantization: which weights are stored in which format, for the banner. host_weights_bytes: of weights_bytes, what
    is on the host; weights_copy_s: seconds in which that is copied to the device. work: what steps compute and read.
    """

    config: ModelConfig
    model: Decoder
    dtype: torch.dtype
    cache_dtype: torch.dtype
    max_model_len: int
    weights_bytes: int
    host_weights_bytes: int
    weights_copy_s: float
    quantization: str
    work: StepWork | None


def load_model(
    options: ServeOptions,
    folder: Path,
    device: torch.device,
    ops: Ops,
    on_progress: Callable[[Progress], None],
    copies: CopyStream | None = None,
) -> LoadedModel:
    """Raises StartError before anything is read where the weights, or a KV cache beside them, cannot fit.

    copies: for weights that stay on the host; None where the device is the host.
    """
    config = read_config(folder, options.hf_overrides)
    family = family_of(config)
    spec = family.spec(config)
    document = read_document(folder, options.hf_overrides)
    limit = capacity.sequence_limit(options.max_model_len, hf_config.sequence_limits(document))
    capability = placement.capability(device)
    dtype = placement.choose_dtype(options.dtype, config.dtype or config.torch_dtype, device, capability=capability)
    _check_batch_invariant(options, dtype, ops)
    _check_layers(options, spec)
    if copies is not None:
        _check_pinned(options)
    shapes, places, kinds = parameter_shapes(spec), family.places(spec), stored_kinds(folder)
    on_gpu = device.type == "cuda"
    formats = quant_formats.formats(options.quantization, spec, shapes, places, kinds, floating=on_gpu)
    total_bytes = quant_formats.num_bytes(shapes, formats, dtype.itemsize)
    layer_bytes = quant_formats.layer_bytes(shapes, formats, dtype.itemsize, spec.num_layers)
    on_host = _layers_on_host(options, layer_bytes, copies)
    host_bytes = sum(layer_bytes[index] for index in on_host)
    weights_bytes = total_bytes - host_bytes + (weight_offload.BUFFERS * max(layer_bytes) if on_host else 0)
    _check_memory(weights_bytes, device, folder)
    sizes = _sizes(document)
    if sizes is not None and not options.kv_cache_tokens:
        _check_forecast(options, sizes, device, dtype, total_bytes)
    cache_dtype = placement.choose_cache_dtype(
        options.kv_cache_dtype, dtype, device, head_dim=spec.head_dim, capability=capability
    )
    row_bytes = cache_dtype.itemsize, kv_quant.scale_bytes(cache_dtype)
    token_bytes = spec.kv_bytes_per_token(*row_bytes, spec.block_size(options.block_size, *row_bytes))
    capacity.check_cache(options.kv_cache_tokens, token_bytes, weights_bytes, _limit_bytes(device))
    with torch.inference_mode():
        on_read = loading_progress(on_progress)
        names = {name for name in shapes for index in on_host if name.startswith(f"layers.{index}.")}
        tensors = load(folder, places, shapes, dtype, device, on_read, formats, ops.quantize, names)
        offload = LayerOffload(on_host, copies) if copies is not None and on_host else None
        model = Decoder(spec, ops, tensors, num_positions=limit, offload=offload)
        weights_copy_s = 0.0 if offload is None else _copy_s(offload)
    return LoadedModel(
        config=config,
        model=model,
        dtype=dtype,
        cache_dtype=cache_dtype,
        max_model_len=limit,
        weights_bytes=total_bytes,
        host_weights_bytes=host_bytes,
        weights_copy_s=weights_copy_s,
        quantization=quant_formats.described(formats),
        work=None if sizes is None else _work(sizes, total_bytes, dtype, cache_dtype),
    )


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


def _check_pinned(options: ServeOptions) -> None:
    """Reject options that pin more of the host's memory, all together, than this process may use: the kernel would kill
    it half way, and again after each restart.
    """
    asked = {"--weights-host-bytes": options.weights_host_bytes, "--kv-host-bytes": options.kv_host_bytes}
    limit_bytes = host_resources.memory_limit_bytes()
    if sum(asked.values()) > limit_bytes:
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


def _check_memory(weights_bytes: int, device: torch.device, folder: Path) -> None:
    """Reject weights that cannot fit before they are read: on a CPU the kernel would kill the process half way."""
    if device.type == "cpu":
        available = min(
            host_resources.memory_limit_bytes(),
            host_resources.memory_available_bytes() + host_resources.resident_bytes(),
        )
        capacity.check_weights(weights_bytes, available, available, folder)
    else:
        capacity.check_weights(weights_bytes, *torch.cuda.mem_get_info(device), folder)


def _limit_bytes(device: torch.device) -> int:
    """Most memory that this process may use on the device."""
    return host_resources.memory_limit_bytes() if device.type == "cpu" else torch.cuda.mem_get_info(device)[1]


def _sizes(document: Mapping[str, Any]) -> forecast.ModelShape | None:
    """None where config.json lacks what the forecast counts with."""
    try:
        return forecast.shape(document)
    except ValueError:
        return None


def _work(sizes: forecast.ModelShape, weights_bytes: int, dtype: torch.dtype, cache_dtype: torch.dtype) -> StepWork:
    names = {torch.int8: "int8", torch.float8_e4m3fn: "fp8"}
    return StepWork(
        shape=sizes,
        weights_bytes=weights_bytes,
        table_bytes=table_bytes(sizes, str(dtype).removeprefix("torch.")),
        kv_bytes=sizes.layer_bytes_per_token(names.get(cache_dtype, str(cache_dtype).removeprefix("torch."))),
    )


def _check_forecast(
    options: ServeOptions, model: forecast.ModelShape, device: torch.device, dtype: torch.dtype, weights_bytes: int
) -> None:
    """Reject by forecast before anything is read, unless it counts more weights than there are."""
    name = str(dtype).removeprefix("torch.")
    if model.weights_bytes(name, options.quantization) > weights_bytes:
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
