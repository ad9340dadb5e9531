"""What the engine computes next: one rule under a token budget, running requests first, then arrivals in order.

Called by the engine's loop and by the replay. It knows neither clock nor device: time is given, plans and results are
plain data, and the same calls in the same order give the same plans. Up to any number of plans may be launched before
the first is collected; lengths are projected, and what a launched plan names is not reused before it is collected.

It owns budget, rows, blocks and preemption. What a request computes, and what comes of it, is up to its kind (`kinds`).
"""

from collections import deque

import msgspec

from kvasir_api.hashes import extend_block_hashes
from kvasir_api.openai_errors import MODEL_OUTPUT_INVALID
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.block_tables import ABSENT, BlockTables
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.counters import Counters
from kvasir_runtime.core.host_tier import HostTier
from kvasir_runtime.core.kinds.factory import new_kind, refusal
from kvasir_runtime.core.kinds.interface import RequestKind
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.pending_prefixes import PendingPrefixes
from kvasir_runtime.core.plan import HostChanges, Join, StepPlan, StepResults
from kvasir_runtime.core.plan_builder import LaunchedChunk, PlanBuilder, check_results
from kvasir_runtime.core.prefix_digest import PrefixDigest
from kvasir_runtime.core.sequence import SequenceState
from kvasir_runtime.core.state_report import filled
from kvasir_runtime.core.throughput import Throughput
from kvasir_runtime.core.token_budget import TokenBudget
from kvasir_runtime.core.waiting_queue import WaitingQueue, uncached_estimate
from kvasir_runtime.wire import EngineOutput, EngineRequest


