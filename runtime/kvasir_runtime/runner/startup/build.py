"""Builds a runner from options: load the model, measure a step, size the KV cache. Called once by the engine process.

Raises StartError with one line for every problem that the user can solve.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch

from kvasir_api import cache_groups
from kvasir_api.options import ServeOptions
from kvasir_runtime import source
from kvasir_runtime.errors import CapacityError, DeviceMemoryError
from kvasir_runtime.guide.compiler import GrammarCompiler
from kvasir_runtime.kernels import kv_cache, kv_quant
from kvasir_runtime.kernels.backends import ops_for
from kvasir_runtime.kernels.kv_cache import BlockLayout
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.end_tokens import read_eos_token_ids
from kvasir_runtime.runner.graphs.capture import CudaGraphCapturer, GraphCapturer
from kvasir_runtime.runner.graphs.step_graphs import StepGraphs
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.startup import (
    capacity,
    host_resources,
    host_tier,
    placement,
    startup_cache,
    startup_cache_key,
    warmup,
)
from kvasir_runtime.runner.startup.load_model import LoadedModel, load_model
from kvasir_runtime.runner.startup.startup_cache import StartupCache, StepMemory
from kvasir_runtime.runner.state.device_state import DeviceRowState
from kvasir_runtime.runner.state.device_stream import CopyStream, CudaCopyStream, DeviceStream, stream_of
from kvasir_runtime.runner.state.host_state import HostRowState
from kvasir_runtime.wire import EngineFacts, Progress

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
    weight_copies: CopyStream | None = None,
) -> ModelRunner:
    """A runner that is ready for its first plan. on_progress is called often and must be fast.

    device_stream, ops, weight_copies: by default those of the chosen device. new_capturer: by default CUDA's on CUDA;
    not used where the options turn graphs off.
    """
    device = placement.choose_device(options.device)
    try:
        return _built(options, device, on_progress, device_stream, new_capturer, ops, weight_copies)
    except RuntimeError as error:  # torch's own type for this is one, CUDA's and Triton's are no other
        if "out of memory" not in str(error):
            raise
        raise DeviceMemoryError(f"{_one_line(error)}; {_freed_by(device)}") from error


def _built(
    options: ServeOptions,
    device: torch.device,
    on_progress: OnProgress,
    device_stream: DeviceStream | None,
    new_capturer: NewCapturer | None,
    ops: Ops | None,
    weight_copies: CopyStream | None,
) -> ModelRunner:
    start = time.monotonic()
    folder = source.resolve(options.model)
    ops = ops or ops_for(device, batch_invariant=options.batch_invariant)
    if device.type == "cpu":
        host_resources.use(host_resources.num_threads(), ops)
        host_resources.return_library_pages()  # after the last library was loaded, before weights take their place
    if weight_copies is None and device.type == "cuda":
        weight_copies = CudaCopyStream(device)
    loaded = load_model(options, folder, device, ops, on_progress, weight_copies)
    if device.type == "cpu":
        host_resources.return_memory()  # buffers of the checkpoint, and weights that were packed since
    load_s = time.monotonic() - start
    on_progress(Progress(phase="warming", progress_fraction=0.0))
    facts = _facts(options, folder, loaded, ops, device, load_s)
    if new_capturer is None and device.type == "cuda":
        new_capturer = partial(CudaGraphCapturer, device)
    new_runner = partial(
        assemble,
        loaded.model,
        ops,
        device=device,
        dtype=loaded.cache_dtype,
        device_stream=device_stream,
        new_capturer=new_capturer if options.cuda_graphs else None,
    )
    key = startup_cache_key.key(options, folder, ops, device)
    runner = _with_kv_cache(new_runner, facts, options, device, key, grammars_of(folder, facts))
    transfers = host_tier.transfers(options, folder, runner.facts, runner.blocks)
    if transfers is not None:
        runner.use_host_tier(transfers)
    runner.facts = msgspec.structs.replace(runner.facts, warm_s=time.monotonic() - start - load_s)
    return runner


def _freed_by(device: torch.device) -> str:
    """What may help where memory ran out, with the numbers of a card."""
    advice = "end other programs on the device, or lower --max-batch-tokens, --max-sequences or --memory-fraction"
    if device.type == "cpu":
        return advice
    free, total = torch.cuda.mem_get_info(device)
    held = torch.cuda.memory_reserved(device)
    return f"{free >> 20:,} of {total >> 20:,} MiB are free, this process holds {held >> 20:,}: {advice}"


def _one_line(error: BaseException) -> str:
    """What torch wanted; the rest of its text is advice about its allocator."""
    return ". ".join(" ".join(str(error).split()).split(". ")[:2])


def _facts(
    options: ServeOptions, folder: Path, loaded: LoadedModel, ops: Ops, device: torch.device, load_s: float
) -> EngineFacts:
    """Facts that options and model determine; the blocks of the KV cache are 0 where they must be measured."""
    spec, cache_dtype = loaded.model.spec, loaded.cache_dtype
    row_bytes = cache_dtype.itemsize, kv_quant.scale_bytes(cache_dtype)
    block_size = spec.block_size(options.block_size, *row_bytes)
    return EngineFacts(
        device=placement.device_name(device),
        kernels=ops.name,
        fallback=ops.fallback,
        dtype=str(loaded.dtype).removeprefix("torch."),
        block_size=block_size,
        num_blocks=-(-options.kv_cache_tokens // block_size) * len(spec.cache_groups),
        max_model_len=loaded.max_model_len,
        max_sequences=options.max_sequences,
        max_batch_tokens=options.max_batch_tokens or (8192 if device.type == "cuda" else 512),
        vocab_size=spec.vocab_size,
        eos_token_ids=read_eos_token_ids(folder, loaded.config),
        weights_bytes=loaded.weights_bytes,
        host_weights_bytes=loaded.host_weights_bytes,
        weights_copy_s=loaded.weights_copy_s,
        kv_bytes_per_token=spec.kv_bytes_per_token(*row_bytes, block_size),
        load_s=load_s,
        warm_s=0.0,
        hidden_size=spec.hidden_size,
        head=spec.head,
        num_labels=spec.num_labels,
        quantization=loaded.quantization,
        work=loaded.work,
        attentions=tuple(group.attention for group in spec.cache_groups),
    )


def _with_kv_cache(
    new_runner: Callable[..., ModelRunner],
    facts: EngineFacts,
    options: ServeOptions,
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
        fitted = _fitted(facts, options, warmup.memory(device, found, held))
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
        except (CapacityError, DeviceMemoryError):
            cache.drop(key)  # other processes may hold more by now, or the entry is wrong: measure before giving up
    return sized(warmup.measured(new_runner, facts, device), held)


def _fitted(facts: EngineFacts, options: ServeOptions, memory: capacity.MeasuredMemory) -> EngineFacts:
    """Facts with the blocks that memory allows, and the longest sequence that they hold."""
    if not options.kv_cache_tokens:
        requested = cache_groups.blocks_of_sequence(
            facts.attentions,
            max(options.max_model_len - 1, 0),
            block_size=facts.block_size,
            chunk_tokens=facts.max_batch_tokens,
        )
        num_blocks = capacity.cache_blocks(memory, options.memory_fraction, facts.block_bytes, requested)
        facts = msgspec.structs.replace(facts, num_blocks=num_blocks)
    longest = capacity.fitting_limit(facts.max_model_len, options.max_model_len, facts.max_cached_tokens)
    return msgspec.structs.replace(facts, max_model_len=longest)


def grammars_of(folder: Path, facts: EngineFacts) -> GrammarCompiler:
    """A compiler of grammars for this model. It loads the vocabulary at the first grammar."""

    def load() -> "Vocabulary":
        from kvasir_runtime.guide import vocabulary

        return vocabulary.load(folder, facts.vocab_size, facts.eos_token_ids)

    return GrammarCompiler(load, facts.eos_token_ids)


def assemble(
    model: Decoder,
    ops: Ops,
    facts: EngineFacts,
    device: torch.device,
    dtype: torch.dtype,
    grammars: GrammarCompiler | None = None,
    device_stream: DeviceStream | None = None,
    new_capturer: NewCapturer | None = None,
) -> ModelRunner:
    """A runner with a KV cache of dtype and rows, of the sizes in facts. grammars: for requests that are guided.

    device_stream: by default that of the device. new_capturer: None where steps are not captured. The cache is
    not initialized: the kernel allocates its pages when they are first written, so an idle pod stays small.
    """
    spec = model.spec
    device_stream = stream_of(device) if device_stream is None else device_stream
    try:
        cache = kv_cache.allocate(
            groups=[group.layers for group in spec.cache_groups],
            layouts=_layouts(spec, facts.block_size, dtype),
            num_blocks=facts.num_blocks + device_stream.overlaps,
            block_size=facts.block_size,
            device=device,
        )
    except torch.OutOfMemoryError as error:
        raise DeviceMemoryError(
            f"a KV cache of {facts.capacity_tokens} tokens does not fit beside what others hold"
        ) from error
    except (RuntimeError, MemoryError) as error:
        raise CapacityError(f"a KV cache of {facts.capacity_tokens} tokens does not fit into memory") from error
    rows = _rows(facts, ops, device_stream)
    graphs = None
    if new_capturer is not None and isinstance(rows, DeviceRowState) and facts.head == "vocabulary":
        graphs = StepGraphs(
            model=model,
            ops=ops,
            cache=cache,
            rows=rows,
            stream=device_stream,
            capturer=new_capturer(),
            max_tokens=min(facts.max_batch_tokens, facts.max_model_len),
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


def _layouts(spec: DecoderSpec, block_size: int, dtype: torch.dtype) -> list[BlockLayout]:
    """What a block of the cache holds of each layer. dtype: of keys and values."""
    if spec.latent is not None:
        rows = kv_cache.latents(block_size=block_size, row=kv_quant.width(spec.latent.row, dtype), dtype=dtype)
    else:
        width = kv_quant.width(spec.head_dim, dtype)
        rows = kv_cache.keys_and_values(block_size=block_size, kv_heads=spec.num_kv_heads, row=width, dtype=dtype)
    state = kv_cache.state(block_size=block_size, numbers=spec.state.numbers) if spec.state is not None else rows
    return [state if attention.kind == "state" else rows for attention in spec.attentions]


def _rows(facts: EngineFacts, ops: Ops, device_stream: DeviceStream) -> HostRowState | DeviceRowState:
    """Rows on the host where that is the device. Rows on a device pad steps with the block after those of plans."""
    limits = {
        "max_sequences": facts.max_sequences,
        "max_model_len": facts.max_model_len,
        "block_size": facts.block_size,
        "num_groups": len(facts.attentions),
    }
    if not device_stream.overlaps:
        return HostRowState(**limits, eos_token_ids=facts.eos_token_ids)
    return DeviceRowState(
        **limits, eos_token_ids=facts.eos_token_ids, null_block=facts.num_blocks, ops=ops, stream=device_stream
    )
