"""Any traffic, any cache, several plans in flight: hypothesis plays clients, the fake runner checks every block."""

import struct

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fakes.beams import searched
from fakes.drafter import OracleDrafter
from fakes.host import with_failing_peer
from fakes.model import FakeModel
from fakes.random_limits import LIMITS, all_blocks_lie_at_their_ranks
from fakes.runner import FakeRunner
from fakes.serving import Serving, request
from kvasir_api.hashes import owner_of_block, owner_of_salt
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.block_tables import ABSENT
from kvasir_runtime.core.kinds.factory import longest
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan import StepFailure, StepPlan
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.wire import BeamSearchConfig, Grammar, PoolingConfig

MODEL = FakeModel(table=(0, *range(1, 24)))
INJECTED = 77
# Prompts begin alike, so that prefixes are shared and diverge at every place.
PROMPTS = st.builds(
    lambda length, tail: [*range(1, length + 1), *tail],
    st.integers(0, 20),
    st.lists(st.integers(1, 3), max_size=4),
)
SAMPLING = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 24),
        "min_tokens": st.integers(0, 3),
        "ignore_eos": st.booleans(),
        "stop_token_ids": st.sampled_from([(), (3,), (3, 5)]),
        "temperature": st.just(1.0),
        "seed": st.integers(0, 1),
        "salt": st.sampled_from([b"", b"s"]),
        "grammar": st.sampled_from([None, Grammar(kind="json_object")]),
        "priority": st.integers(-1, 2),
        "tenant": st.sampled_from(["", "a", "b"]),
        "weight": st.sampled_from([1.0, 3.0]),
        "ttft_s": st.sampled_from([0.0, 1e4, 2e4]),  # far off: none is refused
        "kv_peer": st.sampled_from(["", "10.0.0.2:8002"]),
        "kv_peer_computes": st.booleans(),
        "for_peer": st.booleans(),
    }
)


def served_with(limits, depth, stages=1):
    """stages: with more than one as many plans are in flight, of disjoint rows, in place of depth. With two or four no
    time passes, so that they stay so; else each step takes as long, so that it is most often one.
    """
    runner = FakeRunner(
        model=MODEL,
        max_batch_tokens=limits["max_batch_tokens"],
        max_rows=limits["max_sequences"],
        block_size=limits["block_size"],
        late_every=5,
        attentions=limits["attentions"],
    )
    if limits["host_blocks"]:
        runner.host = with_failing_peer(limits["host_blocks"], limits["max_sequences"])
    drafter = OracleDrafter(MODEL) if limits["speculation"] == "oracle" else None
    made = Limits(**limits, max_cached_answers=2, stages=stages)
    served = Serving(Scheduler(made, drafter=drafter), runner, depth if stages == 1 else stages)
    served.tick_s = float(stages % 2)
    return served


def alone(made, longest, marks=()):
    """What the model says to a request that has a machine for itself, without any scheduler.

    marks: for each id that is handed in, how many tokens of the answer stand before it.
    """
    tokens, sampling = [*made.prompt, *made.generated], made.sampling
    stops = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else (0,))}
    limit = min(longest, len(made.prompt) + sampling.max_tokens)
    known = len(made.generated)
    answer, marks = list(made.generated), [known + mark for mark in marks]
    while True:
        while marks and marks[0] == len(answer):
            tokens.append(INJECTED)
            limit = min(longest, limit + 1)
            marks.pop(0)
        if len(tokens) >= limit:
            return answer[known:], "length"
        early = len(answer) < sampling.min_tokens
        token = MODEL.next_token(tokens, sampling.seed, {0, *sampling.stop_token_ids} if early else ())
        if token in stops and not early:
            return answer[known:], "stop"
        tokens.append(token)
        answer.append(token)
        if sampling.grammar is None:
            continue
        forced = MODEL.forced(tokens)
        room = limit - len(tokens)
        tokens += forced.tokens[:room]
        answer += forced.tokens[:room]
        if len(forced.tokens) <= room and (forced.error or forced.ended):
            return answer[known:], "error" if forced.error else "stop"


