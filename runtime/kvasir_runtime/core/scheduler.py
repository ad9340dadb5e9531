"""What the engine computes next: one rule under a token budget, running sequences first, then arrivals in order.

Called by the engine's loop and by the replay. It knows neither clock nor device: time is given, plans and results are
plain data, and the same calls in the same order give the same plans. Up to any number of plans may be launched before
the first is collected; lengths are projected, and what a launched plan names is not reused before it is collected.
"""

from collections import deque

from kvasir_api.hashes import block_root, extend_block_hashes
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.beam_group import BeamGroup, new_beam_group
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.counters import Counters
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.outputs import event_of, prompt_events
from kvasir_runtime.core.pending_prefixes import PendingPrefixes
from kvasir_runtime.core.plan import Grow, Join, SampledTokens, StepPlan, StepResults
from kvasir_runtime.core.plan_builder import LaunchedChunk, PlanBuilder, check_results
from kvasir_runtime.core.prefix_digest import PrefixDigest
from kvasir_runtime.core.sequence import SequenceState, ending, new_sequence, refusal
from kvasir_runtime.core.state_report import filled
from kvasir_runtime.core.throughput import Throughput
from kvasir_runtime.core.token_budget import TokenBudget
from kvasir_runtime.core.waiting_queue import WaitingQueue, uncached_estimate
from kvasir_runtime.wire import EngineOutput, EngineRequest, FinishReason, Logprobs


