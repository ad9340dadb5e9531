"""Builds a runner from options: load the model, measure a step, size the KV cache. Called once by the engine process.

Raises StartError with one line for every problem that the user can solve.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import torch

from kvasir_api import cache_groups, forecast
from kvasir_api.options import ServeOptions
from kvasir_api.speculation import DraftModelSize
from kvasir_runtime import arriving, source
from kvasir_runtime.engine_reports import Progress
from kvasir_runtime.errors import CapacityError, DeviceMemoryError, RankLostError, StartError
from kvasir_runtime.guide.compiler import GrammarCompiler
from kvasir_runtime.kernels.backends import ops_for
from kvasir_runtime.kernels.collectives import CardCollectives
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.layers.ranks import LeadingDecoder
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.end_tokens import read_eos_token_ids
from kvasir_runtime.runner.graphs.capture import CudaGraphCapturer, GraphCapturer
from kvasir_runtime.runner.graphs.led_capture import LedCapturer
from kvasir_runtime.runner.graphs.step_graphs import StepGraphs
from kvasir_runtime.runner.kv_transfer.peer_transfers import PeerTransfers
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.startup import (
    cache_allocation,
    capacity,
    dense_modules,
    draft_head,
    draft_model,
    grammars,
    host_resources,
    host_tier,
    kernel_cache,
    model_parts,
    placement,
    rank_processes,
    startup_cache,
    startup_cache_key,
    warmup,
)
from kvasir_runtime.runner.startup.load_model import LoadedModel, load_model
from kvasir_runtime.runner.startup.startup_cache import StartupCache, StepMemory
from kvasir_runtime.runner.state import state_snapshots
from kvasir_runtime.runner.state.device_state import DeviceRowState
from kvasir_runtime.runner.state.device_stream import CopyStream, CudaCopyStream, DeviceStream, stream_of
from kvasir_runtime.runner.state.host_state import HostRowState
from kvasir_runtime.wire import EngineFacts

OnProgress = Callable[[Progress], None]
NewCapturer = Callable[[], GraphCapturer]
Drafter = draft_model.LoadedDrafter | draft_head.LoadedHeadDrafter


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
    kernel_cache.use(options.startup_cache, startup_cache_key.compiler(device))
    ops = ops or ops_for(device, batch_invariant=options.batch_invariant)
    threads = max(host_resources.num_threads() // options.local_ranks, 1)
    if options.ranks > 1:
        ops = replace(ops, collectives=rank_processes.start(options, device, threads, on_progress))
    try:
        runner = _built(options, device, on_progress, device_stream, new_capturer, ops, threads, weight_copies)
        if ops.collectives is not None:
            ops.collectives.end_start()
        return runner
    except BaseException as error:
        if ops.collectives is not None:
            ops.collectives.abort(_one_line(error))
        # Torch's own type for this is a RuntimeError, CUDA's and Triton's are no other.
        if isinstance(error, RuntimeError) and "out of memory" in str(error):
            raise DeviceMemoryError(f"{_one_line(error)}; {_freed_by(device)}") from error
        raise


def _built(
    options: ServeOptions,
    device: torch.device,
    on_progress: OnProgress,
    device_stream: DeviceStream | None,
    new_capturer: NewCapturer | None,
    ops: Ops,
    threads: int,
    weight_copies: CopyStream | None,
) -> ModelRunner:
    start = time.monotonic()
    if device.type == "cpu":
        host_resources.use(threads, ops)
        host_resources.return_library_pages()  # after the last library was loaded, before weights take their place
    if weight_copies is None and device.type == "cuda":
        weight_copies = CudaCopyStream(device)
    rank_bytes = rank_processes.rank_memory(options, ops.collectives)
    loaded = arriving.loaded(
        source.resolve(options.model),
        lambda folder: load_model(options, folder, device, ops, on_progress, weight_copies, rank_bytes=rank_bytes),
    )
    folder = loaded.folder
    facts = _facts(options, folder, loaded, ops, device)
    if dense := dense_modules.load(arriving.real(folder), facts.hidden_size, device):
        facts = msgspec.structs.replace(facts, hidden_size=len(dense[-1].weight))
    named = draft_model.named(options, facts, device, ops)
    drafter: Drafter | None = draft_head.load(options, named, loaded, facts, device, ops, on_progress)
    if drafter is None and named is not None:
        drafter = draft_model.load(options, named, folder, facts, device, ops, on_progress)
    if device.type == "cpu":
        host_resources.return_memory()  # buffers of the checkpoint, and weights that were packed since
    load_s = time.monotonic() - start
    on_progress(Progress(phase="warming", progress_fraction=0.0))
    facts = msgspec.structs.replace(facts, load_s=load_s)
    if new_capturer is None and device.type == "cuda":
        new_capturer = partial(CudaGraphCapturer, device)
    new_runner = partial(
        assemble,
        loaded.model,
        ops,
        device=device,
        dtype=loaded.cache_dtype,
        device_stream=device_stream,
        new_capturer=new_capturer if options.cuda_graphs and not loaded.through_transformers else None,
    )
    if drafter is not None:
        facts = _with_sizes_of(drafter.loaded, facts)
        new_runner = partial(_with_draft_model, new_runner, drafter)
    key = startup_cache_key.key(options, folder, ops, device, None if drafter is None else drafter.loaded.folder)
    compiler = grammars.compiler(folder, facts, at_once=options.nnodes > 1)
    runner = _with_kv_cache(new_runner, facts, options, device, key, compiler, _other_bytes(loaded, ops))
    runner.pooler.dense = dense
    transfers = host_tier.transfers(options, folder, runner.facts, runner.blocks)
    if transfers is not None:
        runner.use_host_tier(transfers)
    if isinstance(transfers, PeerTransfers):
        runner.peers = transfers
        runner.facts = msgspec.structs.replace(runner.facts, kv_transfer_port=transfers.port)
    runner.facts = msgspec.structs.replace(runner.facts, warm_s=time.monotonic() - start - load_s)
    return runner


def _other_bytes(loaded: LoadedModel, ops: Ops) -> int:
    """How much less another rank may have beside a step than this one."""
    group = ops.collectives
    return loaded.other_bytes + (group.fuller_bytes if isinstance(group, CardCollectives) else 0)


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


def _facts(options: ServeOptions, folder: Path, loaded: LoadedModel, ops: Ops, device: torch.device) -> EngineFacts:
    """Facts that options and model determine; the blocks of the KV cache are 0 where they must be measured."""
    spec, cache_dtype, batch_tokens = loaded.model.spec, loaded.cache_dtype, _batch_tokens(options, loaded, device)
    block_size = model_parts.block_size(options, spec, cache_dtype)
    return EngineFacts(
        device=placement.device_name(device),
        kernels=loaded.kernels(ops),
        fallback=ops.fallback,
        dtype=str(loaded.dtype).removeprefix("torch."),
        block_size=block_size,
        num_blocks=_blocks_of_options(options, loaded, block_size),
        max_model_len=loaded.max_model_len,
        max_sequences=options.max_sequences,
        max_batch_tokens=batch_tokens,
        vocab_size=spec.vocab_size,
        eos_token_ids=read_eos_token_ids(folder, loaded.config),
        weights_bytes=loaded.weights_bytes,
        host_weights_bytes=loaded.host_weights_bytes,
        weights_copy_s=loaded.weights_copy_s,
        kv_bytes_per_token=loaded.token_bytes,
        hidden_size=spec.hidden_size,
        head=spec.head,
        num_labels=spec.num_labels,
        quantization=loaded.quantization,
        work=loaded.work,
        attentions=tuple(group.attention for group in spec.cache_groups),
        rank_sizes=() if ops.collectives is None else loaded.rank_sizes,
        data_ranks=options.data_parallel_size,
    )


def _batch_tokens(options: ServeOptions, loaded: LoadedModel, device: torch.device) -> int:
    """Tokens of the largest step. Raises StartError where it cannot hold what an encoder computes at once."""
    wanted = options.max_batch_tokens or forecast.BATCH_TOKENS["cuda" if device.type == "cuda" else "cpu"]
    if loaded.model.spec.encoder is None:
        return wanted
    if options.max_batch_tokens and wanted < loaded.max_model_len:
        raise StartError(
            f"--max-batch-tokens {wanted} is less than the {loaded.max_model_len} tokens of the longest text, which an"
            " encoder computes in one step: raise it, or lower --max-model-len"
        )
    return max(wanted, loaded.max_model_len)


def _blocks_of_options(options: ServeOptions, loaded: LoadedModel, block_size: int) -> int:
    """Blocks of the KV cache, 0 where memory decides. An encoder's take none, and there are enough of them."""
    spec = loaded.model.spec
    if spec.encoder is not None:
        return cache_groups.places(options.max_sequences, -(-loaded.max_model_len // block_size))
    ranks = options.data_parallel_size
    return -(-options.kv_cache_tokens // (block_size * ranks)) * ranks * len(spec.cache_groups)


def _with_kv_cache(
    new_runner: Callable[..., ModelRunner],
    facts: EngineFacts,
    options: ServeOptions,
    device: torch.device,
    key: dict[str, str],
    grammars: GrammarCompiler,
    other_bytes: int,
) -> ModelRunner:
    """A runner with the KV cache that memory allows beside a step, measured now or by an earlier start.

    new_runner: `assemble` without sizes. key: under which a start with the same model, options and machine finds what
    this one measures. other_bytes: that another process has less than this one beside a step, for its weights or since
    others use its card, which leaves it less room.
    """
    cache = StartupCache(startup_cache.directory(options.startup_cache))

    def sized(found: StepMemory, held: int) -> ModelRunner:
        fitted = fitted_facts(facts, options, warmup.memory(device, found, held, options.local_ranks))
        runner = new_runner(fitted, grammars=grammars)
        runner.capture_graphs()
        graph_bytes = max(found.graph_bytes, runner.graph_bytes)
        cache.store(key, msgspec.structs.replace(found, graph_bytes=graph_bytes, num_blocks=fitted.num_blocks))
        return runner

    held, known = warmup.held(device) + other_bytes, cache.find(key)
    if known is not None:
        warmup.short(new_runner, facts, device)
        try:
            return sized(known, held)
        except (CapacityError, DeviceMemoryError):
            cache.drop(key)  # other processes may hold more by now, or the entry is wrong: measure before giving up
        except RankLostError:
            cache.drop(key)  # by its next start
            raise
    return sized(warmup.measured(new_runner, facts, device), held)


def fitted_facts(facts: EngineFacts, options: ServeOptions, memory: capacity.MeasuredMemory) -> EngineFacts:
    """Facts with the blocks that memory allows, and the longest sequence that they hold."""
    if not facts.num_blocks:
        requested = cache_groups.blocks_of_sequence(
            facts.attentions,
            max(options.max_model_len - 1, 0),
            block_size=facts.block_size,
            chunk_tokens=facts.max_batch_tokens,
        )
        drafter_bytes = facts.drafter.kv_bytes_per_token * facts.block_size // len(facts.attentions)
        block_bytes = facts.block_bytes + drafter_bytes
        kept = state_snapshots.expected_bytes(facts, options)
        memory = replace(memory, graph_bytes=memory.graph_bytes + kept)
        num_blocks = capacity.cache_blocks(memory, options.memory_fraction, block_bytes, requested)
        facts = msgspec.structs.replace(facts, num_blocks=num_blocks * facts.data_ranks)
    longest = capacity.fitting_limit(
        facts.max_model_len, options.max_model_len, facts.max_cached_tokens, facts.data_ranks
    )
    return msgspec.structs.replace(facts, max_model_len=longest)


def _with_sizes_of(drafter: LoadedModel | draft_head.LoadedHead, facts: EngineFacts) -> EngineFacts:
    """With what a drafter takes beside the model: a block of its cache for each of the model's."""
    layouts = cache_allocation.layouts(drafter.model.spec, facts.block_size, drafter.cache_dtype)
    token_bytes = sum(layout.num_bytes for layout in layouts) // facts.block_size
    taken = DraftModelSize(weights_bytes=drafter.weights_bytes, kv_bytes_per_token=token_bytes * len(facts.attentions))
    return msgspec.structs.replace(facts, drafter=taken)


def _with_draft_model(
    new_runner: Callable[..., ModelRunner],
    drafter: Drafter,
    facts: EngineFacts,
    grammars: GrammarCompiler | None = None,
) -> ModelRunner:
    """What new_runner gives, with this drafter."""
    runner, loaded = new_runner(facts, grammars=grammars), drafter.loaded
    groups, device = [range(loaded.model.spec.num_layers)], runner.blocks.device
    cache = _allocated(loaded.model.spec, facts, facts.num_blocks, loaded.cache_dtype, device, groups)
    runner.use_drafter(drafter.plan_drafter(cache))
    return runner


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
    cache = _allocated(spec, facts, facts.num_blocks // facts.data_ranks + device_stream.overlaps, dtype, device)
    rows = _rows(facts, ops, device_stream)
    graphs = None
    if new_capturer is not None and isinstance(rows, DeviceRowState) and facts.head == "vocabulary":
        graphs = StepGraphs(
            model=model,
            ops=ops,
            cache=cache,
            rows=rows,
            stream=device_stream,
            capturer=LedCapturer(new_capturer(), model, cache) if isinstance(model, LeadingDecoder) else new_capturer(),
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


def _allocated(
    spec: DecoderSpec,
    facts: EngineFacts,
    num_blocks: int,
    dtype: torch.dtype,
    device: torch.device,
    groups: Sequence[Sequence[int]] | None = None,
) -> KvCache:
    """`cache_allocation`. Raises StartError where memory does not suffice."""
    try:
        return cache_allocation.allocate_cache(spec, num_blocks, facts.block_size, dtype, device, groups)
    except torch.OutOfMemoryError as error:
        raise DeviceMemoryError(
            f"a KV cache of {facts.capacity_tokens} tokens does not fit beside what others hold"
        ) from error
    except (RuntimeError, MemoryError) as error:
        raise CapacityError(f"a KV cache of {facts.capacity_tokens} tokens does not fit into memory") from error


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