class Scheduler:
    """Owns every request between submit() and its last output, every block and every row.

    Order of calls: submit and abort at any time; plan() gives the next step or None; commit() takes the results of
    the oldest launched plan.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.pool = BlockPool(limits.num_blocks, limits.attentions, limits.block_size)
        self.throughput = Throughput()
        self._counters = Counters()
        self._digest = PrefixDigest()
        self._requests: dict[str, RequestKind] = {}
        self._waiting = WaitingQueue()
        self._pending = PendingPrefixes()
        self._host = HostTier(self.pool, limits)
        self._running: dict[str, RequestKind] = {}
        # No more rows than tokens in a step, so that every running request moves in every step.
        self._num_rows = min(limits.max_sequences, limits.max_batch_tokens)
        self._rows = list(range(self._num_rows - 1, -1, -1))
        self._leaves: list[int] = []
        self._launched: deque[tuple[StepPlan, list[LaunchedChunk]]] = deque()
        self._budget = TokenBudget(
            target_s=limits.target_step_s,
            max_tokens=limits.max_batch_tokens,
            min_tokens=limits.min_step_tokens,
        )
        self._step = self._collected = 0

    @property
    def has_work(self) -> bool:
        """Whether some request has not ended, or blocks are to be copied to or from the host."""
        return bool(self._requests) or self._host.has_work

    @property
    def num_launched(self) -> int:
        """Plans given out and not committed."""
        return len(self._launched)

    def submit(self, request: EngineRequest, now: float) -> EngineOutput | None:
        """Queue a request. An output is the refusal of one that can never run; then it is not queued."""
        why = refusal(request, self.limits, self._num_rows)
        if not why and request.request_id in self._requests:
            why = f"a request with the id {request.request_id} has not ended yet"
        if why:
            return EngineOutput(request_id=request.request_id, finish_reason="error", message=why)
        kind = new_kind(request, limits=self.limits, pool=self.pool, now=now)
        self._extend_hashes(kind.sequence)
        kind.request.uncached_estimate = request.prompt_tokens - len(self._hits(kind)[0]) * self.limits.block_size
        self._requests[request.request_id] = kind
        self._waiting.append(kind)
        self._counters.arrived(kind.request)
        return None

    def abort(self, request_id: str, now: float, *, success: bool = False) -> None:
        """End a request at once, without an output; unknown ids are ignored, since it may just have ended.

        success: a stop string ended it, so it counts as completed.
        """
        kind = self._requests.get(request_id)
        if kind is not None:
            self._end(kind, now, aborted=not success)

    def inject(self, request_id: str, token_ids: tuple[int, ...]) -> None:
        """Give ids to a request, which come behind its tokens as soon as none is in flight; unknown ids are ignored."""
        kind = self._requests.get(request_id)
        if kind is not None:
            kind.inject(token_ids)

    def plan(self, now: float) -> StepPlan | None:
        """The next step; None when there is nothing to do before a launched plan is collected, or at all."""
        budget = self._budget.tokens(kind.sequence for kind in self._running.values())
        builder = PlanBuilder(step=self._step + 1, budget=budget)
        self._host.store(builder)
        self._continue_running(builder, now)
        if not builder.preempted and not builder.out_of_blocks:
            self._admit(builder, now)
        # An empty plan waits for copies that are on their way, and only where no other brings news of them.
        needs_news = self._host.is_copying and not self._launched
        if not (builder.chunks or builder.stores or builder.loads or needs_news):
            return None
        plan = builder.plan(self._leaves)
        self._leaves = []
        self._step = builder.step
        self._budget.begin(now)
        self._launched.append((plan, builder.launched))
        return plan

    def commit(self, results: StepResults, now: float) -> tuple[EngineOutput, ...]:
        """Take in the results of the oldest launched plan: append, publish full blocks, end, free.

        Raises ValueError when the results are not those of that plan.
        """
        plan, chunks = self._launched[0] if self._launched else (None, [])
        if plan is None or plan.step != results.step:
            raise ValueError(f"results of step {results.step}, expected those of {plan.step if plan else 'none'}")
        check_results(plan, chunks, results)
        self._launched.popleft()
        self._collected = plan.step
        self._budget.end(plan.num_tokens, now)
        sampled, scored, pooled = iter(results.sampled), iter(results.scored), iter(results.pooled)
        outputs: list[EngineOutput] = []
        for chunk in chunks:
            token = next(sampled) if chunk.samples else None
            logprobs = next(scored) if chunk.scores else ()
            vector = next(pooled) if chunk.pools else b""
            sequence = chunk.sequence
            if sequence.request.phase == "ended":  # while the plan was in flight
                continue
            if sequence.active:
                self._publish(sequence, chunk)
                # A sample that brings no token is taken again, which computes the last known token again.
                if (earliest := min(chunk.end, len(sequence.tokens) - 1)) >= sequence.blocks.leaves_at:
                    self._drop_unseen(sequence, earliest, now)
            kind = self._requests[sequence.request.request_id]
            given = kind.accept(chunk, token, logprobs, vector, now)
            if given:
                outputs += given
                self._counters.generation_tokens += sum([len(output.token_ids) for output in given])
                if given[-1].finish_reason is not None:
                    outputs[-1] = msgspec.structs.replace(given[-1], preemptions=kind.request.preemptions)
                    self._end(kind, now, aborted=False, invalid=given[-1].code == MODEL_OUTPUT_INVALID)
        self.pool.settle(plan.step)
        if results.transfers is not None:
            self._host.settle(results.transfers)
        return tuple(outputs)

    def fail_running(self, message: str, now: float) -> tuple[EngineOutput, ...]:
        """A step failed: end every request that has a row, forget every launched plan, go on with those that wait.

        Blocks that were published before stay valid, since they were computed by steps that succeeded.
        """
        self._launched.clear()
        self._budget.forget()
        self._collected = self._step
        self.pool.settle(self._step)
        outputs = []
        for request_id, kind in list(self._requests.items()):
            kind.drop_in_flight()
            if kind.request.phase == "running":
                self._end(kind, now, aborted=False)
                cached = kind.request.cached_tokens or 0
                failed = EngineOutput(
                    request_id=request_id, finish_reason="error", cached_tokens=cached, message=message
                )
                outputs.append(failed)
        return tuple(outputs)

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
            throughput=self.throughput,
            prefix_digest=self._digest.published(self.pool),
            kv_host=self._host.state,
        )

    def host_changed(self, changes: HostChanges) -> None:
        """The host holds other blocks than before; its own copies are among the changes."""
        self._host.changed(changes)

    def forget(self) -> None:
        """Let no later request find what was computed up to now, neither here nor on the host."""
        self.pool.forget()
        self._host.forget(self._step)

    def _continue_running(self, builder: PlanBuilder, now: float) -> None:
        """Computed chases known for every request that has a row, earliest arrival first."""
        for kind in list(self._running.values()):
            request = kind.request
            if request.phase != "running":  # it was preempted for one before it
                continue
            need = kind.need(builder.budget)
            if need is None:
                continue
            if need > 0 and (builder.out_of_blocks or not self._make_room(builder, kind, need, now)):
                builder.out_of_blocks = True
                continue
            kind.advance(builder, self._take(kind, need, now))

    def _take(self, kind: RequestKind, need: int, now: float) -> list[int]:
        """Blocks for a running request, at most 0 for none."""
        if need <= 0:
            return []
        kind.request.bill(kind.request.billed_blocks + need, now)
        return self.pool.take(need)

    def _make_room(self, builder: PlanBuilder, kind: RequestKind, need: int, now: float) -> bool:
        """Preempt the latest arrivals until need blocks can be taken; False if the request itself has to wait."""
        while not self.pool.can_take(need):
            victim = next(reversed(self._running.values()))
            # What a launched plan still names, or its collection will end or drop, comes free without a preemption.
            comes_free = victim.is_ending or self._host.holds_alone() or self._drops_soon()
            if self.pool.num_leaving or comes_free:
                return False
            self._preempt(victim, now)
            builder.preempted = True
            if victim is kind:
                return False
        return True

    def _drops_soon(self) -> bool:
        """Whether a window leaves a block once what is launched is collected."""
        sequences = [kind.sequence for kind in self._running.values() if kind.sequence.active] if self._launched else []
        return any(sequence.computed > sequence.blocks.leaves_at for sequence in sequences)

    def _drop_unseen(self, sequence: SequenceState, earliest: int, now: float) -> None:
        """Give up the blocks that no token from a position on sees; no plan in flight or to come begins before it."""
        pinned = self.pool.num_pinned
        self.pool.release(sequence.blocks.drop_unseen(earliest))
        request = sequence.request
        request.bill(max(0, request.billed_blocks + self.pool.num_pinned - pinned), now)

    def _admit(self, builder: PlanBuilder, now: float) -> None:
        """Give rows to waiting requests, in order of arrival, while budget, rows and blocks permit."""
        while builder.budget and self._rows and len(self._waiting):
            kind = self._waiting.head
            # A preempted request comes back only when nothing of it is in flight any more.
            if kind.sequence.last_step > self._collected:
                return
            num_blocks = kind.prepare()
            limits, hits = self.limits, self._hits(kind)
            num_hits, limit = len(hits[0]), kind.reusable // limits.block_size
            if self._pending.worth_waiting(kind.sequence, num_hits, limit):
                return
            if self._host.is_loading(kind.sequence.hashes[num_hits:limit]):
                return
            if len(self._rows) < kind.num_rows:
                return
            tables = BlockTables(limits.attentions, limits.block_size, hits)
            # All that it needs must fit, and then a block in each group for each row: for block_size steps none is
            # preempted.
            spare = (self._num_rows - len(self._rows)) * len(limits.attentions)
            if not self.pool.can_take(num_blocks - len(tables.held) + spare, tables.held):
                return
            if self._load(builder, kind.sequence.hashes, num_hits, limit):
                return
            self._waiting.remove(kind)
            self._join(builder, kind, tables, now)
            kind.advance(builder, self._take(kind, kind.need(builder.budget) or 0, now))

    def _load(self, builder: PlanBuilder, hashes: list[bytes], num_hits: int, limit: int) -> bool:
        """Begin to copy what the host holds behind the prefix hit of a request, if that is quicker than computing."""
        end = self._host.worth_loading(hashes, num_hits, limit, self._budget.token_s)
        return end > 0 and self._host.load(builder, hashes[:end])

    def _join(self, builder: PlanBuilder, kind: RequestKind, tables: BlockTables, now: float) -> None:
        request, sequence = kind.request, kind.sequence
        sequence.blocks, sequence.computed = tables, tables.covered
        sequence.published = tables.covered // self.limits.block_size
        end = len(sequence.tokens)
        # What a window leaves is taken again for what comes next, so a chunk ahead is enough.
        near = min(end, sequence.computed + self.limits.max_batch_tokens)
        need = tables.lacks(end, near)
        revived = self.pool.share(tables.held)
        tables.extend(end, iter(self.pool.take(need)), near)
        request.bill(revived + need, now)
        self._pending.add(sequence)
        self._host.add(sequence.hashes[: sequence.published])
        request.rows = [self._rows.pop() for _ in range(kind.num_rows)]
        request.phase = "running"
        sequence.row = request.rows[0]
        sequence.active = True
        self._running[request.request_id] = kind
        if request.cached_tokens is None:
            request.cached_tokens = sequence.computed
            self._counters.admitted(request, sequence.computed)
        builder.joins.append(
            Join(
                row=sequence.row,
                request_id=request.request_id,
                tokens=tuple(sequence.tokens),
                prompt_tokens=request.prompt_tokens,
                computed_tokens=sequence.computed,
                tables=tuple([tuple(table) for table in tables.by_group]),
                sampling=kind.sampling,
                pooling=request.request.pooling,
            )
        )

    def _publish(self, sequence: SequenceState, chunk: LaunchedChunk) -> None:
        """Offer the blocks that this chunk filled to the prefix index; only computed and collected ones come here."""
        # A sample that a grammar defers has the last known token computed again, and what follows it is of no use then.
        is_guided = sequence.request.request.sampling.grammar is not None
        known = len(sequence.tokens) - 1 if is_guided else len(sequence.tokens)
        full = min(chunk.end, known) // self.limits.block_size
        if not self.limits.prefix_cache or full <= sequence.published:
            return
        self._extend_hashes(sequence)
        hashes = sequence.hashes[sequence.published : full]
        for group, table in enumerate(sequence.blocks.by_group):
            # A state is one of the end of the chunk, and of no other place.
            is_state = self.limits.attentions[group].kind == "state"
            first = full - (chunk.end % self.limits.block_size == 0) if is_state else sequence.published
            for column in range(first, full):
                if table[column] != ABSENT:
                    self.pool.publish(table[column], sequence.hashes[column], group)
        self._pending.published(hashes)
        self._host.add(hashes)
        sequence.published = full
        prompt_tokens = sequence.request.prompt_tokens
        if chunk.start < prompt_tokens <= chunk.end:
            prompt_blocks = prompt_tokens // self.limits.block_size
            self._digest.note(sequence.request.request.route_hashes, sequence.hashes[:prompt_blocks])

    def _preempt(self, kind: RequestKind, now: float) -> None:
        """Take everything from a running request; it keeps its tokens and computes them again later."""
        self._release(kind, now)
        request, sequence = kind.request, kind.sequence
        request.phase = "waiting"
        request.preemptions += 1
        sequence.computed = sequence.published = 0
        self._counters.preemptions += 1
        self._extend_hashes(sequence)
        request.uncached_estimate = uncached_estimate(kind, self.pool, self.limits.block_size)
        self._waiting.put_back(kind)

    def _end(self, kind: RequestKind, now: float, *, aborted: bool, invalid: bool = False) -> None:
        """invalid: the model's output was not finite, so that what the request computed is of no use to others."""
        request = kind.request
        self._counters.invalid_outputs += invalid
        if request.phase == "running":
            self._release(kind, now, retract=invalid)
        else:
            self._waiting.remove(kind)
        request.phase = "ended"
        del self._requests[request.request_id]
        self._counters.ended(request, aborted=aborted, limits=self.limits)

    def _release(self, kind: RequestKind, now: float, *, retract: bool = False) -> None:
        request = kind.request
        self._pending.remove(kind.sequence)
        for sequence in kind.release():
            if retract:
                self.pool.retract(sequence.blocks.held)
                self._host.retract(sequence.hashes)
            in_flight = sequence.last_step > self._collected
            self.pool.release(sequence.blocks.held, sequence.last_step if in_flight else None)
            sequence.blocks = BlockTables()
            sequence.row = -1
            sequence.active = False
        request.bill(0, now)
        self._rows += reversed(request.rows)
        self._leaves += request.rows
        request.rows = []
        del self._running[request.request_id]

    def _extend_hashes(self, sequence: SequenceState) -> None:
        if self.limits.prefix_cache:
            extend_block_hashes(sequence.hashes, sequence.tokens, root=sequence.root, block_size=self.limits.block_size)

    def _hits(self, kind: RequestKind) -> list[list[int]]:
        """Tables of blocks that already hold the beginning of its tokens, as far as it may use them."""
        return self.pool.lookup(kind.sequence.hashes, kind.reusable // self.limits.block_size)
