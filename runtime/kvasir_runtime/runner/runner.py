"""Runs plans, one step each: prepare, forward, sample. The engine calls launch and collect.

Where the device is not the host, `launch` only enqueues work and `collect` waits for the sampled ids alone. On a CPU
with C++ kernels `launch` starts the forward pass on the other cores and `collect` joins it, so that this core serves
the clients in between. With stages `launch` computes the part of the first. Without these kernels, and behind another
step, `collect` computes the whole step. Either way launches form a queue that is worked off in order.

Sampling of guided rows waits for the token before, on which their masks depend, and is enqueued before the next step.
"""

from collections import deque
from dataclasses import replace
from itertools import islice

import msgspec
import numpy as np
import torch
from torch import Tensor

from kvasir_runtime.core.plan import Chunk, HostChanges, Join, StepPlan, StepResults
from kvasir_runtime.guide.compiler import GrammarCompiler
from kvasir_runtime.kernels.decoder_step import ForwardOutput
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.runner import drafts
from kvasir_runtime.runner.draft_head import HeadDrafter
from kvasir_runtime.runner.fast_path import fast_path_of
from kvasir_runtime.runner.graphs.step_graphs import ReplayedHidden, ReplayedIds, StepGraphs
from kvasir_runtime.runner.kv_offload.interface import BlockTransfers
from kvasir_runtime.runner.kv_transfer.peer_transfers import PeerTransfers
from kvasir_runtime.runner.launched_step import (
    Collected,
    ForwardRunning,
    LaunchedStep,
    Queued,
    Sampled,
    StepState,
    WaitingForGrammar,
)
from kvasir_runtime.runner.pooling import Pooler
from kvasir_runtime.runner.sampling.deferred_samples import DeferredSamples
from kvasir_runtime.runner.sampling.grammar_masks import GrammarMasks
from kvasir_runtime.runner.sampling.host_sampler import host_sampler_of
from kvasir_runtime.runner.sampling.logits_processors import LogitsProcessors
from kvasir_runtime.runner.sampling.logprobs import RequestedLogprobs, of_prompt_tokens
from kvasir_runtime.runner.sampling.sampler import Sampler
from kvasir_runtime.runner.state.device_stream import DeviceStream
from kvasir_runtime.runner.state.host_state import HostRowState
from kvasir_runtime.runner.state.row_state import AppendPositions, RowState
from kvasir_runtime.runner.state.state_snapshots import StateSnapshots
from kvasir_runtime.runner.step_output import StepOutput
from kvasir_runtime.step_profiler import StepProfiler
from kvasir_runtime.wire import EngineFacts, SamplingConfig

TRANSFER_WAIT_S = 0.01
"""How long a plan that computes nothing waits for copies: clients are not served meanwhile."""


