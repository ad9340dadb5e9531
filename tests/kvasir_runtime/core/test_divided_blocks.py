"""A pool for each data-parallel rank: which one a request comes to, and that no block is ever at another."""

import random
from collections import Counter
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fakes.model import FakeModel
from fakes.random_limits import all_blocks_lie_at_their_ranks
from fakes.runner import FakeRunner
from fakes.serving import Serving, request
from kvasir_api.cache_groups import FULL, LayerAttention
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.divided_blocks import CLOSED, DividedBlockPool, RankRoom, chosen, new_pool
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan_builder import PlanBuilder
from kvasir_runtime.core.prefill_shares import PromptPart
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.core.speculation.speculation import _have_room
from kvasir_runtime.core.step_prompts import PromptInStep, compute_prompts
from kvasir_runtime.wire import BeamSearchConfig

RANKS, EACH = 3, 4
ENDLESS = tuple(range(1, 61))
LIMITS = Limits(num_blocks=16, block_size=4, max_batch_tokens=32, max_sequences=8, max_model_len=256, data_ranks=2)


def room(available: int, found: int = 0, revived: int = 0, *, needed: int = 4, grows: bool = True) -> RankRoom:
    return RankRoom(claimed=needed - found + revived, available=available, found=found, grows=grows)


@pytest.mark.parametrize(
    ("rooms", "want"),
    [
        ([room(5), room(5)], 0),
        ([room(5), room(6)], 1),
        ([room(5, found=2), room(6)], 0),
        ([room(3, found=2), room(6)], 0),
        ([room(3, found=2), room(8)], 1),  # the prefix is computed again where there is more room
        ([room(2, found=2), room(4, found=0)], 0),  # as much room with it: the prefix decides
        ([room(10, found=8, revived=8, needed=12), room(15, needed=12)], 1),  # what it finds is all that there is
        ([room(20, found=8, grows=False), room(9)], 1),  # what runs there will grow
        ([room(1), room(2)], 1),  # neither: it waits for the one that has most
    ],
)
def test_a_request_comes_to_the_rank_with_most_room_beside_its_prefix(rooms: list[RankRoom], want: int) -> None:
    assert chosen(rooms) == want


def test_a_request_that_waits_stays_at_its_rank_until_one_has_room() -> None:
    assert chosen([room(1), room(2)], waits_at=0) == 0
    assert chosen([room(1, grows=False), room(2)], waits_at=0) == 0
    assert chosen([room(3), room(4)], waits_at=0) == 1
    assert chosen([CLOSED, room(3)], waits_at=0) == 0
    assert chosen([CLOSED, room(-100)]) == 1


def test_one_rank_has_the_pool_of_one_process() -> None:
    pool = new_pool(Limits(num_blocks=7, block_size=4, max_batch_tokens=8, max_sequences=2, max_model_len=16))
    assert type(pool) is BlockPool
    assert pool.of_rank(0) is pool


def test_ranks_have_equally_many_blocks() -> None:
    with pytest.raises(ValueError, match=r"^num_blocks is 7, expected a multiple of the 2 ranks$"):
        DividedBlockPool(7, num_ranks=2)


def test_blocks_are_not_taken_of_all_ranks_together() -> None:
    pool = DividedBlockPool(RANKS * EACH, num_ranks=RANKS)
    for ask in (lambda: pool.take(1), lambda: pool.can_take(1), lambda: pool.lookup([b"a"], 1)):
        with pytest.raises(TypeError):
            ask()


def test_a_request_that_fits_into_no_part_is_refused_though_all_parts_would_hold_it() -> None:
    """8 blocks of 4 tokens at each of two ranks; the last token of an answer needs no place."""
    served = Serving(Scheduler(LIMITS), FakeRunner(block_size=4, num_blocks=16), 1)
    served.submit(request("long", range(1, 34), max_tokens=8))
    assert served.answers["long"].reason == "error"
    served.submit(request("whole", range(1, 33), max_tokens=8))
    served.finish()
    assert (len(served.answers["whole"].tokens), served.answers["whole"].reason) == (1, "length")


def test_a_common_prefix_is_computed_once_at_each_rank() -> None:
    """Two at once come to both ranks and compute it, none waiting for the other; those behind them find it there."""
    prefix = tuple(range(1, 17))
    served = Serving(Scheduler(LIMITS), FakeRunner(block_size=4, num_blocks=16), 1)
    cached = dict[str, tuple[int, int | None]]()
    for numbers in ((0, 1), (2, 3)):
        for number in numbers:
            served.submit(request(f"r{number}", (*prefix, 20 + number), max_tokens=3, ignore_eos=True))
        for _ in range(6):
            served.step()
            running = served.scheduler._running.items()
            cached |= {name: (kind.request.data_rank, kind.request.cached_tokens) for name, kind in running}
    assert sorted((cached["r0"], cached["r1"])) == [(0, 0), (1, 0)]
    assert sorted((cached["r2"], cached["r3"])) == [(0, 16), (1, 16)]
    served.finish()


