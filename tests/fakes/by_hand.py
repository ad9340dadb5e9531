"""Plans written by hand for a runner, where a test wants shapes that the scheduler would not choose."""

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from kvasir_api.cache_groups import LayerAttention
from kvasir_api.options import Quantization
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan import BlockCopy, Chunk, Grow, Join, StepPlan
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.guide.compiler import GrammarCompiler
from kvasir_runtime.kernels.cpu.ops import CPU
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.layers.spec import parameter_shapes
from kvasir_runtime.models.config import read_config
from kvasir_runtime.models.end_tokens import read_eos_token_ids
from kvasir_runtime.models.registry import family_of
from kvasir_runtime.runner.graphs.capture import GraphCapturer
from kvasir_runtime.runner.kv_offload.file_store import FileStore, open_store
from kvasir_runtime.runner.kv_offload.transfer_thread import TransferThread
from kvasir_runtime.runner.launched_step import LaunchedStep
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.startup.build import assemble
from kvasir_runtime.runner.state.device_stream import DeviceStream
from kvasir_runtime.weights import quant_formats as weight_formats
from kvasir_runtime.weights.loader import load
from kvasir_runtime.wire import EngineFacts, EngineOutput, EngineRequest, SamplingConfig

CPU_DEVICE = torch.device("cpu")
GREEDY = SamplingConfig(temperature=0.0, max_tokens=1)


def runner_of(
    folder: Path,
    *,
    num_blocks: int = 512,
    block_size: int = 8,
    max_sequences: int = 32,
    ops: Ops = CPU,
    device: torch.device = CPU_DEVICE,
    quantization: Quantization = "none",
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    device_stream: DeviceStream | None = None,
    new_capturer: Callable[[], GraphCapturer] | None = None,
    hf_overrides: str = "",
    longest: int = 0,
    attentions: tuple[LayerAttention, ...] | None = None,
    grammars: GrammarCompiler | None = None,
) -> ModelRunner:
    """A runner, by default in float32, without measuring and warming up, and without touching torch's threads.

    num_blocks: for each cache group. attentions: of each layer, in place of the family's.
    """
    config = read_config(folder, hf_overrides)
    family = family_of(config)
    spec = family.spec(config)
    if attentions is not None:
        spec = replace(spec, attentions=attentions)
    block_size = spec.block_size(block_size, dtype.itemsize)
    limit, groups = longest or config.max_position_embeddings, spec.cache_groups
    with torch.inference_mode():
        places, shapes = family.places(spec), parameter_shapes(spec)
        formats = weight_formats.formats(quantization, spec, shapes, places, {})
        tensors = load(folder, places, shapes, dtype, device, lambda read, total: None, formats, ops.quantize)
        model = Decoder(spec, ops, tensors, num_positions=limit)
    facts = EngineFacts(
        device=device.type,
        kernels=ops.name,
        fallback=ops.fallback,
        dtype=str(dtype).removeprefix("torch."),
        block_size=block_size,
        num_blocks=num_blocks * len(groups),
        max_model_len=limit,
        max_sequences=max_sequences,
        max_batch_tokens=4096,
        vocab_size=spec.vocab_size,
        eos_token_ids=read_eos_token_ids(folder, config),
        weights_bytes=0,
        kv_bytes_per_token=spec.kv_bytes_per_token(dtype.itemsize, block_size=block_size),
        hidden_size=spec.hidden_size,
        head=spec.head,
        num_labels=spec.num_labels,
        attentions=tuple(group.attention for group in groups),
    )
    return assemble(model, ops, facts, device, cache_dtype or dtype, grammars, device_stream, new_capturer)


def use_host_file(
    runner: ModelRunner,
    folder: Path,
    num_bytes: int,
    *,
    name: str = "0f" * 16,
    new_store: Callable[[Path, str, int, int], FileStore] = open_store,
) -> None:
    """Give a runner on the CPU a second tier: a file in a folder, which others with the same name share."""
    blocks = runner.blocks
    store = new_store(folder, name, blocks[:, 0].numel(), num_bytes)
    runner.use_host_tier(TransferThread(store, blocks.numpy()))


def scheduler_of(runner: ModelRunner, *, budget: int, prefix_cache: bool = True) -> Scheduler:
    """For all that a runner has, with at most budget tokens a step."""
    facts = runner.facts
    return Scheduler(
        Limits(
            num_blocks=facts.num_blocks,
            block_size=facts.block_size,
            max_batch_tokens=budget,
            max_sequences=facts.max_sequences,
            max_model_len=facts.max_model_len,
            eos_token_ids=facts.eos_token_ids,
            prefix_cache=prefix_cache,
            attentions=facts.attentions,
            host_blocks=facts.host_blocks,
            hash_salt=runner.hash_salt,
        )
    )


