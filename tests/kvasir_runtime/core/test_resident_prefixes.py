"""The digest holds what a prefix hit would find, and every change of it reaches the readers that follow."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvasir_api.prefix_digest import MOST_ENTRIES, FollowedPrefixes, split
from kvasir_runtime.client.prefix_log import PrefixLog
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.resident_prefixes import ResidentPrefixes


def resident(pool, *hashes):
    blocks = pool.take(len(hashes))
    for block, block_hash in zip(blocks, hashes, strict=True):
        pool.publish(block, block_hash)
    return blocks


def named(number):
    return number.to_bytes(8)


def members(prefixes):
    prefixes.changes()
    return split(prefixes.whole().hashes)


def test_pieces_follow_blocks_by_proportion():
    pool = BlockPool(8)
    prefixes = ResidentPrefixes(pool)
    resident(pool, b"a", b"b", b"c", b"d")
    prefixes.note([named(n) for n in (1, 2, 3)], (b"a", b"b", b"c", b"d", b"e", b"f"))
    assert set(members(prefixes)) == {named(1), named(2)}


def test_evicted_prefixes_leave_and_come_again():
    pool = BlockPool(2)
    prefixes = ResidentPrefixes(pool)
    pool.release(resident(pool, b"a", b"b"))
    prefixes.note([named(1), named(2)], (b"a", b"b"))
    assert set(split(prefixes.changes().hashes)) == {named(1), named(2)}
    assert prefixes.changes() is None
    blocks = pool.take(1)
    gone = prefixes.changes()
    assert (gone.sequence, gone.hashes, gone.whole) == (3, named(2), False)
    pool.publish(blocks[0], b"b")
    prefixes.note([named(1), named(2)], (b"a", b"b"))
    assert (prefixes.changes().hashes, prefixes.whole().sequence) == (named(2), 4)


def test_a_prompt_without_full_block_or_piece_is_not_listed():
    prefixes = ResidentPrefixes(BlockPool(2))
    prefixes.note((), (b"a",))
    prefixes.note((named(1),), ())
    assert prefixes.changes() is None


def test_what_is_forgotten_or_retracted_leaves():
    pool = BlockPool(8)
    prefixes = ResidentPrefixes(pool)
    tenants = [bytes(24) + mark * 8 for mark in (b"x", b"y", b"z")]
    blocks = resident(pool, *tenants)
    for number, block_hash in enumerate(tenants):
        prefixes.note([named(number)], [block_hash])
    pool.forget(b"x" * 8)
    assert members(prefixes) == [named(1), named(2)]
    pool.retract(blocks[1:2])
    assert members(prefixes) == [named(2)]
    pool.forget()
    assert members(prefixes) == []


def test_it_is_bounded_and_keeps_what_was_computed_last():
    pool = BlockPool(2)
    prefixes = ResidentPrefixes(pool)
    resident(pool, b"a", b"b")
    prefixes.note([named(number) for number in range(3 * MOST_ENTRIES)], (b"a",))
    prefixes.note([named(1 << 40)], (b"b",))
    listed = members(prefixes)
    assert len(listed) == MOST_ENTRIES
    assert listed[-2:] == [named(0), named(1 << 40)]
    prefixes.note([named(0)], (b"a",))
    assert members(prefixes)[-1] == named(0)


class ReadersMachine(RuleBasedStateMachine):
    """A pool under any load; readers that read now and then, and lose documents, know its set or know nothing."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(4)
        self.prefixes = ResidentPrefixes(self.pool)
        self.log = PrefixLog(most_changes=5)
        self.readers = [FollowedPrefixes() for _ in range(2)]
        self.held = []
        self.stands_for = {}
        self.prefixes.changes()
        self.log.take(self.prefixes.whole())

    @rule(chain=st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True), keeps=st.booleans())
    def compute(self, chain, keeps):
        if not self.pool.can_take(len(chain)):
            return
        blocks = self.pool.take(len(chain))
        for block, name in zip(blocks, chain, strict=True):
            self.pool.publish(block, bytes([name]) * 32)
        self.prefixes.note([named(name) for name in chain], [bytes([name]) * 32 for name in chain])
        self.stands_for.update({named(name): bytes([name]) * 32 for name in chain})
        if keeps:
            self.held.append(blocks)
        else:
            self.pool.release(blocks)

    @rule()
    def release(self):
        if self.held:
            self.pool.release(self.held.pop())

    @rule(name=st.integers(0, 9))
    def forget(self, name):
        self.pool.forget(bytes([name]) * 8)

    @rule(number=st.integers(0, 1), is_lost=st.booleans())
    def read(self, number, is_lost):
        changes = self.prefixes.changes()
        if changes is not None:
            self.log.take(changes)
        reader = self.readers[number]
        document = self.log.digest(reader.after)
        if is_lost:
            return
        assert reader.take("pod", document)
        assert reader.hashes == {route for route, name in self.stands_for.items() if self.pool.is_resident(name)}

    @invariant()
    def no_document_is_larger_than_the_set_or_the_ring(self):
        document = self.log.digest(0)
        assert len(document.added + document.removed) <= 8 * max(document.entries, 5)


TestReaders = ReadersMachine.TestCase