def test_a_burst_computes_its_prefix_once_at_each_rank() -> None:
    prefix = tuple(range(1, 17))
    limits = msgspec.structs.replace(LIMITS, num_blocks=80, max_batch_tokens=256)
    served = Serving(Scheduler(limits), FakeRunner(block_size=4, num_blocks=80), 1)
    for number in range(6):
        served.submit(request(f"r{number}", (*prefix, 20 + number), max_tokens=6, ignore_eos=True))
    cached = dict[str, tuple[int, int | None]]()
    for _ in range(4):
        served.step()
        running = served.scheduler._running.items()
        cached |= {name: (kind.request.data_rank, kind.request.cached_tokens) for name, kind in running}
    assert sorted(cached.values()) == [(0, 0), (0, 16), (0, 16), (1, 0), (1, 16), (1, 16)]
    served.finish()


def test_a_request_alone_comes_back_to_the_rank_of_its_prefix() -> None:
    """Though what was computed there takes a little more room than is taken at the other one."""
    served = Serving(Scheduler(LIMITS), FakeRunner(block_size=4, num_blocks=16), 1)
    for name in ("a", "b"):
        served.submit(request(name, tuple(range(1, 18)), max_tokens=8, ignore_eos=True))
        while name not in served.scheduler._running:
            served.step()
        kind = served.scheduler._running[name]
        found = kind.request.data_rank, kind.request.cached_tokens
        while served.scheduler._running and len(kind.sequence.tokens) < 20:
            served.step()
    assert found == (0, 16)
    served.finish()


def test_a_request_loses_its_blocks_to_those_of_its_own_rank_alone() -> None:
    """Of two that grow at rank 0 the later one gives way, not the last of all, which has its blocks at rank 1."""
    served = Serving(Scheduler(LIMITS), FakeRunner(model=FakeModel(table=ENDLESS), block_size=4, num_blocks=16), 1)
    running = served.scheduler._running
    for name, length, max_tokens, rank in (("a", 13, 30, 0), ("b", 21, 3, 1), ("c", 5, 30, 0), ("d", 5, 30, 1)):
        while name == "d" and "b" in running:
            served.step()
        served.submit(request(name, [ord(name) - 90] * length, max_tokens=max_tokens))
        served.step()
        assert running[name].request.data_rank == rank
    assert list(running) == ["a", "c", "d"]
    kinds = dict(running)
    while not any(kind.request.preemptions for kind in kinds.values()):
        served.step()
    assert [(name, kind.request.preemptions) for name, kind in kinds.items()] == [("a", 0), ("c", 1), ("d", 0)]
    served.finish()


def test_one_that_waits_for_room_at_a_rank_leaves_the_others_to_those_behind_it() -> None:
    """A prompt of 7 of 8 blocks waits for rank 1, which has most room, and what comes later passes it at rank 0."""
    served = Serving(Scheduler(LIMITS), FakeRunner(model=FakeModel(table=ENDLESS), block_size=4, num_blocks=16), 1)
    running = served.scheduler._running
    for name, length, max_tokens in (("a", 17, 9), ("b", 9, 5), ("long", 25, 2), ("small", 3, 6), ("next", 3, 2)):
        served.submit(request(name, [ord(name[0]) - 90] * length, max_tokens=max_tokens, ignore_eos=True))
        served.step()
    assert {name: kind.request.data_rank for name, kind in running.items()} == {"a": 0, "b": 1, "small": 0}
    while "long" not in running:
        served.step()
    assert ("next" in running, running["long"].request.data_rank) == (False, 1)
    served.finish()


def test_small_requests_without_end_keep_no_long_one_waiting() -> None:
    """They come as quickly as they are answered, and the long one needs a whole rank."""
    served = Serving(Scheduler(LIMITS), FakeRunner(model=FakeModel(table=ENDLESS), block_size=4, num_blocks=16), 1)
    draw, number = random.Random(3), 0
    while number < 20 or not served.answers["long"].tokens:
        if number == 19:
            served.submit(request("long", [50] * 29, max_tokens=2, ignore_eos=True))
        number += 1
        served.submit(request(f"s{number}", [20 + number % 7] * 9, max_tokens=draw.randint(2, 8), ignore_eos=True))
        while len(served.scheduler._waiting) > 3:
            served.step()
        assert number < 60
    served.finish()


