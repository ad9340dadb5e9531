"""Which slot of the host holds which block, by its key, and which one is given away next. Pure: no memory, no files.

The stores of this package own one. Slots are given away least recently used first.
"""

from collections import OrderedDict

from kvasir_runtime.core.plan import HostChanges


class SlotTable:
    """Slots 0 .. num_slots - 1, each empty, reserved (being written) or holding a block. Every operation is O(1)."""

    __slots__ = ("_added", "_is_watched", "_key_of", "_order", "_removed", "_reserved", "_reset", "_slot_of")

    def __init__(self, num_slots: int, *, is_watched: bool = True) -> None:
        """is_watched: `changes` is called now and then; else it returns None, and nothing is recorded for it."""
        self._is_watched = is_watched
        self._slot_of: dict[bytes, int] = {}
        self._key_of: list[bytes | None] = [None] * num_slots
        self._order: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_slots))
        """All slots that are not reserved, in the order in which they are given away."""
        self._reserved: set[int] = set()
        self._added: set[bytes] = set()
        self._removed: set[bytes] = set()
        self._reset = False

    def __len__(self) -> int:
        return len(self._slot_of)

    def find(self, key: bytes) -> int | None:
        """The slot that holds a block."""
        return self._slot_of.get(key)

    def holder(self, slot: int) -> bytes | None:
        """The key of the block in a slot; None for an empty or reserved one."""
        return self._key_of[slot]

    def touch(self, slot: int) -> None:
        """Give a slot away last."""
        if slot not in self._reserved:
            self._order.move_to_end(slot)

    def reserve(self) -> int | None:
        """A slot to be written, without what it held; None while all are being written."""
        if not self._order:
            return None
        slot, _ = self._order.popitem(last=False)
        self._clear(slot)
        self._reserved.add(slot)
        return slot

    def put(self, slot: int, key: bytes) -> None:
        """A slot holds a block from now on, and is given away last. No other slot holds that block any more."""
        self._clear(slot)
        other = self._slot_of.get(key)
        if other is not None:
            self.drop(other)
        self._reserved.discard(slot)
        self._order[slot] = None
        self._order.move_to_end(slot)
        self._key_of[slot] = key
        self._slot_of[key] = slot
        if self._is_watched:
            self._removed.discard(key)
            self._added.add(key)

    def drop(self, slot: int) -> None:
        """A slot holds nothing of use any more, and is given away first."""
        self._clear(slot)
        self._reserved.discard(slot)
        self._order[slot] = None
        self._order.move_to_end(slot, last=False)

    def reset(self, num_slots: int) -> None:
        """So many empty slots."""
        self.__init__(num_slots, is_watched=self._is_watched)  # type: ignore[misc]
        self._reset = self._is_watched

    def changes(self) -> HostChanges | None:
        """What it holds and did not at the last call, and the reverse; None for no difference."""
        if not (self._added or self._removed or self._reset):
            return None
        changes = HostChanges(added=tuple(self._added), removed=tuple(self._removed), reset=self._reset)
        self._added, self._removed, self._reset = set(), set(), False
        return changes

    def _clear(self, slot: int) -> None:
        key = self._key_of[slot]
        if key is not None:
            self._key_of[slot] = None
            del self._slot_of[key]
            if self._is_watched:
                self._added.discard(key)
                self._removed.add(key)
