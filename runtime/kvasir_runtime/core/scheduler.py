"""What the engine computes next: one rule under a token budget, running requests first, then those that wait.

Called by the engine's loop and by the replay. It knows neither clock nor device: time is given, plans and results are
plain data, and the same calls in the same order give the same plans. Up to any number of plans may be launched before
the first is collected; lengths are projected, and what a launched plan names is not reused before it is collected.

It owns budget, rows, blocks and preemption. What a request computes, and what comes of it, is up to its kind (`kinds`).
"""

from bisect import insort

import msgspec

from kvasir_api.openai_errors import MODEL_OUTPUT_INVALID
from kvasir_api.roofline import StepWork
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.admission import Admission
from kvasir_runtime.core.block_tables import BlockTables
from kvasir_runtime.core.counters import Counters
from kvasir_runtime.core.deadline_admission import DeadlineAdmission
from kvasir_runtime.core.divided_blocks import new_pool
from kvasir_runtime.core.fair_shares import FairShares
from kvasir_runtime.core.host_tier import HostTier
from kvasir_runtime.core.kinds.factory import new_kind, refusal
from kvasir_runtime.core.kinds.interface import RequestKind
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan import StepFailure, StepPlan, StepResults
from kvasir_runtime.core.plan_builder import PlanBuilder
from kvasir_runtime.core.prefix_publisher import PrefixPublisher
from kvasir_runtime.core.row_pool import RowPool
from kvasir_runtime.core.running_requests import RunningRequests
from kvasir_runtime.core.sequence import SequenceState
from kvasir_runtime.core.speculation.drafters import Drafter
from kvasir_runtime.core.speculation.speculation import Speculation
from kvasir_runtime.core.stage_sets import StageSets
from kvasir_runtime.core.state_report import filled
from kvasir_runtime.core.step_prompts import PromptInStep, compute_prompts, expected_shares, lacking, prompt_in_step
from kvasir_runtime.core.steps_in_flight import StepInFlight, StepsInFlight
from kvasir_runtime.core.tenant_accounts import TenantAccounts
from kvasir_runtime.core.throughput import Throughput
from kvasir_runtime.core.token_budget import TokenBudget
from kvasir_runtime.core.waiting_queue import WaitingQueue, uncached_estimate
from kvasir_runtime.wire import EngineOutput, EngineRequest


