"""Runs plans: the forward pass, the draw of the next tokens, the rows in between. The engine calls launch and collect.

Where the device is not the host `launch` only enqueues work, and `collect` waits for the drawn ids alone. On a CPU with
C++ kernels `launch` lets the other cores begin with the forward pass, and `collect` takes part in it: in between this
core serves the clients. Without them, and behind another plan, the whole plan is run by `collect`. So on all, launches
form a queue that is worked off in order.

The draw of guided rows is put off: their masks follow from the token before, which may still be computed when the
forward pass is launched. It is enqueued as soon as that token was collected, in any case before the next plan.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from kvasir_runtime.core.plan import Chunk, Join, StepPlan, StepResults
from kvasir_runtime.guide.compiler import GrammarCompiler
from kvasir_runtime.kernels.decoder_step import ForwardOutput
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.layers.spec import Head
from kvasir_runtime.runner.graphs.decode_graphs import DecodeGraphs, ReplayOutput
from kvasir_runtime.runner.greedy_fast_path import GreedyFastPath, fast_path_of
from kvasir_runtime.runner.pooling import Pooler
from kvasir_runtime.runner.sampling import logprobs
from kvasir_runtime.runner.sampling.grammar_masks import GrammarMaskBatch, GrammarMasks
from kvasir_runtime.runner.sampling.logits_processors import LogitsProcessors
from kvasir_runtime.runner.sampling.logprobs import RequestedLogprobs, StepOutput
from kvasir_runtime.runner.sampling.sampler import Sampler
from kvasir_runtime.runner.state.device_stream import DeviceStream, StreamEvent
from kvasir_runtime.runner.state.row_state import ModelInput, RowState
from kvasir_runtime.step_profiler import StepProfiler
from kvasir_runtime.wire import SamplingConfig

if TYPE_CHECKING:
    from kvasir_runtime.guide.matcher import GrammarMatcher


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerFacts:
    """What is known of a runner once it is built; the engine's banner, limits and `Ready` come from here."""

    device: str
    kernels: str
    dtype: str
    block_size: int
    num_blocks: int
    max_model_len: int
    max_sequences: int
    max_batch_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    weights_bytes: int
    kv_bytes_per_token: int
    load_s: float
    warm_s: float
    hidden_size: int = 0
    head: Head = "vocabulary"
    num_labels: int = 0
    quantization: str = ""
    fallback: str = ""

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.num_blocks * self.block_size


@dataclass(slots=True, kw_only=True)
class LaunchedStep:
    """A plan on its way.

    mask_batch: its masks, if any. begun: its forward pass was when it was launched, where the device is the host;
    forward: takes part in it and goes on behind it, as long as that is to be done. finish: enqueues its draw, while
    that is put off. drawn: in host memory, complete once the device passed the event. final: guides whose samples of
    this plan come to nothing. results: once they were taken; ending: guides that want nothing of what was planned
    without them.
    """

    plan: StepPlan
    mask_batch: GrammarMaskBatch | None = None
    begun: bool = False
    forward: Callable[[], None] | None = None
    finish: Callable[[], None] | None = None
    drawn: StepOutput = field(default_factory=StepOutput)
    event: StreamEvent | None = None
    final: list["GrammarMatcher"] = field(default_factory=list)
    results: StepResults | None = None
    ending: list["GrammarMatcher"] = field(default_factory=list)


