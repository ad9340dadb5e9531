"""Any sequence of calls against a plain model: who holds what, who is next, and what changed."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvasir_runtime.core.plan import HostChanges
from kvasir_runtime.runner.kv_offload.slot_table import SlotTable

SLOTS = 5
KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f", b"g"])


class TableMachine(RuleBasedStateMachine):
    """Model: slots in the order in which they are given away, what each holds, and what a reader was shown."""

    def __init__(self):
        super().__init__()
        self.table = SlotTable(SLOTS)
        self.order: list[int] = list(range(SLOTS))
        self.holds: dict[int, bytes] = {}
        self.shown: set[bytes] = set()

    @rule()
    def reserve(self):
        slot = self.table.reserve()
        assert slot == (self.order.pop(0) if self.order else None)
        self.holds.pop(slot, None)

    @rule(slot=st.integers(0, SLOTS - 1), key=KEYS)
    def put(self, slot, key):
        self.table.put(slot, key)
        for other, held in list(self.holds.items()):
            if held == key and other != slot:
                del self.holds[other]
                self.order.remove(other)
                self.order.insert(0, other)
        self.holds[slot] = key
        if slot in self.order:
            self.order.remove(slot)
        self.order.append(slot)

    @rule(slot=st.integers(0, SLOTS - 1))
    def drop(self, slot):
        self.table.drop(slot)
        self.holds.pop(slot, None)
        if slot in self.order:
            self.order.remove(slot)
        self.order.insert(0, slot)

    @precondition(lambda self: self.order)
    @rule(pick=st.integers(0, 99))
    def touch(self, pick):
        slot = self.order[pick % len(self.order)]
        self.table.touch(slot)
        self.order.remove(slot)
        self.order.append(slot)

    @rule(num_slots=st.just(SLOTS))
    def reset(self, num_slots):
        self.table.reset(num_slots)
        self.order, self.holds = list(range(num_slots)), {}

    @rule()
    def read_changes(self):
        changes = self.table.changes() or HostChanges()
        self.shown = ((set() if changes.reset else self.shown) - set(changes.removed)) | set(changes.added)
        assert self.shown == set(self.holds.values())
        assert self.table.changes() is None

    @invariant()
    def every_key_is_found_where_it_is(self):
        assert len(self.table) == len(self.holds)
        for slot, key in self.holds.items():
            assert self.table.find(key) == slot
            assert self.table.holder(slot) == key


TableMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestSlotTable = TableMachine.TestCase