def test_a_request_that_fills_a_rank_is_admitted_where_none_runs_whatever_is_expected_of_it() -> None:
    """Others run at the other rank without end, and a forecast of what answers may take counts a block too much."""
    limits = msgspec.structs.replace(LIMITS, num_blocks=32, max_batch_tokens=64)
    served = Serving(Scheduler(limits), FakeRunner(model=FakeModel(table=ENDLESS), block_size=4, num_blocks=32), 1)
    for _ in range(32):
        served.scheduler._admission.lengths.add(20)
    served.submit(request("a", [3] * 4, max_tokens=25, ignore_eos=True))
    served.step()
    served.submit(request("whole", [4] * 45, max_tokens=20, ignore_eos=True))
    for number in range(30):
        served.submit(request(f"s{number}", [5 + number % 7] * 2, max_tokens=18, ignore_eos=True))
        served.step()
    assert served.answers["whole"].tokens
    served.finish()


@pytest.mark.parametrize("short_of_blocks", ["preempted", "out_of_blocks"])
def test_a_rank_without_blocks_stops_admission_there_alone(short_of_blocks: str) -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.submit(request("a", [1, 2, 3], max_tokens=2), 0.0)
    builder = PlanBuilder(step=1, budget=32)
    getattr(builder, short_of_blocks).add(0)
    due = scheduler._admission.due(builder, [], scheduler._rows.free, now=0.0, collected=0, token_s=0.0)
    assert [kind.request.data_rank for kind, _ in due] == [1]


@pytest.mark.parametrize(("share", "want", "num_left"), [(8, [12, 13], 2), (4, [12], 3)])
def test_a_share_that_changes_takes_and_gives_back_blocks_of_its_rank(
    share: int, want: list[int], num_left: int
) -> None:
    """Of a prompt that holds a block, or two, of the last rank for what it was to compute, of four tokens each."""
    pool, given = DividedBlockPool(16, num_ranks=4), list[list[int]]()
    held = pool.of_rank(3).take(3 - len(want))
    state = SimpleNamespace(data_rank=3, billed_blocks=0, bill=lambda *_: None, request=SimpleNamespace(tenant=""))
    kind = SimpleNamespace(
        request=state,
        sequence=SimpleNamespace(tokens=range(20)),
        need=lambda count: count // 4,
        advance=lambda _, blocks: given.append(blocks),
    )
    prompt = PromptInStep(kind, held, 4 * len(held), PromptPart(20, 0), may_grow=True)  # type: ignore[arg-type]
    compute_prompts(PlanBuilder(step=1, budget=share), [prompt], pool, 0.0)
    assert given == [want]
    assert [pool.of_rank(rank).num_available for rank in range(4)] == [4, 4, 4, num_left]


def test_room_for_drafts_is_that_of_each_rank() -> None:
    pool = new_pool(LIMITS)
    kinds = [SimpleNamespace(request=SimpleNamespace(data_rank=rank), need=lambda _: 2) for rank in (0, 1, 1)]
    assert _have_room(kinds, 8, pool)
    pool.of_rank(1).take(5)
    assert not _have_room(kinds, 8, pool)
    assert _have_room(kinds[:2], 8, pool)


def test_beams_are_as_long_as_one_rank_has_blocks_for() -> None:
    """Three of them, which have nothing in common but the prompt's one block, with seven more."""
    served = Serving(Scheduler(LIMITS), FakeRunner(model=FakeModel(table=ENDLESS), block_size=4), 1)
    beam = BeamSearchConfig(width=3, answers=("b", "b2", "b3"))
    served.submit(request("b", [3, 4, 5, 6], max_tokens=40, beam=beam, ignore_eos=True))
    served.finish()
    assert [len(served.answers[name].tokens) for name in beam.answers] == [9] * 3


@pytest.mark.parametrize("attentions", [(FULL,), (FULL, LayerAttention("window", 6))], ids=["full", "window"])
def test_all_blocks_of_any_traffic_lie_at_their_ranks(attentions: tuple[LayerAttention, ...]) -> None:
    """Prompts in shares that grow and shrink, of tenants with prefixes of their own, and answers that grow."""
    limits = msgspec.structs.replace(LIMITS, num_blocks=60, data_ranks=3, max_batch_tokens=24, attentions=attentions)
    runner = FakeRunner(block_size=4, num_blocks=60, max_batch_tokens=24, attentions=attentions)
    served = Serving(Scheduler(limits), runner, 2)
    draw, lengths = random.Random(5), dict[str, int]()
    for number in range(150):
        prompt = [*range(1, draw.choice((1, 9, 21))), *draw.choices(range(30, 60), k=draw.randint(1, 45))]
        lengths[f"r{number}"] = len(prompt)
        served.submit(request(f"r{number}", prompt, max_tokens=draw.randint(1, 20), salt=draw.choice((b"a", b"b"))))
        for _ in range(draw.randint(0, 3)):
            served.step()
            all_blocks_lie_at_their_ranks(served.scheduler)
    served.finish()
    refused = {name for name, answer in served.answers.items() if answer.reason not in ("stop", "length")}
    assert refused == {name for name, length in lengths.items() if length >= limits.max_sequence_tokens}
    assert served.scheduler.report(RuntimeState()).totals.preemptions > 0 or len(attentions) > 1