class ModelRunner:
    """Owns the device state of one model: weights, cache and rows."""

    def __init__(
        self,
        *,
        model: Decoder,
        ops: Ops,
        cache: Tensor,
        rows: RowState,
        logits_processors: LogitsProcessors,
        stream: DeviceStream,
        facts: RunnerFacts,
        grammars: GrammarCompiler | None = None,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        """cache: (layers, 2, num_blocks, block_size, kv_heads, head_dim), its contents need not be defined.

        grammars: None where no request is guided. graphs: None where every step is launched operation by operation.
        """
        self.facts = facts
        self.grammars = grammars
        self._grammar_masks = None if grammars is None else GrammarMasks(grammars, ops, stream)
        self._model = model
        self._ops = ops
        self._cache = cache
        self._rows = rows
        self._logits_processors = logits_processors
        self._requested_logprobs = RequestedLogprobs()
        self._pooler = Pooler(model.logits, stream)
        self._stream = stream
        self._graphs = graphs
        self._sampler = Sampler(
            model=model,
            ops=ops,
            rows=rows,
            logits_processors=logits_processors,
            requested_logprobs=self._requested_logprobs,
            masks=self._grammar_masks,
            stream=stream,
        )
        self._launched: deque[LaunchedStep] = deque()
        self._early = not stream.overlaps and model.begins(cache)
        self._fast_path = fast_path_of(model, rows, cache, facts.max_batch_tokens)
        self._profiler = StepProfiler()

    @property
    def graph_bytes(self) -> int:
        """Device memory that rows and recorded steps hold beside weights and cache; 0 where rows lie on the host."""
        return self._rows.num_bytes + (0 if self._graphs is None else self._graphs.num_bytes)

    def record(self) -> None:
        """Record the steps that the first requests should not wait for, and say in facts how that went."""
        if self._graphs is None:
            return
        self._graphs.capture_first()
        kernels, fallback = self.facts.kernels, self.facts.fallback
        if self._graphs.failure:
            why = f"steps cannot be recorded as graphs: {self._graphs.failure}"
            fallback = f"{fallback}; {why}" if fallback else why
        else:
            kernels += ", graphs"
        self.facts = replace(self.facts, kernels=kernels, fallback=fallback)

    def use_profiler(self, profiler: StepProfiler) -> None:
        """Report from now on what the time of a step goes into."""
        self._profiler = profiler
        self._model.profile(profiler.wants_parts)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Start a plan; never waits for the device."""
        launched = LaunchedStep(plan=plan)
        if self._stream.overlaps:
            self._finish_all()
            self._begin(launched)
        elif self._early and not self._launched:
            self._begin(launched)
            launched.begun = True
        self._launched.append(launched)
        return launched

    @torch.inference_mode()
    def collect(self, launched: LaunchedStep) -> StepResults:
        """The tokens that a plan drew, once it has run. Plans are collected in the order of their launches."""
        if not self._launched or self._launched[0] is not launched:
            raise ValueError(f"step {launched.plan.step} is not the oldest launched plan")
        try:
            if not (self._stream.overlaps or launched.begun):
                self._begin(launched)
            if launched.forward is not None:
                launched.forward()
            self._finish(launched)
            results = self._take(launched)
        finally:
            self._launched.popleft()
        if self._launched:
            self._finish(self._launched[0])  # its grammars may have waited for these tokens
        return results

    @torch.inference_mode()
    def logits(self, tokens: tuple[int, ...]) -> Tensor:
        """(len(tokens), vocab) float32: what every token of a text says of the next one.

        For measurements while no plan is launched: it takes row 0 and the first blocks, whatever they held.
        """
        blocks = tuple(range(-(-len(tokens) // self.facts.block_size)))
        join = Join(
            row=0,
            request_id="measured",
            tokens=tokens,
            prompt_tokens=len(tokens),
            computed_tokens=0,
            blocks=blocks,
            sampling=SamplingConfig(max_tokens=1),
        )
        self._rows.apply(StepPlan(step=0, joins=(join,)))
        parts = []
        for start in range(0, len(tokens), self.facts.max_batch_tokens):
            count = min(self.facts.max_batch_tokens, len(tokens) - start)
            inputs = self._rows.batch([Chunk(row=0, start=start, num_tokens=count, samples=False)])
            batch = replace(inputs.computed(), logit_rows=None)
            parts.append(self._model.logits_of(self._model.forward(batch, self._cache)).float())
        return torch.cat(parts)

    def _finish_all(self) -> None:
        """Enqueue what is still put off. Only with more than two plans in flight that has to wait for older tokens."""
        for number, launched in enumerate(self._launched):
            if launched.finish is not None:
                for older in islice(self._launched, number):
                    self._take(older)
                self._finish(launched)

    def _finish(self, launched: LaunchedStep) -> None:
        if launched.finish is not None:
            finish, launched.finish = launched.finish, None
            if launched.mask_batch is not None and self._grammar_masks is not None:
                self._grammar_masks.start(launched.mask_batch)
            finish()

    def _take(self, launched: LaunchedStep) -> StepResults:
        """Wait for a plan and tell its tokens to the grammars."""
        if launched.results is None:
            if launched.event is not None:
                launched.event.synchronize()
            launched.results = launched.drawn.results(launched.plan)
            if launched.mask_batch is not None and self._grammar_masks is not None:
                taken = self._grammar_masks.accept(
                    launched.results, launched.mask_batch, self._rows, self._logits_processors
                )
                launched.results, launched.ending = taken
                self._take_back(launched)
        return launched.results

    def _take_back(self, launched: LaunchedStep) -> None:
        """What later plans draw by these guides comes to nothing, in those that began and in those that will."""
        for later in self._launched:
            if launched.ending and later.plan.step > launched.plan.step:
                later.final += launched.ending
                for guide in launched.ending:
                    if later.mask_batch is not None:
                        later.mask_batch.discard(guide)

    def _begin(self, launched: LaunchedStep) -> None:
        """Apply a plan and compute it up to the draw, which follows at once unless a grammar has to be heard."""
        plan = launched.plan
        self._rows.apply(plan)
        self._logits_processors.apply(plan)
        self._requested_logprobs.apply(plan)
        self._pooler.apply(plan)
        if plan.copies:
            pairs = self._stream.upload(np.array([(copy.source, copy.target) for copy in plan.copies]))
            self._ops.copy_blocks(self._cache, pairs[:, 0], pairs[:, 1])
        if not plan.chunks:
            return
        sampled = [chunk for chunk in plan.chunks if chunk.samples]
        if self._grammar_masks is not None:
            self._guide(launched, self._grammar_masks, sampled)
        replayed = self._replayed(launched, sampled)
        if replayed is not None and replayed.ids is not None:
            self._send_back(launched, StepOutput(ids=replayed.ids))
            return
        if replayed is not None and replayed.hidden is not None:
            inputs, output = replayed.inputs, ForwardOutput(hidden=replayed.hidden)
        else:
            greedy = (
                self._early and bool(sampled) and self._sampler.sampling_kind(sampled, launched.mask_batch) == "greedy"
            )
            if greedy and self._fast_path is not None and self._fast_path.begin(plan.chunks):
                self._profiler.lap("batch")
                launched.forward = partial(self._fast_forward, launched, self._fast_path)
                return
            inputs = self._rows.batch(plan.chunks)
            self._profiler.lap("batch")
            if self._early:
                self._model.begin(inputs.computed(), self._cache, greedy=greedy)
                launched.forward = partial(self._forwarded, launched, inputs, sampled)
                return
            output = self._model.forward(inputs.computed(), self._cache)
        self._behind(launched, inputs, output, sampled)

    def _fast_forward(self, launched: LaunchedStep, fast_path_of: GreedyFastPath) -> None:
        """Take part in the whole step, which was begun."""
        launched.forward = None
        launched.results = fast_path_of.finish(launched.plan)
        self._profiler.lap("forward")
        self._profiler.parts(self._model.profiled())

    def _forwarded(self, launched: LaunchedStep, inputs: ModelInput, sampled: list[Chunk]) -> None:
        """Take part in the forward pass that was begun, and go on behind it."""
        launched.forward = None
        self._behind(launched, inputs, self._model.finish(), sampled)

    def _behind(self, launched: LaunchedStep, inputs: ModelInput, output: ForwardOutput, sampled: list[Chunk]) -> None:
        """What follows the forward pass, unless it has to wait for a grammar."""
        self._profiler.lap("forward")
        self._profiler.parts(self._model.profiled())
        if not output.hidden.shape[0]:
            return
        launched.finish = partial(self._draw, launched, inputs, output, sampled)
        if launched.mask_batch is None:
            self._finish(launched)

    def _replayed(self, launched: LaunchedStep, sampled: list[Chunk]) -> ReplayOutput | None:
        """A step by its recording, if there may be one."""
        if self._graphs is None or not sampled:
            return None
        replayed = self._graphs.replay(launched.plan.chunks, self._sampler.sampling_kind(sampled, launched.mask_batch))
        self._profiler.lap("replay")
        return replayed

    def _guide(self, launched: LaunchedStep, masks: GrammarMasks, sampled: list[Chunk]) -> None:
        """Find out whose grammars are asked. Where they heard everything their masks are begun beside the forward."""
        masks.apply(launched.plan)
        launched.mask_batch = masks.batch_of(sampled)
        if launched.mask_batch is None:
            return
        for older in self._launched:
            if older.results is not None:  # taken for the draw between, but whoever planned this has not seen them
                launched.final += older.ending
        for guide in launched.final:
            launched.mask_batch.discard(guide)
        untold = [older.mask_batch for older in self._launched if older is not launched and older.results is None]
        if not any(mask_batch.shares(launched.mask_batch) for mask_batch in untold if mask_batch is not None):
            masks.start(launched.mask_batch)

    def _draw(self, launched: LaunchedStep, inputs: ModelInput, output: ForwardOutput, sampled: list[Chunk]) -> None:
        """All that follows a forward pass, up to copies on their way to the host."""
        chunks, hidden = launched.plan.chunks, output.hidden
        drawn = (
            self._sampler.sample(output.first(len(sampled)), sampled, inputs, launched.mask_batch)
            if sampled
            else StepOutput()
        )
        self._profiler.lap("head+draw")
        owners = self._requested_logprobs.of_prompts(chunks)
        pooled_from = len(sampled) + sum(count for _, count, _ in owners)
        if owners:
            ids, between = self._rows.prompt_logprob_ids(chunks), hidden[len(sampled) : pooled_from]
            drawn = replace(drawn, of_prompt=logprobs.of_prompt(between, ids, self._model.logits, owners))
        if pooled_from < hidden.shape[0]:
            drawn = replace(drawn, pooled=self._pooler.pool(hidden[pooled_from:], chunks))
        self._send_back(launched, drawn)

    def _send_back(self, launched: LaunchedStep, drawn: StepOutput) -> None:
        launched.drawn = drawn.moved_by(self._stream.download)
        launched.event = self._stream.record_event()