class Scheduler:
    """Owns every request between submit() and its last output, every block and every row.

    Order of calls: submit and abort at any time; plan() gives the next step or None; commit() takes the results of
    the oldest launched plan.
    """

    def __init__(self, limits: Limits, work: StepWork | None = None, drafter: Drafter | None = None) -> None:
        self.limits = limits
        self.pool = new_pool(limits)
        self.throughput = Throughput(work)
        self._counters = Counters()
        self._speculation = Speculation(limits, self._counters, drafter)
        self._requests: dict[str, RequestKind] = {}
        self._waiting = WaitingQueue()
        self._shares = FairShares()
        self.tenants = TenantAccounts(limits, self.pool)
        self.host = HostTier(self.pool, limits)
        self._publisher = PrefixPublisher(limits, self.pool, self.host)
        self.prefixes = self._publisher.digest
        self._running = RunningRequests()
        pending, self._is_due = self._publisher.pending, self._publisher.pending.is_due
        self._admission = Admission(limits, self.pool, self._waiting, self._shares, self.host, pending, self._running)
        self._rows = RowPool(limits.num_rows, waits=limits.stages > 1)
        self.deadlines = DeadlineAdmission(limits, self._waiting, self._running, self._rows.free)
        self._launched = StepsInFlight()
        self._sets = StageSets(limits.stages)
        self._budget = TokenBudget.of(limits)
        self._step = self._collected = self._reports = 0

    @property
    def has_work(self) -> bool:
        """Whether some request has not ended, or blocks are to be copied to or from the host."""
        return bool(self._requests) or self.host.has_work

    def submit(self, request: EngineRequest, now: float) -> EngineOutput | None:
        """Queue a request. An output is the refusal of one that can never run, or not soon; then it is not queued."""
        why = refusal(request, self.limits, self.limits.num_rows)
        if not why and request.request_id in self._requests:
            why = f"a request with the id {request.request_id} has not ended yet"
        if why:
            return EngineOutput(request_id=request.request_id, finish_reason="error", message=why)
        kind = new_kind(request, limits=self.limits, pool=self.pool, now=now)
        self._publisher.extend_hashes(kind.sequence)
        if request.prefetch:
            return self.host.prefetch(kind.sequence, self._budget.token_s, now)
        hit = self.host.reach(kind.sequence.hashes, kind.reusable // self.limits.block_size, self._budget.token_s)
        kind.request.uncached_estimate = len(kind.sequence.tokens) - hit * self.limits.block_size
        kind.request.shared_tokens = self._waiting.shared(kind, hit, self._is_due, self.limits.block_size)
        kind.request.number = self._counters.arrivals
        if (refused := self.deadlines.arrived(kind, now)) is not None:
            return refused
        self.host.fetch(kind.sequence, kind.reusable // self.limits.block_size, self._budget.token_s, now)
        if self._requests:
            self._budget.arrived(kind.request.uncached_estimate, now)
        self._requests[request.request_id] = kind
        self._queue(kind)
        self._counters.arrived(kind.request)
        return None

    def abort(self, request_id: str, now: float, *, success: bool = False) -> None:
        """End a request at once, without an output; unknown ids are ignored, since it may just have ended.

        success: a stop string ended it, so it counts as completed.
        """
        if (kind := self._requests.get(request_id)) is not None:
            self.tenants.advance(now)
            self._end(kind, now, aborted=not success)

    def inject(self, request_id: str, token_ids: tuple[int, ...]) -> None:
        """Give ids to a request, which come behind its tokens as soon as none is in flight; unknown ids are ignored."""
        if (kind := self._requests.get(request_id)) is not None:
            kind.inject(token_ids)

    def plan(self, now: float) -> StepPlan | None:
        """The next step; None when there is nothing to do before a launched plan is collected, or at all.

        Requests that cannot meet their objectives any more end: `deadlines` has their outputs.
        """
        self.tenants.advance(now)
        for kind in self.deadlines.overdue(now):
            self._end(kind, now, aborted=True)
        running = [kind.sequence for kind in self._running.values()]
        long = self._budget.long_prompts(running, now)
        builder = PlanBuilder(step=self._step + 1, budget=self._budget.tokens(running), long=long)
        self.host.store(builder)
        of_step = self._sets.due(builder, self._running.values(), self._launched)
        may_admit = self._rows.free and len(self._waiting) and builder.takes_prompts
        self._speculation.draft(of_step, 0 if may_admit else builder.budget, self.pool)
        prompts = self._continue_running(builder, of_step, now)
        if builder.takes_prompts and len(builder.closed) < self.pool.num_ranks:
            self._admit(builder, prompts, now)
        prompt_tokens = compute_prompts(builder, prompts, self.pool, now)
        load = self.deadlines.planned(builder, prompts, prompt_tokens, now)
        # An empty plan waits for copies that are on their way, and only where no other brings news of them.
        if builder.is_empty and (self._launched or not self.host.is_copying):
            return None
        leaves, self._step = self._rows.take_leaves(), builder.step
        plan = builder.plan(leaves, drafter_follows=self._speculation.drafter_follows)
        self._budget.begin(now, builder.long_tokens)
        self._launched.append(StepInFlight(plan, builder.launched, load))
        return plan

    def commit(self, results: StepResults, now: float) -> tuple[EngineOutput, ...]:
        """Take in the results of the oldest launched plan: append, publish full blocks, end, free.

        Raises ValueError when the results are not those of that plan.
        """
        plan, chunks, load = self._launched.take(results)
        self.tenants.advance(now)
        self._collected = plan.step
        elapsed_s = self._budget.end(plan.num_tokens, now)
        self.deadlines.collected(load, elapsed_s, now)
        self._speculation.collected(chunks, results, elapsed_s)
        self._sets.collected(plan.step, chunks, sum([len(sample.tokens) for sample in results.sampled]), now)
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
                self._publisher.publish(sequence, chunk)
            kind = self._requests[sequence.request.request_id]
            if given := kind.accept(chunk, token, logprobs, vector, now):
                self.deadlines.first_token(kind, now)
                outputs += given
                num_tokens = sum([len(output.token_ids) for output in given])
                self._counters.generation_tokens += num_tokens
                self.tenants.generated(kind.request.request.tenant, num_tokens)
                if given[-1].finish_reason is not None:
                    outputs[-1] = msgspec.structs.replace(given[-1], preemptions=kind.request.preemptions)
                    self._end(kind, now, aborted=False, invalid=given[-1].code == MODEL_OUTPUT_INVALID)
            # A sample that brought no token is taken again: the last known token is planned again.
            earliest = min(sequence.computed if chunk.drafts else chunk.end, len(sequence.tokens) - 1)
            if sequence.active and earliest >= sequence.blocks.leaves_at:
                self._drop_unseen(sequence, earliest, now)
        self.pool.settle(plan.step)
        self._rows.settle(plan.step)
        if results.transfers is not None:
            outputs += self.host.settle(results.transfers)
        return tuple(outputs)

    def fail_running(self, failure: StepFailure, now: float) -> tuple[EngineOutput, ...]:
        """A step failed: end every request that has a row, forget every launched plan, go on with those that wait.

        Where there was no memory for it all wait again, without drafts if it had some, else for smaller steps if it had
        tokens, but one that was alone in it with a token. Published blocks stay valid: steps that succeeded made them.
        """
        chunks = self._launched.chunks_of(failure.step)
        num_tokens = sum([chunk.num_tokens for chunk in chunks])
        self._counters.memory_failures += failure.lacks_memory
        if failure.lacks_memory and any(chunk.drafts for chunk in chunks):
            self._speculation.rest()
        elif failure.lacks_memory and num_tokens:
            self._budget.shrink(num_tokens)
        self._rows.leave_again(self._launched.drop())
        self.tenants.advance(now)
        self._budget.forget()
        self._collected = self._step
        self.pool.settle(self._step)
        self._rows.settle(self._step)
        outputs = [output for transfer in failure.transfers for output in self.host.settle(transfer)]
        for kind in list(self._requests.values()):
            kind.drop_in_flight()
            if kind.request.phase != "running":
                continue
            is_alone = len(chunks) == 1 and chunks[0].sequence.request is kind.request
            if failure.lacks_memory and not (is_alone and (num_tokens == 1 or self.limits.computes_whole)):
                self._requeue(kind, now)
            else:
                self._end(kind, now, aborted=False)
                outputs.append(kind.request.failed_output(failure.message))
        return tuple(outputs)

    def report(self, state: RuntimeState) -> RuntimeState:
        """The given document with everything filled in that the scheduler knows. Cost does not grow with the queue."""
        self._waiting.refresh(self._is_cached, self.limits.block_size)
        self._reports += 1
        return filled(
            state,
            step=self._step,
            sequence_number=self._reports,
            limits=self.limits,
            pool=self.pool,
            waiting=self._waiting,
            running=self._running.values(),
            totals=self._counters.totals,
            throughput=self.throughput,
            ttft=self.deadlines.forecast,
            kv_host=self.host.state,
            speculation=self._speculation.state,
        )

    def forget(self, owner: bytes = b"") -> None:
        """Let no later request find what was computed up to now, nor draft from it. owner: only what has this mark."""
        self._publisher.forget(owner)
        self._speculation.forget(owner)

    def _continue_running(self, builder: PlanBuilder, running: list[RequestKind], now: float) -> list[PromptInStep]:
        """Computed chases known for these requests, by seniority. Returns those that lack more than a token, which
        share what is left of the budget; they hold blocks for what each computes if none is admitted.
        """
        prompts: list[PromptInStep] = []
        shares: dict[str, int] = {}
        for place, kind in enumerate(running):
            if kind.request.phase != "running":  # it was preempted for one before it
                continue
            need, count = kind.need(builder.budget), 0
            if need is None:
                continue
            if is_prompt := lacking(kind) > 1 and not kind.sequence.drafts:
                shares = shares or expected_shares(running[place:], builder.budget, builder.long)
                count = min(shares.get(kind.request.request_id, 1), builder.budget)
                need = kind.need(count) or 0
            if need > 0 and not self._make_room(builder, kind, need, now):
                builder.out_of_blocks.add(kind.request.data_rank)
                continue
            blocks = self._take(kind, need, now)
            if is_prompt:
                prompts.append(prompt_in_step(builder, kind, blocks, count))
            else:
                kind.advance(builder, blocks)
        return prompts

    def _take(self, kind: RequestKind, need: int, now: float) -> list[int]:
        """Blocks for a running request, at most 0 for none."""
        if need <= 0:
            return []
        kind.request.bill(kind.request.billed_blocks + need, now)
        return self.pool.of_rank(kind.request.data_rank).take(need, kind.request.request.tenant)

    def _make_room(self, builder: PlanBuilder, kind: RequestKind, need: int, now: float) -> bool:
        """Preempt the least senior at its rank until need blocks can be taken; False if the request has to wait."""
        pool = self.pool.of_rank(rank := kind.request.data_rank)
        if rank in builder.out_of_blocks:
            return False
        while not pool.can_take(need):
            victim = self._running.least_senior(rank)
            # What a launched plan still names, or its collection will end or drop, comes free without a preemption.
            comes_free = pool.num_leaving > 0 or victim.is_ending or self.host.holds_alone()
            if comes_free or (self._launched and self._running.drop_soon(rank)):
                return False
            self._requeue(victim, now)
            victim.request.preemptions += 1
            self._counters.preemptions += 1
            builder.preempted.add(rank)
            if victim is kind:
                return False
        return True

    def _drop_unseen(self, sequence: SequenceState, earliest: int, now: float) -> None:
        """Give up the blocks that no token from a position on sees; no plan in flight or to come begins before it."""
        pinned = self.pool.num_pinned
        self.pool.release(sequence.blocks.drop_unseen(earliest))
        sequence.request.bill(max(0, sequence.request.billed_blocks + self.pool.num_pinned - pinned), now)

    def _admit(self, builder: PlanBuilder, prompts: list[PromptInStep], now: float) -> None:
        """Give rows to waiting requests."""
        if not (self._rows.free and builder.budget):
            return
        if len(self._waiting.tenants) > 1:
            self._shares.settle(self._running.values())
        admitted = self._admission.due(
            builder, prompts, self._rows.free, now=now, collected=self._collected, token_s=self._budget.token_s
        )
        for kind, tables in admitted:
            self._join(builder, kind, tables, now)
            blocks = self._take(kind, kind.need(builder.budget) or 0, now)
            prompt = prompt_in_step(builder, kind, blocks, builder.budget)
            insort(prompts, prompt, key=lambda one: one.kind.request.seniority)

    def _join(self, builder: PlanBuilder, kind: RequestKind, tables: BlockTables, now: float) -> None:
        request, sequence = kind.request, kind.sequence
        sequence.blocks, sequence.computed = tables, tables.covered
        sequence.published = tables.covered // self.limits.block_size
        sequence.branch = self._publisher.branch(sequence)
        end = len(sequence.tokens)
        # What a window leaves is taken again for what comes next, so a chunk ahead is enough.
        near = min(end, sequence.computed + self.limits.max_batch_tokens)
        need = tables.lacks(end, near)
        tenant = request.request.tenant
        revived = self.pool.share(tables.held, payer=tenant)
        tables.extend(end, iter(self.pool.of_rank(request.data_rank).take(need, tenant)), near)
        request.bill(revived + need, now)
        self._publisher.pending.add(sequence)
        self.host.add(sequence.hashes[: sequence.published])
        request.rows = self._rows.take(kind.num_rows)
        request.phase = "running"
        sequence.row, sequence.active = request.rows[0], True
        self._running.add(kind)
        is_first = request.cached_tokens is None
        self._shares.admitted(kind, end - sequence.computed if is_first else 0)
        if is_first:
            request.cached_tokens = sequence.computed
            self._counters.admitted(request, sequence.computed, self.throughput.rates.prefill_tokens_per_s)
            self.tenants.admitted(tenant, request.prompt_tokens, sequence.computed)
        builder.join(sequence, kind.sampling)

    def _requeue(self, kind: RequestKind, now: float) -> None:
        """Take everything from a running request; it keeps its tokens and computes them again later."""
        self._release(kind, now)
        request, sequence = kind.request, kind.sequence
        request.phase, request.queued_at, request.shared_tokens = "waiting", now, 0
        sequence.computed = sequence.published = 0
        self._publisher.extend_hashes(sequence)
        request.uncached_estimate = uncached_estimate(kind, self._is_cached, self.limits.block_size)
        self._queue(kind)

    def _queue(self, kind: RequestKind) -> None:
        """One more that waits, for the first time or after a preemption."""
        self._shares.queued(kind, self._waiting.tenants, self._running.values())
        self._waiting.add(kind)

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
        self.host.abandon(request.request_id, (one.sequence.hashes for one in self._requests.values()))
        if (num_tokens := len(kind.sequence.tokens) - request.prompt_tokens) and not (invalid or request.for_peer):
            self._admission.lengths.add(num_tokens)
            self._speculation.ended(kind)
        self._counters.ended(request, aborted=aborted, limits=self.limits)

    def _release(self, kind: RequestKind, now: float, *, retract: bool = False) -> None:
        request = kind.request
        self._shares.settle([kind])
        self._publisher.pending.remove(kind.sequence)
        released = kind.release()
        for sequence in released:
            if retract:
                self.pool.retract(sequence.blocks.held)
                self.host.retract(sequence.hashes)
            step = sequence.last_step if sequence.last_step > self._collected else None
            self.pool.release(sequence.blocks.held, step)
            sequence.blocks = BlockTables()
            sequence.row, sequence.active = -1, False
        request.bill(0, now)
        self._rows.give_up(request.rows, max([sequence.last_step for sequence in released]))
        request.rows = []
        self._running.remove(kind)

    def _is_cached(self, block_hash: bytes) -> bool:
        """Whether a block is on the device, or on the host from where it would be copied."""
        return self.host.covers(block_hash, self._budget.token_s)
