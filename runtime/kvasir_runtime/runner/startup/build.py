"""Build a runner from options: find the model, load it, measure, size the KV cache. Called once by the engine process.

Raises StartError with one line for everything that a person can put right.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch

from kvasir_api import forecast
from kvasir_api.options import ServeOptions
from kvasir_runtime import source
from kvasir_runtime.errors import CapacityError
from kvasir_runtime.guide.compiler import GrammarCompiler
from kvasir_runtime.kernels import kv_quant
from kvasir_runtime.kernels.backends import ops_for
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.layers.spec import DecoderSpec, parameter_shapes
from kvasir_runtime.models.config import read_config, read_document, read_eos_token_ids
from kvasir_runtime.models.registry import family_of
from kvasir_runtime.runner.graphs.capture import CudaGraphCapturer, GraphCapturer
from kvasir_runtime.runner.graphs.decode_graphs import DecodeGraphs
from kvasir_runtime.runner.runner import ModelRunner, RunnerFacts
from kvasir_runtime.runner.startup import capacity, host_resources, placement, startup_cache, startup_cache_key, warmup
from kvasir_runtime.runner.startup.startup_cache import StartupCache, StepMemory
from kvasir_runtime.runner.state.device_state import DeviceRowState
from kvasir_runtime.runner.state.device_stream import DeviceStream, stream_of
from kvasir_runtime.runner.state.host_state import HostRowState
from kvasir_runtime.weights import quant_formats as weight_formats
from kvasir_runtime.weights.loader import OnRead, load
from kvasir_runtime.weights.loader import kinds as stored_kinds
from kvasir_runtime.wire import Progress

if TYPE_CHECKING:
    from kvasir_runtime.guide.vocabulary import Vocabulary

OnProgress = Callable[[Progress], None]
NewCapturer = Callable[[], GraphCapturer]


def build(
    options: ServeOptions,
    on_progress: OnProgress,
    device_stream: DeviceStream | None = None,
    new_capturer: NewCapturer | None = None,
    ops: Ops | None = None,
) -> ModelRunner:
    """A runner that is ready for its first plan. on_progress is called often and must be fast.

    device_stream, ops: by default those of the chosen device. new_capturer: by default CUDA's on CUDA; not used where
    the options turn graphs off.
    """
    start = time.monotonic()
    folder = source.resolve(options.model)
    config = read_config(folder)
    family = family_of(config)
    spec = family.spec(config)
    limit = capacity.sequence_limit(options.max_model_len, config.max_position_embeddings)
    device = placement.choose_device(options.device)
    dtype = placement.choose_dtype(options.dtype, config.dtype or config.torch_dtype, device)
    ops = ops or ops_for(device)
    if device.type == "cpu":
        host_resources.use(host_resources.num_threads(), ops)
        host_resources.return_library_pages()  # after the last library was loaded, before weights take their place
    shapes = parameter_shapes(spec)
    places, kinds = family.places(spec), stored_kinds(folder)
    on_gpu = device.type == "cuda"
    formats = weight_formats.formats(options.quantization, spec, shapes, places, kinds, floating=on_gpu)
    weights_bytes = weight_formats.num_bytes(shapes, formats, dtype.itemsize)
    _check_room(weights_bytes, device, folder)
    if not options.kv_cache_tokens:
        _check_forecast(options, folder, device, dtype, weights_bytes)
    cache_dtype = placement.choose_cache_dtype(
        options.kv_cache_dtype, dtype, device, head_dim=spec.head_dim, capability=placement.capability(device)
    )
    with torch.inference_mode():
        tensors = load(
            folder, places, shapes, dtype, device, _loading_progress(on_progress, start), formats, ops.quantize
        )
        model = Decoder(spec, ops, tensors, num_positions=limit)
    if device.type == "cpu":
        host_resources.return_memory()  # buffers of the checkpoint, and weights that were packed since
    loaded = time.monotonic()
    on_progress(Progress(phase="warming", progress_fraction=0.0))
    facts = replace(
        _facts(options, spec, ops, device, dtype, cache_dtype),
        max_model_len=limit,
        eos_token_ids=read_eos_token_ids(folder, config),
        weights_bytes=weights_bytes,
        quantization=weight_formats.described(formats),
        load_s=loaded - start,
    )
    if new_capturer is None and device.type == "cuda":
        new_capturer = partial(CudaGraphCapturer, device)
    new_capturer = new_capturer if options.cuda_graphs else None
    new_runner = partial(
        assemble, model, ops, device=device, dtype=cache_dtype, device_stream=device_stream, new_capturer=new_capturer
    )
    key = startup_cache_key.key(options, folder, ops, device)
    runner = _with_kv_cache(new_runner, facts, options, limit, device, key, grammars_of(folder, facts))
    runner.facts = replace(runner.facts, warm_s=time.monotonic() - loaded)
    return runner


def _facts(
    options: ServeOptions,
    spec: DecoderSpec,
    ops: Ops,
    device: torch.device,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
) -> RunnerFacts:
    """Facts that follow from options and model; those that need loading and measuring are left empty."""
    return RunnerFacts(
        device=placement.device_name(device),
        kernels=ops.name,
        fallback=ops.fallback,
        dtype=str(dtype).removeprefix("torch."),
        block_size=options.block_size,
        num_blocks=-(-options.kv_cache_tokens // options.block_size),
        max_model_len=0,
        max_sequences=options.max_sequences,
        max_batch_tokens=options.max_batch_tokens or (8192 if device.type == "cuda" else 512),
        vocab_size=spec.vocab_size,
        eos_token_ids=(),
        weights_bytes=0,
        kv_bytes_per_token=spec.kv_bytes_per_token(cache_dtype.itemsize, kv_quant.scale_bytes(cache_dtype)),
        load_s=0.0,
        warm_s=0.0,
        hidden_size=spec.hidden_size,
        head=spec.head,
        num_labels=spec.num_labels,
    )


def _with_kv_cache(
    new_runner: Callable[..., ModelRunner],
    facts: RunnerFacts,
    options: ServeOptions,
    limit: int,
    device: torch.device,
    key: dict[str, str],
    grammars: GrammarCompiler,
) -> ModelRunner:
    """A runner with the KV cache that memory allows beside a step, measured now or by an earlier start.

    new_runner: `assemble` without sizes. key: under which a start with the same model, options and machine finds what
    this one measures.
    """
    cache = StartupCache(startup_cache.directory(options.startup_cache))

    def sized(found: StepMemory, held: int) -> ModelRunner:
        fitted = _fitted(facts, options, limit, warmup.memory(device, found, held))
        runner = new_runner(fitted, grammars=grammars)
        runner.capture_graphs()
        graph_bytes = max(found.graph_bytes, runner.graph_bytes)
        cache.store(key, msgspec.structs.replace(found, graph_bytes=graph_bytes, num_blocks=fitted.num_blocks))
        return runner

    held, known = warmup.held(device), cache.find(key)
    if known is not None:
        warmup.short(new_runner, facts, device)
        try:
            return sized(known, held)
        except CapacityError:
            cache.drop(key)  # other processes may hold more by now, or the entry is wrong: measure before giving up
    return sized(warmup.measured(new_runner, facts, device), held)


def _fitted(facts: RunnerFacts, options: ServeOptions, limit: int, memory: capacity.MeasuredMemory) -> RunnerFacts:
    """Facts with the blocks that memory allows, and the longest sequence that they hold."""
    if not options.kv_cache_tokens:
        block_bytes = facts.kv_bytes_per_token * facts.block_size
        asked = -(-max(options.max_model_len - 1, 0) // facts.block_size)
        num_blocks = capacity.cache_blocks(memory, options.memory_fraction, block_bytes, asked)
        facts = replace(facts, num_blocks=num_blocks)
    return replace(facts, max_model_len=capacity.fitting_limit(limit, options.max_model_len, facts.capacity_tokens))


def grammars_of(folder: Path, facts: RunnerFacts) -> GrammarCompiler:
    """A compiler of grammars for this model. It loads the vocabulary at the first grammar."""

    def load() -> "Vocabulary":
        from kvasir_runtime.guide import vocabulary

        return vocabulary.load(folder, facts.vocab_size, facts.eos_token_ids)

    return GrammarCompiler(load, facts.eos_token_ids)


def assemble(
    model: Decoder,
    ops: Ops,
    facts: RunnerFacts,
    device: torch.device,
    dtype: torch.dtype,
    grammars: GrammarCompiler | None = None,
    device_stream: DeviceStream | None = None,
    new_capturer: NewCapturer | None = None,
) -> ModelRunner:
    """A runner with a KV cache of dtype and rows, of the sizes in facts. grammars: for requests that are guided.

    device_stream: by default that of the device. new_capturer: None where decode steps are not captured. The cache is
    not initialized: the kernel allocates its pages when they are first written, so an idle pod stays small.
    """
    spec = model.spec
    row = kv_quant.width(spec.head_dim, dtype)
    device_stream = stream_of(device) if device_stream is None else device_stream
    shape = (spec.num_layers, 2, facts.num_blocks + device_stream.overlaps, facts.block_size, spec.num_kv_heads, row)
    try:
        cache = torch.empty(shape, dtype=dtype, device=device)
    except (RuntimeError, MemoryError) as error:
        raise CapacityError(f"a KV cache of {facts.capacity_tokens} tokens does not fit into memory") from error
    rows = _rows(facts, ops, device_stream)
    graphs = None
    if new_capturer is not None and isinstance(rows, DeviceRowState) and facts.head == "vocabulary":
        graphs = DecodeGraphs(
            model=model, ops=ops, cache=cache, rows=rows, stream=device_stream, capturer=new_capturer()
        )
    return ModelRunner(
        model=model,
        ops=ops,
        cache=cache,
        rows=rows,
        stream=device_stream,
        facts=facts,
        grammars=grammars,
        graphs=graphs,
    )


def _rows(facts: RunnerFacts, ops: Ops, device_stream: DeviceStream) -> HostRowState | DeviceRowState:
    """Rows on the host where that is the device. Rows on a device pad steps with the block after those of plans."""
    limits = {
        "max_sequences": facts.max_sequences,
        "max_model_len": facts.max_model_len,
        "block_size": facts.block_size,
    }
    if not device_stream.overlaps:
        return HostRowState(**limits, eos_token_ids=facts.eos_token_ids)
    return DeviceRowState(
        **limits, eos_token_ids=facts.eos_token_ids, null_block=facts.num_blocks, ops=ops, stream=device_stream
    )


def _check_room(weights_bytes: int, device: torch.device, folder: Path) -> None:
    """Reject weights that cannot fit before they are read: on a CPU the kernel would kill the process half way."""
    if device.type == "cpu":
        limit = min(
            host_resources.memory_limit_bytes(),
            host_resources.memory_available_bytes() + host_resources.resident_bytes(),
        )
    else:
        limit = torch.cuda.mem_get_info(device)[0]
    if weights_bytes > limit:
        raise CapacityError(f"{folder}: the weights take {weights_bytes:,} bytes, {limit:,} are there")


def _check_forecast(
    options: ServeOptions, folder: Path, device: torch.device, dtype: torch.dtype, weights_bytes: int
) -> None:
    """Reject by forecast before anything is read, unless it counts more weights than there are."""
    name = str(dtype).removeprefix("torch.")
    try:
        model = forecast.shape(read_document(folder))
    except ValueError:
        return
    if model.weights_bytes(name, options.quantization) > weights_bytes:
        return
    limit = host_resources.memory_limit_bytes() if device.type == "cpu" else torch.cuda.mem_get_info(device)[1]
    capacity.check_forecast(
        model,
        limit_bytes=limit,
        fraction=options.memory_fraction,
        dtype=name,
        asked=options.max_model_len,
        block_size=options.block_size,
        kv_cache_dtype=options.kv_cache_dtype,
        quantization=options.quantization,
    )


def _loading_progress(on_progress: OnProgress, start: float) -> OnRead:
    """Report bytes read as progress, at most every hundredth; the time left is computed from the speed so far."""
    reported = -1

    def on_read(read: int, total: int) -> None:
        nonlocal reported
        fraction = read / total if total else 1.0
        if int(fraction * 100) > reported:
            reported = int(fraction * 100)
            elapsed = time.monotonic() - start
            on_progress(
                Progress(
                    phase="loading", progress_fraction=fraction, eta_s=elapsed * (1 - fraction) / max(fraction, 1e-9)
                )
            )

    return on_read
