"""Plans written by hand for a runner, where a test wants shapes that the scheduler would not choose."""

import itertools
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fakes.rank_decoders import decoder_of_rank, follow_rank
from kvasir_api.cache_groups import LayerAttention
from kvasir_api.eplb import EplbConfig
from kvasir_api.options import Quantization
from kvasir_api.stage_cut import stage_layers
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan import BlockCopy, Chunk, Grow, Join, StepPlan
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.core.speculation.drafters import Drafter
from kvasir_runtime.guide.compiler import GrammarCompiler
from kvasir_runtime.kernels.collectives import Collectives
from kvasir_runtime.kernels.cpu.ops import CPU
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.layers.expert_copies import ExpertCopies
from kvasir_runtime.layers.rank import Rank
from kvasir_runtime.models.config import read_config
from kvasir_runtime.models.end_tokens import read_eos_token_ids
from kvasir_runtime.models.registry import family_of
from kvasir_runtime.runner.draft_model import DraftModel
from kvasir_runtime.runner.graphs.capture import GraphCapturer
from kvasir_runtime.runner.launched_step import LaunchedStep
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.startup.build import assemble
from kvasir_runtime.runner.startup.cache_allocation import allocate_cache
from kvasir_runtime.runner.state.device_stream import DeviceStream
from kvasir_runtime.runner.text_draft_model import TextDraftModel
from kvasir_runtime.runner.vocabulary_pair import VocabularyPair
from kvasir_runtime.wire import EngineFacts, EngineOutput, EngineRequest, Logprobs, SamplingConfig

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
    group: Sequence[Collectives] = (),
    whole_experts: bool = False,
    eplb: tuple[EplbConfig, list[ExpertCopies]] | None = None,
    num_stages: int = 1,
    data_parallel: bool = False,
) -> ModelRunner:
    """A runner, by default in float32, without measuring and warming up, and without touching torch's threads.

    num_blocks: for each cache group. attentions: of each layer, in place of the family's. group: of ranks, each
    of which computes its part; those behind the first do so in threads, until `fakes.ranks.group_of` ends.
    whole_experts, data_parallel: as of `Rank`. eplb: copies of experts, and where those of each rank are listed.
    num_stages: that the ranks form, of about equally many layers.
    """
    config = read_config(folder, hf_overrides)
    whole = family_of(config).spec(config)
    whole = whole if attentions is None else replace(whole, attentions=attentions)
    limit = longest or config.max_position_embeddings

    def of_rank(index: int) -> Decoder:
        own, each = replace(ops, collectives=group[index]) if group else ops, max(len(group), 1) // num_stages
        rank = Rank(index % each, each, whole_experts, "data" if data_parallel else "tensor")
        cut = stage_layers([1] * whole.num_layers, 0, num_stages, whole.joined)
        layers = cut[index // each] if num_stages > 1 else None
        return decoder_of_rank(folder, whole, rank, own, device, quantization, dtype, limit, layers, eplb)

    model, *others = (of_rank(index) for index in range(max(len(group), 1)))
    for decoder, rank in zip(others, group[1:], strict=True):
        threading.Thread(target=follow_rank, args=(decoder, rank), daemon=True).start()
    return runner_with(
        model,
        eos_token_ids=read_eos_token_ids(folder, config),
        limit=limit,
        num_blocks=num_blocks,
        block_size=block_size,
        max_sequences=max_sequences,
        ops=ops,
        device=device,
        dtype=dtype,
        cache_dtype=cache_dtype,
        device_stream=device_stream,
        new_capturer=new_capturer,
        grammars=grammars,
    )


def runner_with(
    model: Decoder,
    *,
    eos_token_ids: tuple[int, ...],
    limit: int,
    num_blocks: int = 512,
    block_size: int = 8,
    max_sequences: int = 32,
    ops: Ops = CPU,
    device: torch.device = CPU_DEVICE,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    device_stream: DeviceStream | None = None,
    new_capturer: Callable[[], GraphCapturer] | None = None,
    grammars: GrammarCompiler | None = None,
) -> ModelRunner:
    """A runner of a model of dtype, as `runner_of` makes it. limit: tokens of the longest sequence."""
    spec, block_size = model.spec, model.spec.block_size(block_size, dtype.itemsize)
    groups = spec.cache_groups
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
        eos_token_ids=eos_token_ids,
        weights_bytes=0,
        kv_bytes_per_token=spec.kv_bytes_per_token(dtype.itemsize, block_size=block_size),
        hidden_size=spec.hidden_size,
        head=spec.head,
        num_labels=spec.num_labels,
        attentions=tuple(group.attention for group in groups),
        data_ranks=spec.rank.count if spec.rank.is_data else 1,
    )
    return assemble(model, ops, facts, device, cache_dtype or dtype, grammars, device_stream, new_capturer)


@torch.inference_mode()
def use_draft_model(
    runner: ModelRunner,
    folder: Path,
    *,
    ops: Ops = CPU,
    dtype: torch.dtype = torch.float32,
    longest: int = 0,
    wrap: Callable[[Decoder], Any] = lambda model: model,
    pair: VocabularyPair | None = None,
) -> Any:
    """Let a model draft for a runner; returns it as it is wrapped. longest: text that it reads, 0 for its own limit.

    pair: of one of another vocabulary.
    """
    config, facts = read_config(folder, ""), runner.facts
    spec, limit = family_of(config).spec(config), longest or config.max_position_embeddings
    drafter = wrap(decoder_of_rank(folder, spec, Rank(), ops, CPU_DEVICE, "none", dtype, limit))
    groups = [range(spec.num_layers)]
    cache = allocate_cache(spec, facts.num_blocks, facts.block_size, dtype, CPU_DEVICE, groups)
    if pair is None:
        runner.use_drafter(partial(DraftModel, drafter, cache, limit))
    else:
        runner.use_drafter(partial(TextDraftModel, drafter, cache, limit, pair))
    return drafter


def captured(runner: ModelRunner) -> ModelRunner:
    """With all its graphs."""
    runner.capture_graphs()
    while runner.has_idle_work:
        runner.do_idle_work()
    return runner


def scheduler_of(
    runner: ModelRunner,
    *,
    budget: int,
    prefix_cache: bool = True,
    speculation: str = "off",
    drafter: Drafter | None = None,
    max_cached_answers: int = 0,
    stages: int = 1,
) -> Scheduler:
    """For all that a runner has, with at most budget tokens a step. stages: as of `Limits`."""
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
            speculation=speculation,
            max_cached_answers=max_cached_answers,
            stages=stages,
            data_ranks=facts.data_ranks,
        ),
        drafter=drafter,
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
    """One sequence on its way: known tokens, how many of them are computed, the row and blocks it holds, logprobs.

    columns: for each block_size positions a block of every cache group.
    """

    prompt: tuple[int, ...]
    sampling: SamplingConfig = GREEDY
    min_tokens: int = 0
    answer: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
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
    """Moves streams through a runner with plans of any shape. Blocks are given out scattered or in a row.

    shares: whether streams may share blocks of every column; of a state only the scheduler knows which.
    """

    def __init__(self, runner: ModelRunner, *, scattered: bool = True, seed: int = 0) -> None:
        self._runner = runner
        self._block_size = runner.facts.block_size
        self._groups = len(runner.facts.attentions)
        self.shares = all(attention.kind != "state" for attention in runner.facts.attentions)
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
            stream.logprobs += sampled.logprobs

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