class Scheduler:
    """Owns every request between submit() and its last event, every block and every row.

    Order of calls: submit and abort at any time; plan() gives the next step or None; commit() takes the results of
    the oldest launched plan.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.pool = BlockPool(limits.num_blocks)
        self.speed = Throughput()
        self._counters = Counters()
        self._digest = PrefixDigest()
        self._eos = frozenset(limits.eos_token_ids)
        self._sequences: dict[str, SequenceState] = {}
        self._waiting = WaitingQueue()
        self._promises = PendingPrefixes()
        self._running: dict[str, SequenceState] = {}
        # No more rows than tokens in a step, so that everybody who runs moves in every step.
        self._num_rows = min(limits.max_sequences, limits.max_batch_tokens)
        self._rows = list(range(self._num_rows - 1, -1, -1))
        self._leaves: list[int] = []
        self._launched: deque[tuple[StepPlan, list[LaunchedChunk]]] = deque()
        self._pace = TokenBudget(target_s=limits.target_step_s, max_tokens=limits.max_batch_tokens)
        self._step = self._collected = 0

    @property
    def has_work(self) -> bool:
        """Whether some request has not ended."""
        return bool(self._sequences)

    @property
    def num_launched(self) -> int:
        """Plans given out and not committed."""
        return len(self._launched)

    def submit(self, request: EngineRequest, now: float) -> EngineOutput | None:
        """Queue a request. An event is the refusal of one that can never run; then nothing was queued."""
        limit = self.limits.longest(request)
        why = refusal(request, limit, self._num_rows)
        if not why and request.request_id in self._sequences:
            why = f"a request with the id {request.request_id} has not ended yet"
        if why:
            return EngineOutput(request_id=request.request_id, finish_reason="error", message=why)
        root = block_root(salt=request.salt)
        sequence = new_sequence(request, root=root, limit=limit, eos=self._eos, now=now)
        if request.beam is not None:
            sequence.beams = new_beam_group(sequence)
        self._extend_hashes(sequence)
        sequence.uncached_estimate = len(sequence.tokens) - len(self._hits(sequence)) * self.limits.block_size
        self._sequences[request.request_id] = sequence
        self._waiting.append(sequence)
        self._counters.arrived(sequence)
        return None

    def abort(self, request_id: str, now: float, *, success: bool = False) -> None:
        """End a request at once, without an event; unknown ids are ignored, since it may just have ended.

        success: a stop string ended it, so it counts as completed.
        """
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._end(sequence, now, aborted=not success)

    def inject(self, request_id: str, token_ids: tuple[int, ...]) -> None:
        """Hand ids to a request, which come behind its tokens as soon as none is in flight; unknown ids are ignored."""
        sequence = self._sequences.get(request_id)
        if sequence is not None and sequence.beams is None and sequence.request.pooling is None:
            sequence.pending_inject += token_ids

    def plan(self, now: float) -> StepPlan | None:
        """The next step; None when nothing can be computed before a launched plan is collected, or at all."""
        draft = PlanBuilder(step=self._step + 1, budget=self._pace.budget(self._running.values()))
        self._continue_running(draft, now)
        if not draft.preempted and not draft.short:
            self._admit(draft, now)
        if not draft.chunks:
            return None
        plan = draft.plan(self._leaves)
        self._leaves = []
        self._step = draft.step
        self._pace.begin(now)
        self._launched.append((plan, draft.entries))
        return plan

    def commit(self, results: StepResults, now: float) -> tuple[EngineOutput, ...]:
        """Take in the results of the oldest launched plan: append, publish full blocks, end, free.

        Raises ValueError when the results are not those of that plan.
        """
        plan, entries = self._launched[0] if self._launched else (None, [])
        if plan is None or plan.step != results.step:
            raise ValueError(f"results of step {results.step}, expected those of {plan.step if plan else 'none'}")
        check_results(plan, entries, results)
        self._launched.popleft()
        self._collected = plan.step
        self._pace.end(plan.num_tokens, now)
        sampled, scored, pooled = iter(results.sampled), iter(results.scored), iter(results.pooled)
        events: list[EngineOutput] = []
        for entry in entries:
            scores = next(scored) if entry.scores else ()
            events += self._take_in(entry, next(sampled) if entry.samples else None, scores, now)
            if entry.pools:
                events += self._pool(entry, next(pooled), now)
        self.pool.settle(plan.step)
        return tuple(events)

    def fail_running(self, message: str, now: float) -> tuple[EngineOutput, ...]:
        """A step failed: end everybody who has a row, forget every launched plan, go on with those who wait.

        Blocks that were published before stay valid, since they were computed by steps that succeeded.
        """
        self._launched.clear()
        self._pace.forget()
        self._collected = self._step
        self.pool.settle(self._step)
        events = []
        for sequence in list(self._sequences.values()):
            sequence.in_flight, sequence.discarded_samples, sequence.scored = 0, 0, sequence.reported
            if sequence.phase == "running":
                self._end(sequence, now, aborted=False)
                events.append(event_of(sequence, finish_reason="error", message=message))
        return tuple(events)

    def report(self, state: RuntimeState) -> RuntimeState:
        """The given document with everything filled in that the scheduler knows. Cost does not grow with the queue."""
        self._waiting.refresh(self.pool, self.limits.block_size)
        return filled(
            state,
            step=self._step,
            limits=self.limits,
            pool=self.pool,
            waiting=self._waiting,
            running=self._running.values(),
            totals=self._counters.totals,
            speed=self.speed,
            prefix_digest=self._digest.published(self.pool),
        )

    def _continue_running(self, draft: PlanBuilder, now: float) -> None:
        """Let computed chase known for everybody who has a row, earliest arrival first."""
        for sequence in list(self._running.values()):
            if sequence.beams is not None and (sequence.beams.forked or sequence.in_flight):
                self._continue_beams(draft, sequence, sequence.beams, now)
                continue
            sequence.insert(self.limits.longest(sequence.request))
            count = min(sequence.known - sequence.computed, draft.budget)
            # At its limit it ends when its last sample is collected, and the last token is never computed.
            if count < 1 or sequence.phase != "running" or sequence.known >= sequence.limit or sequence.deferred:
                continue
            need = self.limits.blocks_for(sequence.computed + count) - len(sequence.blocks)
            if need > 0:
                if draft.short or not self._make_room(draft, sequence, need, now):
                    draft.short = True
                    continue
                blocks = self.pool.take(need)
                sequence.blocks += blocks
                sequence.bill(sequence.billed_blocks + need, now)
                draft.grows.append(Grow(sequence.row, tuple(blocks)))
            draft.add(sequence, count)

    def _continue_beams(self, draft: PlanBuilder, head: SequenceState, beams: BeamGroup, now: float) -> None:
        """The beams of a request fork and move together, or wait together."""
        counts = beams.counts(draft.budget)
        if not any(counts):
            return
        need = beams.need(counts, self.limits)
        if need and (draft.short or not self._make_room(draft, head, need, now)):
            draft.short = True
            return
        head.bill(head.billed_blocks + need, now)
        beams.move(draft, counts, self.pool.take(need), self.limits)

    def _make_room(self, draft: PlanBuilder, sequence: SequenceState, need: int, now: float) -> bool:
        """Preempt the latest arrivals until need blocks can be taken; False if the sequence itself has to wait."""
        while not self.pool.can_take(need):
            victim = next(reversed(self._running.values()))
            # What a launched plan still names, or its collection will end, comes free without preempting anybody.
            if self.pool.num_leaving or victim.known >= victim.limit:
                return False
            self._preempt(victim, now)
            draft.preempted = True
            if victim is sequence:
                return False
        return True

    def _admit(self, draft: PlanBuilder, now: float) -> None:
        """Give rows to those who wait, in order of arrival, while budget, rows and blocks permit."""
        while draft.budget and self._rows and len(self._waiting):
            sequence = self._waiting.head
            # A preempted sequence comes back only when nothing of it is in flight any more.
            if sequence.last_step > self._collected:
                return
            sequence.insert(self.limits.longest(sequence.request))
            hits = self._hits(sequence)
            if self._promises.worth_waiting(sequence, len(hits), sequence.reusable // self.limits.block_size):
                return
            need = self.limits.blocks_for(len(sequence.tokens)) - len(hits)
            room = need if sequence.beams is None else sequence.beams.demand(self.limits) - len(hits)
            # The whole prompt must fit, and then one block for each who runs: for block_size steps nobody is preempted.
            if len(self._rows) < sequence.num_rows:
                return
            if not self.pool.can_take(room + self._num_rows - len(self._rows), hits):
                return
            self._waiting.remove(sequence)
            self._join(draft, sequence, hits, need, now)
            draft.add(sequence, min(len(sequence.tokens) - sequence.computed, draft.budget))

    def _join(self, draft: PlanBuilder, sequence: SequenceState, hits: list[int], need: int, now: float) -> None:
        revived = self.pool.share(hits)
        sequence.blocks = hits + self.pool.take(need)
        sequence.bill(revived + need, now)
        sequence.computed = len(hits) * self.limits.block_size
        sequence.published = len(hits)
        sequence.undelivered = ()
        self._promises.make(sequence)
        sequence.row = self._rows.pop()
        if sequence.beams is not None:
            sequence.beams.rows = [sequence.row, *(self._rows.pop() for _ in range(sequence.num_rows - 1))]
        sequence.phase = "running"
        self._running[sequence.request.request_id] = sequence
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
            self._counters.admitted(sequence, sequence.computed)
        draft.joins.append(
            Join(
                row=sequence.row,
                request_id=sequence.request.request_id,
                tokens=tuple(sequence.tokens),
                prompt_tokens=sequence.prompt_tokens,
                computed_tokens=sequence.computed,
                blocks=tuple(sequence.blocks),
                sampling=sequence.request.sampling if sequence.beams is None else sequence.beams.sampling,
                pooling=sequence.request.pooling,
            )
        )

    def _take_in(
        self, entry: LaunchedChunk, sampled: SampledTokens | None, scores: tuple[Logprobs, ...], now: float
    ) -> list[EngineOutput]:
        """What one chunk did. Nothing, if its sequence ended while the plan was in flight."""
        sequence = entry.sequence
        if sequence.phase == "ended":
            return []
        sequence.reported += len(scores)
        if sequence.phase == "running":
            self._publish(sequence, entry)
        if sampled is not None and sequence.beams is None:
            if sequence.discarded_samples:
                sequence.discarded_samples -= 1
                return prompt_events(sequence, scores)
            if not (sampled.tokens or sampled.ended or sampled.error):
                raise ValueError(f"no token sampled for row {sequence.row}")
            sequence.in_flight -= 1
            if len(sampled.tokens) > 1:
                sequence.discarded_samples, sequence.in_flight = sequence.in_flight, 0
            return [self._append(sequence, sampled, scores, now)]
        events = prompt_events(sequence, scores)
        if sampled is not None and sequence.beams is not None:
            events += self._step_beams(sequence, sequence.beams, sampled, now)
        return events

    def _step_beams(
        self, sequence: SequenceState, beams: BeamGroup, sampled: SampledTokens, now: float
    ) -> list[EngineOutput]:
        """A head or a beam knows what may follow it. At the end of the search, the answers."""
        sequence.in_flight -= 1
        if sequence.phase != "running":  # a head that was preempted computes it again
            return []
        if beams.take_in(sequence, sampled.logprobs[0], self.pool, self.limits.block_size, now):
            return []
        events = beams.answers()
        self._counters.generation_tokens += sum(len(event.token_ids) for event in events)
        self._end(beams.head, now, aborted=False)
        return events

    def _pool(self, entry: LaunchedChunk, pooled: bytes, now: float) -> list[EngineOutput]:
        """A prompt whose vector is complete has ended, if it had not before."""
        if entry.sequence.phase == "ended":
            return []
        self._end(entry.sequence, now, aborted=False)
        return [event_of(entry.sequence, finish_reason="stop", pooled=pooled)]

    def _append(
        self, sequence: SequenceState, sampled: SampledTokens, scores: tuple[Logprobs, ...], now: float
    ) -> EngineOutput:
        answered = len(sequence.tokens)
        reason: FinishReason | None = None
        stop_token_id = None
        for token in sampled.tokens:
            reason = ending(sequence, token)
            if reason == "stop":
                stop_token_id = token
                break
            sequence.tokens.append(token)
            if reason is not None:
                break
        self._counters.generation_tokens += len(sequence.tokens) - answered
        injected, sequence.unreported = sequence.unreported, 0
        if stop_token_id is None and answered + len(sampled.tokens) == len(sequence.tokens):
            reason = "error" if sampled.error else "stop" if sampled.ended else reason
        if reason is not None:
            self._end(sequence, now, aborted=False)
        return event_of(
            sequence,
            token_ids=tuple(sequence.tokens[answered:]),
            finish_reason=reason,
            stop_token_id=stop_token_id,
            logprobs=sampled.logprobs[: len(sequence.tokens) - answered],
            prompt_logprobs=scores,
            message=sampled.error if reason == "error" else "",
            injected=injected,
        )

    def _publish(self, sequence: SequenceState, entry: LaunchedChunk) -> None:
        """Offer the blocks that this chunk filled to the prefix index; only computed and collected ones come here."""
        full = entry.end // self.limits.block_size
        if not self.limits.prefix_cache or full <= sequence.published:
            return
        self._extend_hashes(sequence)
        for position in range(sequence.published, full):
            self.pool.publish(sequence.blocks[position], sequence.hashes[position])
        self._promises.keep(sequence.hashes[sequence.published : full])
        sequence.published = full
        if entry.start < sequence.prompt_tokens <= entry.end:
            prompt_blocks = sequence.prompt_tokens // self.limits.block_size
            self._digest.note(sequence.request.route_hashes, sequence.hashes[:prompt_blocks])

    def _preempt(self, sequence: SequenceState, now: float) -> None:
        """Take everything from a running sequence; it keeps its tokens and computes them again later."""
        self._release(sequence, now)
        sequence.phase = "waiting"
        sequence.computed = sequence.published = 0
        sequence.preemptions += 1
        self._counters.preemptions += 1
        self._extend_hashes(sequence)
        sequence.uncached_estimate = uncached_estimate(sequence, self.pool, self.limits.block_size)
        self._waiting.put_back(sequence)

    def _end(self, sequence: SequenceState, now: float, *, aborted: bool) -> None:
        if sequence.phase == "running":
            self._release(sequence, now)
        else:
            self._waiting.remove(sequence)
        sequence.phase = "ended"
        del self._sequences[sequence.request.request_id]
        self._counters.ended(sequence, aborted=aborted, block_size=self.limits.block_size)

    def _release(self, sequence: SequenceState, now: float) -> None:
        self._promises.drop(sequence)
        rows = [sequence.row]
        for one in [sequence] if sequence.beams is None else [sequence, *sequence.beams.members]:
            in_flight = one.last_step > self._collected
            self.pool.release(one.blocks, one.last_step if in_flight else None)
            one.blocks = []
        if sequence.beams is not None:
            rows = sequence.beams.rows
            sequence.beams.reset()
        sequence.bill(0, now)
        self._rows += reversed(rows)
        self._leaves += rows
        sequence.row = -1
        del self._running[sequence.request.request_id]

    def _extend_hashes(self, sequence: SequenceState) -> None:
        if self.limits.prefix_cache:
            extend_block_hashes(sequence.hashes, sequence.tokens, root=sequence.root, block_size=self.limits.block_size)

    def _hits(self, sequence: SequenceState) -> list[int]:
        """Blocks that already hold the beginning of its tokens, as far as it may use them."""
        return self.pool.lookup(sequence.hashes, sequence.reusable // self.limits.block_size)