class ModelRunner:
    """Owns the device state of one model: weights, cache and rows."""

    def __init__(
        self,
        *,
        model: Decoder,
        ops: Ops,
        cache: KvCache,
        rows: RowState,
        stream: DeviceStream,
        facts: EngineFacts,
        grammars: GrammarCompiler | None = None,
        graphs: StepGraphs | None = None,
    ) -> None:
        """cache: its contents need not be defined.

        grammars: None where no request is guided. graphs: None where every step is launched operation by operation.
        """
        self.grammars = grammars
        self._model, self._cache, self._ops = model, cache, ops
        self._rows, self._stream, self._graphs = rows, stream, graphs
        self._grammar_masks = GrammarMasks(grammars, ops, stream)
        self._deferred_samples = DeferredSamples(stream, facts.attentions)
        self._logits_processors = LogitsProcessors(
            vocab_size=model.spec.vocab_size, eos_token_ids=facts.eos_token_ids, ops=ops, stream=stream
        )
        self._requested_logprobs = RequestedLogprobs()
        self.pooler = Pooler(model.logits, stream)
        self._other_cores = not stream.overlaps and model.begins(cache)
        self._host_sampler = host_sampler_of(ops, rows, facts.eos_token_ids)
        in_cpp, divided = self._host_sampler is not None, model.spec.divided
        no_drafts = drafts.refusal(facts, overlaps=stream.overlaps, in_cpp=in_cpp, divided=divided)
        self.facts = msgspec.structs.replace(facts, no_drafts=no_drafts)
        self._fast_path = fast_path_of(model, rows, self._host_sampler, cache, facts.max_batch_tokens)
        self._sampler = Sampler(
            model=model,
            ops=ops,
            rows=rows,
            logits_processors=self._logits_processors,
            grammar_masks=self._grammar_masks,
            stream=stream,
            host_sampler=self._host_sampler,
        )
        self._in_flight: deque[LaunchedStep] = deque()
        self._profiler = StepProfiler()
        self._state_snapshots = StateSnapshots(cache, rows, facts)
        self._transfers: BlockTransfers | None = None
        self.peers: PeerTransfers | None = None
        self._drafter: drafts.PlanDrafter | None = None

    @property
    def graph_bytes(self) -> int:
        """Device memory of rows, and of graphs once all are captured; 0 where rows are on the host."""
        return self._rows.num_bytes + (0 if self._graphs is None else self._graphs.expected_bytes)

    @property
    def blocks(self) -> Tensor:
        """(pieces, num_blocks, piece_bytes) uint8: the memory of the KV cache. A block is its pieces in all layers."""
        return self._cache.blocks.unsqueeze(0)

    @property
    def hash_salt(self) -> bytes:
        """Secret from which hashes of blocks begin; empty where the host keeps no blocks."""
        return b"" if self._transfers is None else self._transfers.hash_salt

    def use_host_tier(self, transfers: BlockTransfers) -> None:
        """From now on, copy blocks to and from the host as plans say."""
        self._transfers = transfers
        self.facts = msgspec.structs.replace(self.facts, host_blocks=transfers.num_slots)

    def use_drafter(self, new_drafter: drafts.NewPlanDrafter) -> None:
        """From now on, what this makes drafts where plans have drafts. Only where drafts can be verified."""
        assert isinstance(self._rows, HostRowState)
        assert self._host_sampler is not None
        self._drafter = new_drafter(self._rows, self._host_sampler, self.facts)

    def host_changes(self) -> HostChanges | None:
        """What the host holds and did not at the last call, and the reverse; None for no difference."""
        return None if self._transfers is None else self._transfers.changes()

    def forget_host(self) -> None:
        """Erase what the host holds."""
        if self._transfers is not None:
            self._transfers.forget()

    def capture_graphs(self) -> None:
        """Capture the steps that the first requests should not wait for, and report in facts how that went."""
        if self._graphs is None:
            return
        self._graphs.capture_first()
        kernels, fallback = self.facts.kernels, self.facts.fallback
        if self._graphs.failure:
            why = f"steps cannot be captured as CUDA graphs: {self._graphs.failure}"
            fallback = f"{fallback}; {why}" if fallback else why
        else:
            kernels += ", graphs"
        self.facts = msgspec.structs.replace(self.facts, kernels=kernels, fallback=fallback)

    @property
    def failure(self) -> str:
        """Why no step can be computed any more; "" while they can."""
        return self._model.failure

    @property
    def has_idle_work(self) -> bool:
        """Whether there are graphs to be captured."""
        return self._graphs is not None and self._graphs.has_more

    def do_idle_work(self) -> None:
        """Capture one of them, while nothing is launched."""
        if self._graphs is not None:
            self._graphs.capture_next()

    def use_profiler(self, profiler: StepProfiler) -> None:
        """From now on, report what the time of a step is spent on."""
        self._profiler = profiler
        self._model.profile(profiler.wants_parts)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Start a plan; never waits for the device. The first of several stages computes its part."""
        if self._transfers is not None:
            self._transfers.submit(plan)
        step = LaunchedStep(plan)
        if self._stream.overlaps:
            self._sample_waiting()
            step.state = self._start(step)
        elif self._other_cores and (self._model.spec.stage is not None or not self._in_flight):
            step.state = self._start(step)
        self._in_flight.append(step)
        return step

    @torch.inference_mode()
    def collect(self, step: LaunchedStep) -> StepResults:
        """The tokens that a step sampled, once it has run. Steps are collected in the order of their launches."""
        if not self._in_flight or self._in_flight[0] is not step:
            raise ValueError(f"step {step.plan.step} is not the oldest launched plan")
        try:
            if isinstance(step.state, Queued):
                step.state = self._start(step)
            if isinstance(step.state, ForwardRunning):
                step.state = self._join_forward(step, step.state)
            if isinstance(step.state, WaitingForGrammar):
                step.state = self._sample_guided(step, step.state)
            if isinstance(step.state, Sampled):
                step.state = self._read_output(step, step.state)
        finally:
            self._in_flight.popleft()
        if self._in_flight:
            oldest = self._in_flight[0]  # its grammars may have waited for these tokens
            if isinstance(oldest.state, WaitingForGrammar):
                oldest.state = self._sample_guided(oldest, oldest.state)
        assert isinstance(step.state, Collected)
        results = drafts.with_undrafted(step.state.results, step.undrafted)
        if self._transfers is None:
            return results
        idle = not step.plan.chunks and not self._in_flight
        done = self._transfers.completed(TRANSFER_WAIT_S if idle else 0.0)
        return msgspec.structs.replace(results, transfers=done)

    @torch.inference_mode()
    def logits(self, tokens: tuple[int, ...]) -> Tensor:
        """(len(tokens), vocab) float32: the logits that follow each token of a text.

        For measurements while no plan is launched: row 0 and the first blocks are overwritten.
        """
        columns, groups = -(-len(tokens) // self.facts.block_size), self._cache.num_groups
        join = Join(
            row=0,
            request_id="measured",
            tokens=tokens,
            prompt_tokens=len(tokens),
            computed_tokens=0,
            tables=tuple(tuple(range(group * columns, (group + 1) * columns)) for group in range(groups)),
            sampling=SamplingConfig(max_tokens=1),
        )
        self._rows.apply(StepPlan(step=0, joins=(join,)))
        parts = []
        for start in range(0, len(tokens), self.facts.max_batch_tokens):
            count = min(self.facts.max_batch_tokens, len(tokens) - start)
            made = self._rows.model_input([Chunk(row=0, start=start, num_tokens=count, samples=False)])
            batch = replace(made.batch, logit_rows=None)
            parts.append(self._model.logits_of(self._model.forward(batch, self._cache)).float())
        return torch.cat(parts)

    def _start(self, step: LaunchedStep) -> StepState:
        self._prepare(step)
        return self._forward(step)

    def _prepare(self, step: LaunchedStep) -> None:
        """Apply the plan: rows, sampling parameters of requests, copied blocks; and start the masks that can be."""
        plan = step.plan
        self._rows.apply(plan)
        (self._host_sampler or self._logits_processors).apply(plan)
        if self._drafter is not None:
            step.use(*self._drafter.draft(plan))
            self._profiler.lap("draft")
        self._state_snapshots.keep(step.plan.chunks)
        sampling = step.sampling
        self._requested_logprobs.apply(plan)
        self.pooler.apply(plan)
        self._grammar_masks.apply(plan)
        self._deferred_samples.apply(plan)
        if plan.copies:
            pairs = self._stream.upload(np.array([(copy.source, copy.target) for copy in plan.copies]))
            self._model.copy_blocks(self._cache, pairs[:, 0], pairs[:, 1])
        sampling.masks = self._grammar_masks.batch_of(step.plan.chunks)  # with what was drafted
        if sampling.masks is not None:
            self._prepare_masks(step)
        sampling.owners = self._requested_logprobs.of_samples(sampling.chunks)
        sampling.kind = self._sampler.kind(sampling)

    def _prepare_masks(self, step: LaunchedStep) -> None:
        """Start the masks beside the forward pass, unless a matcher must accept a token of an older step first."""
        masks = step.sampling.masks
        assert masks is not None
        for older in self._in_flight:
            if isinstance(older.state, Collected):  # by `_sample_waiting`; the engine has not seen it
                step.drop(older.state.ended)
            if older.sampling.masks is not None:
                step.drop(older.sampling.masks.deferred_matchers)
        masks.drop(step.dropped)
        pending = (
            older.sampling.masks
            for older in self._in_flight
            if older is not step and not isinstance(older.state, Collected)
        )
        if not any(older.shares_matcher(masks) for older in pending if older is not None):
            self._grammar_masks.start(masks)

    def _forward(self, step: LaunchedStep) -> StepState:
        """Compute or start the forward pass: as a captured graph, on the other cores, or operation by operation."""
        chunks, sampling = self._deferred_samples.to_compute(step.plan.chunks), step.sampling
        if not chunks:
            return self._after_forward(step, None, None)
        if self._graphs is not None:
            replayed = self._graphs.replay(chunks, sampling.kind)
            self._profiler.lap("replay")
            if isinstance(replayed, ReplayedIds):
                return self._send_to_host(StepOutput(token_ids=replayed.ids))
            if isinstance(replayed, ReplayedHidden):
                return self._after_forward(step, ForwardOutput(hidden=replayed.hidden), replayed.positions)
        fast_path = self._fast_path if sampling.chunks and chunks is step.plan.chunks else None
        if self._other_cores and fast_path is not None and fast_path.begin(chunks, sampling):
            self._profiler.lap("batch")
            return ForwardRunning(fast_path=True)
        made = self._rows.model_input(chunks)
        self._profiler.lap("batch")
        if self._other_cores:
            self._model.begin(made.batch, self._cache, greedy=bool(sampling.chunks) and sampling.kind == "greedy")
            return ForwardRunning(fast_path=False)
        output = self._model.forward(made.batch, self._cache)
        if output.features is not None and isinstance(self._drafter, HeadDrafter):
            self._drafter.saw(chunks, output.features)
        return self._after_forward(step, output, made.positions)

    def _join_forward(self, step: LaunchedStep, state: ForwardRunning) -> StepState:
        """Take part in the forward pass that the other cores started."""
        if not state.fast_path:
            return self._after_forward(step, self._model.finish(), None)
        assert self._fast_path is not None
        output = self._fast_path.finish()
        self._lap_forward()
        return WaitingForGrammar(output, None) if isinstance(output, ForwardOutput) else self._send_to_host(output)

    def _after_forward(
        self, step: LaunchedStep, forward: ForwardOutput | None, positions: AppendPositions | None
    ) -> StepState:
        """forward: None where nothing was computed."""
        self._lap_forward()
        if step.sampling.masks is not None:
            return WaitingForGrammar(*self._deferred_samples.completed(step.sampling.chunks, forward, positions))
        if forward is None or not forward.hidden.shape[0]:
            return self._send_to_host(StepOutput())
        return self._sample(step, forward, positions)

    def _sample_waiting(self) -> None:
        """Enqueue all deferred sampling, since the device runs in the order of the launches.

        Only with more than two steps in flight does that wait for the tokens of older ones.
        """
        for number, step in enumerate(self._in_flight):
            if isinstance(step.state, WaitingForGrammar):
                for older in islice(self._in_flight, number):
                    if isinstance(older.state, Sampled):
                        older.state = self._read_output(older, older.state)
                step.state = self._sample_guided(step, step.state)

    def _sample_guided(self, step: LaunchedStep, state: WaitingForGrammar) -> Sampled:
        """Sample a step of which the grammars have accepted all earlier tokens."""
        masks = step.sampling.masks
        assert masks is not None
        self._grammar_masks.start(masks)
        late = self._grammar_masks.defer_late(masks, others=len(step.plan.chunks) > masks.num_rows)
        self._deferred_samples.keep(masks, state.forward)
        for later in self._in_flight:
            if later.plan.step > step.plan.step:
                later.drop(late)
        return self._sample(step, state.forward, state.positions)

    def _sample(self, step: LaunchedStep, forward: ForwardOutput, positions: AppendPositions | None) -> Sampled:
        """Sample, score and pool, up to the copies on their way to the host."""
        chunks, num_samples, hidden = step.plan.chunks, len(step.sampling.chunks), forward.hidden
        output = StepOutput()
        if num_samples:
            ids, reported = self._sampler.sample(forward.first(num_samples), step.sampling, positions)
            output = StepOutput(token_ids=ids, logprobs=reported)
        self._profiler.lap("head+draw")
        owners = self._requested_logprobs.of_prompts(chunks)
        first_pooled = num_samples + sum(owner.num_rows for owner in owners)
        if owners:
            ids, scored = self._rows.prompt_logprob_ids(chunks), hidden[num_samples:first_pooled]
            output.prompt_logprobs = of_prompt_tokens(self._ops.logprobs, scored, ids, self._model.logits, owners)
        if first_pooled < hidden.shape[0]:
            output.pooled = self.pooler.pool(hidden[first_pooled:], chunks)
        return self._send_to_host(output)

    def _send_to_host(self, output: StepOutput) -> Sampled:
        """Every step ends with an event, also one without outputs: without it `collect` would return before the device
        has computed the step, and the engine would launch ahead of the device without bound.
        """
        return Sampled(output.moved(self._stream.download), self._stream.record_event())

    def _read_output(self, step: LaunchedStep, state: Sampled) -> Collected:
        """Wait for the device, advance the grammars by the sampled tokens, and verify drafts."""
        state.event.synchronize()
        found = Collected(state.output.results(step.plan.step, step.sampling.chunks))
        if (masks := step.sampling.masks) is not None:
            found = Collected(*self._grammar_masks.accept(found.results, masks, self._rows, self._logits_processors))
        found.results = drafts.verified_results(step.plan.chunks, found.results)
        self._state_snapshots.take_back(step.plan.chunks, found.results.sampled)
        for later in self._in_flight:
            if later.plan.step > step.plan.step:
                later.drop(found.ended)
        return found

    def _lap_forward(self) -> None:
        self._profiler.lap("forward")
        self._profiler.parts(self._model.profiled())
