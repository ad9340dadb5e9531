"""Any sequence of calls leaves the pool whole: hypothesis plays holders, plans in flight and prefix hits."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvasir_runtime.core.blocks import BlockPool

CAPACITY = 7


class PoolMachine(RuleBasedStateMachine):
    """Model: holders with their tables, releases that wait for a step, and what was published where."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(CAPACITY)
        self.tables: list[list[int]] = []
        self.leaving: list[tuple[int, list[int]]] = []
        self.names: dict[bytes, int] = {}
        self.found: set[bytes] = set()
        self.launched = self.collected = 0

    def held(self):
        return Counter(block for blocks in [*self.tables, *(blocks for _, blocks in self.leaving)] for block in blocks)

    @invariant()
    def every_pinned_block_counts_for_one_tenant(self):
        assert sum(self.pool.pinned_by.values()) == self.pool.num_pinned
        assert 0 not in self.pool.pinned_by.values()

    @rule(count=st.integers(0, CAPACITY + 1))
    def take(self, count):
        held = self.held()
        assert self.pool.can_take(count) == (count <= CAPACITY - len(held))
        if self.pool.can_take(count):
            blocks = self.pool.take(count)
            assert not set(blocks) & set(held)
            assert len(set(blocks)) == count
            self.names = {name: block for name, block in self.names.items() if block not in blocks}
            self.found &= set(self.names)
            self.tables.append(blocks)

    @precondition(lambda self: self.tables)
    @rule(pick=st.integers(0, 99), name=st.sampled_from([b"a", b"b", b"c", b"d", b"e"]))
    def publish(self, pick, name):
        table = self.tables[pick % len(self.tables)]
        if table:
            block = table[pick % len(table)]
            fresh = name not in self.names and block not in self.names.values()
            assert self.pool.publish(block, name) == fresh
            if fresh:
                self.names[name] = block

    @rule(chain=st.lists(st.sampled_from([b"a", b"b", b"c", b"d", b"e"]), unique=True), limit=st.integers(0, 5))
    def hit(self, chain, limit):
        want = []
        for name in chain[:limit]:
            if name not in self.names:
                break
            want.append(self.names[name])
        assert self.pool.lookup(chain, limit) == [want]
        revived = sum(1 for block in want if block not in self.held())
        assert self.pool.share(want) == revived
        self.found.update(chain[: len(want)])
        self.tables.append(want)

    @precondition(lambda self: self.tables)
    @rule(pick=st.integers(0, 99))
    def fork(self, pick):
        """Parts of one request share its blocks; nobody found them."""
        blocks = list(self.tables[pick % len(self.tables)])
        assert self.pool.share(blocks, hit=False) == 0
        self.tables.append(blocks)

    @precondition(lambda self: self.tables)
    @rule(pick=st.integers(0, 99))
    def retract(self, pick):
        blocks = self.tables[pick % len(self.tables)]
        self.pool.retract(blocks)
        self.names = {name: block for name, block in self.names.items() if block not in blocks}
        self.found &= set(self.names)

    @precondition(lambda self: self.tables)
    @rule(pick=st.integers(0, 99), in_flight=st.booleans())
    def release(self, pick, in_flight):
        blocks = self.tables.pop(pick % len(self.tables))
        if in_flight:
            self.launched += 1
            self.pool.release(blocks, self.launched)
            self.leaving.append((self.launched, blocks))
        else:
            self.pool.release(blocks)

    @rule()
    def settle(self):
        if self.collected < self.launched:
            self.collected += 1
            self.pool.settle(self.collected)
            self.leaving = [(step, blocks) for step, blocks in self.leaving if step > self.collected]

    @invariant()
    def every_block_is_in_exactly_one_state(self):
        held = self.held()
        cached = {block for block in self.names.values() if block not in held}
        assert self.pool.num_pinned == len(held)
        assert self.pool.num_cached == len(cached)
        assert self.pool.num_free == CAPACITY - len(held) - len(cached)
        assert all(self.pool.references(block) == held[block] for block in range(CAPACITY))
        assert self.pool.num_leaving == sum(len(blocks) for _, blocks in self.leaving)
        assert self.pool.num_reused == len(self.found)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase
