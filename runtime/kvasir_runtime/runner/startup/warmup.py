"""The first steps of a runner: the largest one to measure its memory, or a short one where that is known.

Called by `build` with a runner on a cache of its own. Both also load what the first request would wait for.
"""

import gc
from collections.abc import Callable

import msgspec
import torch

from kvasir_api import forecast
from kvasir_runtime.core.plan import Chunk, Join, StepPlan
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.startup import host_resources
from kvasir_runtime.runner.startup.capacity import MeasuredMemory
from kvasir_runtime.runner.startup.startup_cache import StepMemory
from kvasir_runtime.wire import EngineFacts, PoolingConfig, SamplingConfig

SHORT_TOKENS = 32
OTHER_CHUNKS = (2, 5, 9, 17, 40, 100, 300, 1500)
"""Tokens of further chunks on CUDA, where launchers choose a variant of a kernel by their number: else the first
request of each length would wait for the compiler or its cache."""

Scratch = Callable[[EngineFacts], ModelRunner]
"""A new runner of the sizes in facts, with a cache of its own."""


def measured(scratch: Scratch, facts: EngineFacts, device: torch.device) -> StepMemory:
    """What the largest step takes temporarily, and captured graphs permanently."""
    runner, plans = _prepared(scratch, facts, min(facts.max_batch_tokens, facts.max_model_len), device)
    _reset_peak(device)
    before = held(device)
    _run(runner, plans)
    peak = _peak(device) - before
    del runner
    _release_cached(device)
    return StepMemory(peak_bytes=max(0, peak), graph_bytes=_graph_bytes(scratch, facts, device))


def _graph_bytes(scratch: Scratch, facts: EngineFacts, device: torch.device) -> int:
    """What graphs of all sizes and rows of full size hold; they read only padding of the cache."""
    runner = scratch(msgspec.structs.replace(facts, num_blocks=facts.data_ranks))
    runner.capture_graphs()
    graph_bytes = runner.graph_bytes
    del runner
    _release_cached(device)
    return graph_bytes


def short(scratch: Scratch, facts: EngineFacts, device: torch.device) -> None:
    """Compute a few tokens: this loads kernels, and a model that cannot compute fails before it is ready."""
    runner, plans = _prepared(scratch, facts, min(SHORT_TOKENS, facts.max_batch_tokens, facts.max_model_len), device)
    _run(runner, plans)
    del runner
    _release_cached(device)


def held(device: torch.device) -> int:
    """Bytes that this process holds: all its memory on a CPU, torch's tensors on CUDA."""
    return host_resources.resident_bytes() if device.type == "cpu" else int(torch.cuda.memory_allocated(device))


def memory(device: torch.device, found: StepMemory, held_bytes: int, ranks: int = 1) -> MeasuredMemory:
    """Memory that is held and free now, with what was measured, perhaps by another start.

    held_bytes: before the first steps. On a CPU the process keeps what they freed, which must not count twice.
    ranks: processes like this one that share a CPU's memory; this one's share of it is given.
    """
    if device.type == "cpu":
        return MeasuredMemory(
            limit_bytes=host_resources.memory_limit_bytes() // ranks,
            used_bytes=held_bytes,
            available_bytes=host_resources.memory_available_bytes() // ranks,
            peak_bytes=found.peak_bytes,
            graph_bytes=found.graph_bytes,
            shared=host_resources.memory_is_shared(),
        )
    free, total = torch.cuda.mem_get_info(device)
    own = int(torch.cuda.memory_reserved(device)) + forecast.PROCESS_BYTES["cuda"]
    return MeasuredMemory(
        limit_bytes=total,
        used_bytes=total - free,
        available_bytes=free,
        peak_bytes=found.peak_bytes,
        graph_bytes=found.graph_bytes,
        others_bytes=max(0, total - free - own),
    )


def _prepared(
    scratch: Scratch, facts: EngineFacts, num_tokens: int, device: torch.device
) -> tuple[ModelRunner, tuple[StepPlan, ...]]:
    columns, groups = -(-num_tokens // facts.block_size), len(facts.attentions)
    num_blocks = columns * groups * facts.data_ranks  # of which the first rank computes with its own
    runner = scratch(msgspec.structs.replace(facts, num_blocks=num_blocks, max_sequences=1, max_model_len=num_tokens))
    others = OTHER_CHUNKS if device.type == "cuda" else ()
    tables = tuple(tuple(range(group * columns, (group + 1) * columns)) for group in range(groups))
    return runner, plans_of(num_tokens, tables, others, generates=facts.head == "vocabulary")


def _run(runner: ModelRunner, plans: tuple[StepPlan, ...]) -> None:
    for plan in plans:
        runner.collect(runner.launch(plan))


def _reset_peak(device: torch.device) -> None:
    if device.type == "cpu":
        host_resources.reset_peak()
    else:
        torch.cuda.reset_peak_memory_stats(device)


def _peak(device: torch.device) -> int:
    return (
        host_resources.peak_resident_bytes() if device.type == "cpu" else int(torch.cuda.max_memory_allocated(device))
    )


def _release_cached(device: torch.device) -> None:
    """Release memory that torch keeps for later, or that waits for a collection: the KV cache may take it."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def plans_of(
    num_tokens: int, tables: tuple[tuple[int, ...], ...], others: tuple[int, ...], *, generates: bool
) -> tuple[StepPlan, ...]:
    """A prompt of full length, one token after half of it, and chunks of the other lengths as far as they fit.

    Without a vocabulary the prompt is pooled, and nothing else is computed.
    """
    join = Join(
        row=0,
        request_id="warm-up",
        tokens=(0,) * num_tokens,
        prompt_tokens=num_tokens,
        computed_tokens=0,
        tables=tables,
        sampling=SamplingConfig(max_tokens=1),
        pooling=None if generates else PoolingConfig(kind="mean"),
    )
    if not generates:
        pooled = Chunk(row=0, start=0, num_tokens=num_tokens, samples=False, pools=(0, num_tokens))
        return (StepPlan(step=0, joins=(join,), chunks=(pooled,)),)
    prompt = Chunk(row=0, start=0, num_tokens=num_tokens, samples=True)
    token = Chunk(row=0, start=num_tokens // 2, num_tokens=1, samples=True)
    rest = [Chunk(row=0, start=0, num_tokens=count, samples=True) for count in others if count <= num_tokens]
    further = (StepPlan(step=2 + index, chunks=(chunk,)) for index, chunk in enumerate(rest))
    first = StepPlan(step=0, joins=(join,), chunks=(prompt,), drafter_follows=True)
    return first, StepPlan(step=1, chunks=(token,)), *further