class SchedulerMachine(RuleBasedStateMachine):
    """Clients submit, leave and wait; every answer must be the one the request would get alone."""

    @initialize(limits=LIMITS, depth=st.integers(1, 3), stages=st.sampled_from([1, 1, 2, 3, 4]))
    def begin(self, limits, depth, stages):
        self.served = served_with(limits, depth, stages)
        self.requests = {}
        self.searches = {}
        self.aborted = set()

    @rule(prompt=PROMPTS, sampling=SAMPLING)
    def submit(self, prompt, sampling):
        made = request(f"r{len(self.requests)}", prompt, **sampling)
        self.requests[made.request_id] = made
        self.served.submit(made)

    @rule(prompt=PROMPTS, sampling=SAMPLING, cut=st.integers(1, 20))
    def resume(self, prompt, sampling, cut):
        """Another engine generated the beginning of the answer."""
        made = request(f"r{len(self.requests)}", prompt or [1], **{**sampling, "grammar": None})
        whole, _ = alone(made, self.served.scheduler.limits.max_sequence_tokens)
        self.requests[made.request_id] = made = msgspec.structs.replace(made, generated=tuple(whole[:-1][:cut]))
        self.served.submit(made)

    @rule(prompt=PROMPTS, kind=st.sampled_from(["last", "mean"]))
    def pool(self, prompt, kind):
        made = request(f"r{len(self.requests)}", prompt)
        made = msgspec.structs.replace(made, pooling=PoolingConfig(kind=kind))
        self.requests[made.request_id] = made
        self.served.submit(made)

    @rule(prompt=PROMPTS, width=st.integers(1, 4), max_tokens=st.integers(1, 9), never=st.booleans())
    def search(self, prompt, width, max_tokens, never):
        name = f"s{len(self.searches)}"
        names = tuple(f"{name}/{number}" for number in range(width))
        beam = BeamSearchConfig(width=width, answers=names, early_stopping="never" if never else False)
        made = request(names[0], prompt, max_tokens=max_tokens, beam=beam)
        self.searches[names[0]] = made
        self.served.submit(made)

    @rule(steps=st.integers(1, 6))
    def step(self, steps):
        for _ in range(steps):
            self.served.step()
            self.look_at_plans()

    @rule(pick=st.integers(0, 99))
    def abort(self, pick):
        if living := [name for name in self.requests | self.searches if not self.served.answers[name].reason]:
            name = living[pick % len(living)]
            self.served.scheduler.abort(name, self.served.now, success=pick % 2 == 0)
            self.gone(name)

    @rule(pick=st.integers(0, 99), count=st.integers(1, 9))
    def inject(self, pick, count):
        plain = [name for name, made in self.requests.items() if made.sampling.grammar is None]
        if plain:
            self.served.scheduler.inject(plain[pick % len(plain)], (INJECTED,) * count)

    @precondition(lambda self: self.served.runner.host)
    @rule(pick=st.integers(0, 99), damaged=st.booleans())
    def lose(self, pick, damaged):
        """Another process takes a slot on the host, or a disk damages it."""
        self.served.runner.host.lose(pick, damaged=damaged)

    @rule()
    def forget(self):
        self.served.scheduler.forget()
        self.served.runner.forget_host()
        assert self.served.scheduler.report(RuntimeState()).kv.cached_tokens == 0

    @rule()
    def forget_a_tenant(self):
        self.served.scheduler.forget(owner_of_salt(b"s"))
        scheduler = self.served.scheduler
        assert not any(key and owner_of_block(key[1]) == owner_of_salt(b"s") for key in scheduler.pool._key_of)
        assert not any(owner_of_block(key) == owner_of_salt(b"s") for key in scheduler.host._resident)

    @rule(pick=st.integers(0, 3), lacks_memory=st.booleans())
    def fail(self, pick, lacks_memory):
        """A step fails, or finds no memory: then only a request whose token was alone in a launched one ends."""
        plans = [plan for plan in self.served.lose_flight() if plan.chunks]
        step = plans[pick].step if pick < len(plans) else 0
        failure = StepFailure(message="told to fail", step=step, lacks_memory=lacks_memory)
        ended = self.served.scheduler.fail_running(failure, self.served.now)
        assert not lacks_memory or len(ended) <= (step > 0 and plans[pick].num_tokens == 1)
        for event in ended:
            self.gone(event.request_id)

    def gone(self, name):
        self.aborted.add(name)
        for one in self.searches[name].beam.answers if name in self.searches else (name,):
            self.served.answers[one].reason = "aborted"

    @invariant()
    def every_block_is_pinned_cached_or_free(self):
        scheduler = self.served.scheduler
        kv = scheduler.report(RuntimeState()).kv
        assert kv.pinned_tokens + kv.cached_tokens + kv.free_tokens == kv.capacity_tokens
        assert kv.pinned_bytes + kv.cached_bytes + kv.free_bytes == kv.capacity_bytes
        assert min(kv.pinned_tokens, kv.cached_tokens, kv.free_tokens) >= 0
        limits, groups = scheduler.limits, len(scheduler.limits.attentions)
        for part in ("capacity", "pinned", "cached", "free"):
            size, tokens = getattr(kv, f"{part}_bytes"), getattr(kv, f"{part}_tokens")
            assert abs(size / (groups * limits.block_bytes) * limits.block_size - tokens) < 1
        self.nothing_is_pinned_that_no_token_sees()
        all_blocks_lie_at_their_ranks(scheduler)
        if not scheduler.has_work and not scheduler._launched:
            assert kv.pinned_tokens == 0
        host = scheduler.report(RuntimeState()).kv_host
        assert host.cached_tokens + host.free_tokens == host.capacity_tokens

    def nothing_is_pinned_that_no_token_sees(self):
        """Where no plan is in flight, a running sequence holds exactly the blocks that its last token and later ones
        see, and those that it may write into."""
        scheduler = self.served.scheduler
        if scheduler._launched:
            return
        size = scheduler.limits.block_size
        for kind in scheduler._running.values():
            for sequence in (kind.sequence, *getattr(kind, "members", ())):
                for attention, table in zip(scheduler.limits.attentions, sequence.blocks.by_group, strict=False):
                    # A token may be planned again, the last one only.
                    earliest = min(sequence.computed, len(sequence.tokens) - 1)
                    first = attention.first_seen(earliest) // size
                    assert all(block == ABSENT for block in table[:first])
                    held = table[first : -(-sequence.computed // size)]
                    if attention.kind == "state" and held:
                        # Where the last token is planned again for its sample alone, the state is as of behind it.
                        held = [max(table[(sequence.computed - 1) // size : sequence.computed // size + 1])]
                    assert ABSENT not in held

    @invariant()
    def plans_in_flight_over_stages_sample_for_disjoint_rows(self):
        """A row that a plan in flight samples for is in no other, and none leaves or is joined that one names."""
        if self.served.scheduler.limits.stages == 1:
            return
        sampled, named = set(), set()
        for plan, _ in self.served.flight:
            rows = {chunk.row for chunk in plan.chunks}
            assert not sampled & rows
            assert not named & {*plan.leaves, *(join.row for join in plan.joins), *(fork.row for fork in plan.forks)}
            sampled |= {chunk.row for chunk in plan.chunks if chunk.samples}
            named |= rows

    def look_at_plans(self):
        """Every plan is within the limits."""
        limits = self.served.scheduler.limits
        for plan in self.served.plans:
            assert plan.num_tokens <= limits.max_batch_tokens
            assert plan.num_tokens or self.served.runner.host
            assert len(plan.chunks) <= limits.max_sequences
        self.served.plans.clear()

    def look_at_searches(self):
        """A search finds what it would find alone, or was told that its beams do not fit."""
        limits = self.served.scheduler.limits
        for name, made in self.searches.items():
            answers = [self.served.answers[one] for one in made.beam.answers]
            if name in self.aborted:
                continue
            if answers[0].reason == "error":
                assert (
                    made.beam.width > limits.max_sequences
                    or len(made.prompt) >= longest(made, limits)
                    or (made.beam.width > limits.max_batch_tokens or not made.prompt)
                )
                continue
            room = longest(made, limits) - len(made.prompt)
            want = searched(
                MODEL,
                made.prompt,
                width=made.beam.width,
                max_tokens=min(room, made.sampling.max_tokens),
                stops=frozenset({0}),
                early_stopping=made.beam.early_stopping,
            )
            assert [(answer.tokens, answer.reason) for answer in answers] == [(t, r) for t, r, _ in want]

    def look_at_vector(self, made, answer):
        """What the fake runner read at the pooled positions, however the prompt was cut and preempted."""
        if made.request_id in self.aborted:
            assert not answer.pooled
        elif answer.reason == "error":
            assert not made.prompt or len(made.prompt) > self.served.scheduler.limits.max_pooled_tokens
        else:
            wanted = made.prompt if made.pooling.kind == "mean" else made.prompt[-1:]
            assert answer.pooled == struct.pack(f"<{len(wanted)}f", *wanted)
            assert (answer.tokens, answer.reason) == ([], "stop")

    def teardown(self):
        if not hasattr(self, "served"):
            return
        self.served.finish()
        limit = self.served.scheduler.limits.max_sequence_tokens
        for name, made in self.requests.items():
            answer = self.served.answers[name]
            if made.pooling is not None:
                self.look_at_vector(made, answer)
            elif name in self.aborted:
                tokens, _ = alone(made, limit, answer.marks)
                assert answer.tokens == tokens[: len(answer.tokens)]
            elif answer.reason == "error" and not answer.tokens:
                assert not made.prompt or len(made.prompt) >= limit
            else:
                assert (answer.tokens, answer.reason) == alone(made, limit, answer.marks)
        self.look_at_searches()
        self.every_block_is_pinned_cached_or_free()
        state = self.served.scheduler.report(RuntimeState())
        assert (state.running, state.waiting, state.waiting_uncached_tokens, state.remaining_tokens) == (0, 0, 0, 0)


SchedulerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)
TestScheduler = SchedulerMachine.TestCase


def run(limits, traffic, depth, stages=1):
    served = served_with(limits, depth, stages)
    for number, (steps, prompt, sampling) in enumerate(traffic):
        for _ in range(steps):
            served.step()
        served.submit(request(f"r{number}", prompt, **sampling))
    served.finish()
    return served


TRAFFIC = st.lists(st.tuples(st.integers(0, 4), PROMPTS, SAMPLING), min_size=1, max_size=8)


@given(limits=LIMITS, traffic=TRAFFIC)
@settings(max_examples=60, deadline=None)
def test_the_depth_of_the_pipeline_and_the_cache_do_not_change_an_answer(limits, traffic):
    want = run(limits, traffic, depth=1).answers
    cold = run({**limits, "prefix_cache": False}, traffic, depth=2).answers
    deep = run(limits, traffic, depth=2).answers
    for stages in (2, 4):
        found = run(limits, traffic, depth=1, stages=stages).answers
        assert [(a.tokens, a.reason) for a in want.values()] == [(a.tokens, a.reason) for a in found.values()]
    assert [(a.tokens, a.reason) for a in want.values()] == [(a.tokens, a.reason) for a in cold.values()]
    assert [(a.tokens, a.reason) for a in want.values()] == [(a.tokens, a.reason) for a in deep.values()]


@given(limits=LIMITS, traffic=TRAFFIC, depth=st.integers(1, 2), stages=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_the_same_trace_gives_the_same_plans(limits, traffic, depth, stages):
    first, second = run(limits, traffic, depth, stages), run(limits, traffic, depth, stages)
    assert first.plans == second.plans


@given(limits=LIMITS, traffic=TRAFFIC, depth=st.integers(2, 3), stages=st.sampled_from([1, 2, 4]))
@settings(max_examples=40, deadline=None)
def test_no_block_changes_hands_before_every_plan_that_names_it_was_collected(limits, traffic, depth, stages):
    served = served_with(limits, depth, stages)
    tables: dict[int, list[list[int]]] = {}
    named: dict[int, int] = {}
    arrivals = [request(f"r{number}", prompt, **sampling) for number, (_, prompt, sampling) in enumerate(traffic)]
    while arrivals or served.scheduler.has_work or served.flight:
        if arrivals:
            served.submit(arrivals.pop(0))
        before, collected = len(served.plans), len(served.plans) - len(served.flight)
        served.step()
        for plan in served.plans[before:]:
            for block in filter(lambda block: block != ABSENT, fresh(plan, limits["block_size"])):
                assert named.get(block, 0) <= collected, f"block {block} is still named by step {named[block]}"
            follow(plan, tables, named, limits)
    assert not served.scheduler._launched


def fresh(plan: StepPlan, block_size: int):
    """Blocks that this plan takes for itself, prefix hits excepted."""
    for join in plan.joins:
        for table in join.tables:
            yield from table[join.computed_tokens // block_size :]
    for grow in plan.grows:
        yield from grow.blocks
    for load in plan.loads:
        yield load.block


def follow(plan, tables, named, limits):
    """named: blocks that a chunk reads or writes."""
    for row in plan.leaves:
        tables.pop(row, None)
    for join in plan.joins:
        tables[join.row] = [list(table) for table in join.tables]
    for grow in plan.grows:
        tables[grow.row][grow.group] += grow.blocks
    for chunk in plan.chunks:
        for attention, table in zip(limits["attentions"], tables[chunk.row], strict=True):
            for block in table[attention.first_seen(chunk.start) // limits["block_size"] :]:
                named[block] = plan.step
