"""Whether a model fits into a memory, with the numbers that say so. Called by `plan`."""

from dataclasses import dataclass, replace
from typing import Any

from kvasir_api import forecast, inspection, layouts, pod_layouts, rank_forecast, weight_offload
from kvasir_api.model_shape import ModelShape
from kvasir_api.options import RuntimeOptions
from kvasir_api.speculation import NO_DRAFTER, DraftModelSize, reads_own_layer
from kvasir_runtime.commands import host_resources, model_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """The forecast with what it was made for. fitting_context: tokens of the longest request that would fit.

    ranks: processes that share the memory; data_ranks: those of them that have requests and a part of the cache of
    their own, so that a request is no longer than a part. step_tokens: of the largest step. drafter: what a draft model
    takes. stored_sixteenths, stored_plain: as of `ModelShape`.
    """

    model: str
    architecture: str
    supported: bool
    parameters: int
    active_parameters: int
    dtype: str
    quantization: str
    stored_sixteenths: float
    stored_plain: int
    device: host_resources.Device
    memory_bytes: int
    memory_fraction: float
    shared: bool
    max_model_len: int
    max_sequences: int
    ranks: int
    data_ranks: int
    step_tokens: int
    fit: forecast.MemoryFit
    drafter: DraftModelSize = NO_DRAFTER

    @property
    def fitting_context(self) -> int:
        """0 when nothing is left after weights and activations."""
        return self.fit.longest_sequence


def fit_report(
    model: str,
    config: dict[str, Any],
    *,
    memory_bytes: int,
    device: host_resources.Device,
    options: RuntimeOptions,
    shared: bool = False,
    drafter: dict[str, Any] | None = None,
) -> FitReport:
    """shared: no container limits the memory. drafter: config.json of a draft model, if there is one.

    Raises ValueError that names what is wrong with a config.json.
    """
    shape = inspection.held_on(model_facts.shape_of(config), device)
    _check_options(shape, options, device)
    dtype = host_resources.dtype(options.dtype, shape.dtype, device)
    architecture = model_facts.architecture_of(config)
    longest = options.max_model_len or shape.max_positions
    beside = _drafter_size(config, drafter, shape, device, options)
    batch_tokens = options.max_batch_tokens or forecast.BATCH_TOKENS[device]
    data_ranks, part = options.data_parallel_size, shape
    if data_ranks > 1:
        part = layouts.of_data_rank(shape, data_ranks, whole_experts=options.enable_expert_parallel)
    fit = _fit(part, options, memory_bytes // data_ranks, dtype, device, beside, shared=shared)
    return FitReport(
        model=model,
        architecture=architecture,
        supported=model_facts.is_supported(architecture),
        parameters=shape.parameters,
        active_parameters=shape.active_parameters,
        dtype=dtype,
        quantization=options.quantization,
        stored_sixteenths=shape.held.stored,
        stored_plain=shape.stored_plain,
        device=device,
        memory_bytes=memory_bytes,
        memory_fraction=options.memory_fraction,
        shared=shared,
        max_model_len=longest,
        max_sequences=options.max_sequences,
        ranks=options.ranks,
        data_ranks=data_ranks,
        step_tokens=shape.step_tokens(batch_tokens, longest),
        fit=fit if data_ranks == 1 else _of_all(fit, data_ranks),
        drafter=beside,
    )


def _fit(
    shape: ModelShape,
    options: RuntimeOptions,
    memory_bytes: int,
    dtype: str,
    device: host_resources.Device,
    beside: DraftModelSize,
    *,
    shared: bool,
) -> forecast.MemoryFit:
    """Of the processes that share a cache."""
    return rank_forecast.fit(
        shape,
        options,
        dtype,
        memory_bytes,
        device=device,
        max_model_len=options.max_model_len,
        max_batch_tokens=options.max_batch_tokens or forecast.BATCH_TOKENS[device],
        copies_bytes=rank_forecast.copies_of_states(shape, options, dtype, device),
        drafter=beside,
        cache_limit_bytes=_cache_limit(shape, memory_bytes, dtype, device, options) if shared else None,
    )


def _of_all(fit: forecast.MemoryFit, ranks: int) -> forecast.MemoryFit:
    """Of so many ranks, each with as much memory, weights and cache. The longest sequence is that of one of them, and
    none is in two of them.
    """
    return replace(
        fit,
        weights_bytes=fit.weights_bytes * ranks,
        kv_tokens=fit.kv_tokens * ranks,
        concurrency=fit.concurrency // 1 * ranks,
        message=f"at each of {ranks} ranks {fit.message}",
    )


def _check_options(shape: ModelShape, options: RuntimeOptions, device: host_resources.Device) -> None:
    """Raises ValueError for what the runtime refuses at start."""
    if options.weights_host_bytes and device == "cpu":
        raise ValueError(weight_offload.NOT_ON_CPU)
    if why := pod_layouts.refusal(options, device) or inspection.cache_refusal(shape, options, device):
        raise ValueError(why)


def _drafter_size(
    config: dict[str, Any],
    drafter: dict[str, Any] | None,
    model: ModelShape,
    device: host_resources.Device,
    options: RuntimeOptions,
) -> DraftModelSize:
    """Of its config, where there is one, or of the layer that drafts in the model's checkpoint."""
    reads_own = reads_own_layer(options.speculation, ranks=options.ranks)
    own = model_facts.own_drafter(config) if reads_own else None
    shape = own if drafter is None else model_facts.drafter_shape(drafter)
    if shape is None or (device != "cpu" and options.speculation == "auto"):
        return NO_DRAFTER
    if device != "cpu":
        raise ValueError(f"--speculation {options.speculation} is for CPUs; choose auto or off")
    dtype = host_resources.dtype(options.dtype, shape.dtype, device)
    return inspection.drafter_size(
        inspection.held_on(shape, device),
        model,
        dtype=dtype,
        quantization=options.quantization,
        kv_cache_dtype=options.kv_cache_dtype,
    )


def _cache_limit(
    shape: ModelShape, memory_bytes: int, dtype: str, device: host_resources.Device, options: RuntimeOptions
) -> int:
    """The engine's cache on a shared machine: a modest part of memory, or the requested length."""
    cached = dtype if options.kv_cache_dtype == "auto" else options.kv_cache_dtype
    chunk_tokens = options.max_batch_tokens or forecast.BATCH_TOKENS[device]
    requested = shape.sequence_tokens(options.max_model_len, chunk_tokens) if options.max_model_len else 0
    return max(forecast.shared_cache_bytes(memory_bytes), requested * shape.kv_bytes_per_token(cached))