def last_outputs(
    runner: ModelRunner, requests: Sequence[EngineRequest], *, budget: int, depth: int = 1
) -> tuple[dict[str, EngineOutput], int]:
    """The last output of each answer by id, and how many joins there were. depth: plans in flight."""
    scheduler = scheduler_of(runner, budget=budget)
    ended: dict[str, EngineOutput] = {}
    flying: deque[LaunchedStep] = deque()
    joins = 0
    for request in requests:
        assert scheduler.submit(request, 0.0) is None
    for now in range(5_000):
        while len(flying) < depth and (plan := scheduler.plan(float(now))) is not None:
            joins += len(plan.joins)
            flying.append(runner.launch(plan))
        if not flying:
            break
        for output in scheduler.commit(runner.collect(flying.popleft()), float(now)):
            ended |= {output.request_id: output} if output.finish_reason else {}
    assert not scheduler.has_work
    assert scheduler.pool.num_pinned == 0
    return ended, joins


@dataclass(slots=True, kw_only=True)
class Stream:
    """One sequence on its way: known tokens, how many of them are computed, the row and blocks it holds.

    columns: for each block_size positions a block of every cache group.
    """

    prompt: tuple[int, ...]
    sampling: SamplingConfig = GREEDY
    min_tokens: int = 0
    answer: list[int] = field(default_factory=list)
    computed: int = 0
    row: int = -1
    columns: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def blocks(self) -> list[int]:
        """All that it holds."""
        return [block for column in self.columns for block in column]

    @property
    def tokens(self) -> tuple[int, ...]:
        """All that is known."""
        return (*self.prompt, *self.answer)


class Hand:
    """Moves streams through a runner with plans of any shape. Blocks are given out scattered or in a row."""

    def __init__(self, runner: ModelRunner, *, scattered: bool = True, seed: int = 0) -> None:
        self._runner = runner
        self._block_size = runner.facts.block_size
        self._groups = len(runner.facts.attentions)
        self._free = list(range(runner.facts.num_blocks))[::-1]
        if scattered:
            random.Random(seed).shuffle(self._free)
        self._rows = list(range(runner.facts.max_sequences))[::-1]
        self._steps: Iterator[int] = itertools.count(1)

    def step(self, moves: Sequence[tuple[Stream, int]], copies: Sequence[BlockCopy] = ()) -> None:
        """One plan: each stream computes so many tokens, and samples when they are its last known ones."""
        joins, grows, chunks, sampling = [], [], [], []
        for stream, num_tokens in moves:
            end = stream.computed + num_tokens
            new = [self.column() for _ in range(-(-end // self._block_size) - len(stream.columns))]
            stream.columns += new
            if stream.row < 0:
                stream.row = self._rows.pop()
                joins.append(self._join(stream))
            elif new:
                grows += [Grow(stream.row, blocks, group) for group, blocks in enumerate(zip(*new, strict=True))]
            samples = end == len(stream.tokens)
            left = max(0, stream.min_tokens - len(stream.answer))
            chunk = Chunk(
                row=stream.row, start=stream.computed, num_tokens=num_tokens, samples=samples, min_tokens_left=left
            )
            chunks.append(chunk)
            stream.computed = end
            if samples:
                sampling.append(stream)
        plan = StepPlan(
            step=next(self._steps), joins=tuple(joins), grows=tuple(grows), copies=tuple(copies), chunks=tuple(chunks)
        )
        results = self._runner.collect(self._runner.launch(plan))
        assert [sampled.row for sampled in results.sampled] == [stream.row for stream in sampling]
        for stream, sampled in zip(sampling, results.sampled, strict=True):
            stream.answer += sampled.tokens

    def run(self, streams: Sequence[Stream], num_tokens: int, *, chunk: int = 1 << 30) -> None:
        """Until every stream has an answer of num_tokens, all together, chunk tokens of each at most in a step."""
        while live := [stream for stream in streams if len(stream.answer) < num_tokens]:
            self.step([(stream, min(chunk, len(stream.tokens) - stream.computed)) for stream in live])

    def column(self) -> tuple[int, ...]:
        """A free block for each cache group."""
        return tuple(self._free.pop() for _ in range(self._groups))

    def preempt(self, stream: Stream) -> None:
        """Take row and blocks away; what was computed has to be computed again."""
        self.release(stream)
        stream.computed = 0

    def release(self, stream: Stream) -> None:
        """The stream has ended: its row and blocks may be used by others."""
        self._rows.append(stream.row)
        self._free += reversed(stream.blocks)
        stream.row, stream.columns = -1, []

    def share(self, stream: Stream, holder: Stream, num_blocks: int) -> None:
        """A prefix hit: the stream starts behind so many full blocks that the holder has computed."""
        stream.columns = holder.columns[:num_blocks]
        stream.computed = num_blocks * self._block_size

    def _join(self, stream: Stream) -> Join:
        return Join(
            row=stream.row,
            request_id=str(id(stream)),
            tokens=stream.tokens,
            prompt_tokens=len(stream.prompt),
            computed_tokens=stream.computed,
            tables=tuple(zip(*stream.columns, strict=True)),
            sampling=stream.sampling,
        )