class PoolMachine(RuleBasedStateMachine):
    """Model: sequences with rank and table, releases that wait for a step, and what was published at each rank."""

    def __init__(self):
        super().__init__()
        self.pool = DividedBlockPool(RANKS * EACH, num_ranks=RANKS)
        self.tables: list[tuple[int, list[int]]] = []
        self.leaving: list[tuple[int, list[int]]] = []
        self.names: dict[tuple[int, bytes], int] = {}
        self.launched = self.collected = 0

    def held(self):
        tables = [table for _, table in [*self.tables, *self.leaving]]
        return Counter(block for table in tables for block in table)

    @rule(rank=st.integers(0, RANKS - 1), count=st.integers(0, EACH + 1), tenant=st.sampled_from(["a", "b"]))
    def take(self, rank, count, tenant):
        pool, held = self.pool.of_rank(rank), self.held()
        own = sum(block // EACH == rank for block in held)
        assert pool.can_take(count) == (count <= EACH - own)
        if pool.can_take(count):
            blocks = pool.take(count, tenant)
            assert len(set(blocks) - set(held)) == count
            self.names = {name: block for name, block in self.names.items() if block not in blocks}
            self.tables.append((rank, blocks))

    @precondition(lambda self: self.tables)
    @rule(pick=st.integers(0, 99), name=st.sampled_from([b"a", b"b", b"c"]))
    def publish(self, pick, name):
        rank, table = self.tables[pick % len(self.tables)]
        if table:
            block = table[pick % len(table)]
            fresh = (rank, name) not in self.names and block not in self.names.values()
            assert self.pool.publish(block, name) == fresh
            if fresh:
                self.names[rank, name] = block

    @rule(rank=st.integers(0, RANKS - 1), chain=st.lists(st.sampled_from([b"a", b"b", b"c"]), unique=True))
    def hit(self, rank, chain):
        """What another rank has published is not found."""
        want = []
        for name in chain:
            if (rank, name) not in self.names:
                break
            want.append(self.names[rank, name])
        assert self.pool.of_rank(rank).lookup(chain, 5) == [want]
        revived = sum(1 for block in want if block not in self.held())
        assert self.pool.share(want, payer="a") == revived
        self.tables.append((rank, want))
        for name in chain:
            assert self.pool.is_resident(name) == any((other, name) in self.names for other in range(RANKS))

    @precondition(lambda self: self.tables)
    @rule(pick=st.integers(0, 99), in_flight=st.booleans(), retract=st.booleans())
    def release(self, pick, in_flight, retract):
        _, blocks = self.tables.pop(pick % len(self.tables))
        if retract:
            self.pool.retract(blocks)
            self.names = {name: block for name, block in self.names.items() if block not in blocks}
        self.launched += in_flight
        self.pool.release(blocks, self.launched if in_flight else None)
        if in_flight:
            self.leaving.append((self.launched, blocks))

    @rule()
    def settle(self):
        self.collected = min(self.collected + 1, self.launched)
        self.pool.settle(self.collected)
        self.leaving = [(step, blocks) for step, blocks in self.leaving if step > self.collected]

    @rule()
    def forget(self):
        self.pool.forget()
        self.names.clear()

    @invariant()
    def every_block_is_in_one_state_at_its_own_rank(self):
        held = self.held()
        assert all(block // EACH == rank for rank, table in self.tables for block in table)
        cached = {block for block in self.names.values() if block not in held}
        for rank in range(RANKS):
            pool, own = self.pool.of_rank(rank), range(rank * EACH, (rank + 1) * EACH)
            assert pool.num_pinned == sum(block in held for block in own)
            assert pool.num_cached == len(cached.intersection(own))
            assert pool.num_free == EACH - pool.num_pinned - pool.num_cached
        assert (self.pool.num_pinned, self.pool.num_cached) == (len(held), len(cached))
        assert self.pool.num_free == self.pool.num_available - len(cached) == RANKS * EACH - len(held) - len(cached)
        assert sum(self.pool.pinned_by.values()) == self.pool.num_pinned
        assert self.pool.num_leaving == sum(len(blocks) for _, blocks in self.leaving)
        assert all(self.pool.references(block) == held[block] for block in range(RANKS * EACH))


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestDividedPool = PoolMachine.TestCase
