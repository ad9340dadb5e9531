"""A second tier without bytes: it remembers which tokens a block or a state held, is slow, and loses what it likes.

What a plan copies is read and written when the copy ends, steps later, so that a block that changes hands meanwhile
changes an answer or fails at once.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Protocol

from kvasir_runtime.core.plan import HostChanges, StepPlan, TransferResults


class Blocks(Protocol):
    """The memory of the device."""

    def read_block(self, block: int, group: int) -> tuple[int, ...] | None:
        """Its tokens, or those that went into the state which it holds; None where one is missing."""

    def write_block(self, block: int, group: int, content: tuple[int, ...] | None) -> None:
        """None for a block of undefined content."""


@dataclass(slots=True, kw_only=True)
class FakeHost:
    """delay: collected plans after which copies end. damaged: keys that cannot be loaded."""

    num_slots: int
    delay: int = 0
    damaged: set[bytes] = field(default_factory=set)
    kept: OrderedDict[bytes, tuple[int, ...]] = field(default_factory=OrderedDict)
    queue: deque[tuple[int, StepPlan]] = field(default_factory=deque)
    touched: set[int] = field(default_factory=set)
    """Blocks that are being copied."""
    num_loaded: int = 0
    _shown: set[bytes] = field(default_factory=set)
    _collected: int = 0
    _through: int = -1
    _erased: bool = False

    def lose(self, pick: int, *, damaged: bool) -> None:
        """Of the keys that are kept one is gone, or cannot be loaded any more."""
        if self.kept:
            key = list(self.kept)[pick % len(self.kept)]
            if damaged:
                self.damaged.add(key)
            else:
                del self.kept[key]

    def submit(self, plan: StepPlan, blocks: Blocks) -> None:
        """Takes a plan's copies; a block that is stored must be whole now and stay as it is."""
        for store in plan.stores:
            content = blocks.read_block(store.block, _group(store.key))
            assert content is not None, "a block is stored before it is computed"
        for load in plan.loads:
            assert load.block not in self.touched, "a block is loaded while it is copied"
            blocks.write_block(load.block, _group(load.key), None)
        self.queue.append((self._collected, plan))
        self._touch()

    def completed(self, blocks: Blocks) -> TransferResults:
        """What has ended by now."""
        self._collected += 1
        loaded, num_stored = [], 0
        while self.queue and self.queue[0][0] + self.delay < self._collected:
            _, plan = self.queue.popleft()
            self._through = plan.step
            for key in plan.drops:
                self.kept.pop(key, None)
            for store in plan.stores:
                num_stored += store.key not in self.kept
                content = blocks.read_block(store.block, _group(store.key))
                assert content is not None, "a block is overwritten while it is copied"
                self.kept[store.key] = content
                self.kept.move_to_end(store.key)
                while len(self.kept) > self.num_slots:
                    self.kept.popitem(last=False)
            for load in plan.loads:
                content = self.kept.get(load.key)
                if content is None or load.key in self.damaged:
                    self.kept.pop(load.key, None)
                    continue
                loaded.append(load.block)
                blocks.write_block(load.block, _group(load.key), content)
        self.num_loaded += len(loaded)
        self._touch()
        return TransferResults(through=self._through, loaded=tuple(loaded), num_stored=num_stored, load_s=0.001)

    def changes(self) -> HostChanges | None:
        """Since the last call."""
        added, removed = set(self.kept) - self._shown, self._shown - set(self.kept)
        self._shown = set(self.kept)
        reset, self._erased = self._erased, False
        if not (added or removed or reset):
            return None
        if reset:
            added = set(self.kept)
        return HostChanges(added=tuple(sorted(added)), removed=tuple(sorted(removed)), reset=reset)

    def forget(self) -> None:
        """Holds nothing any more."""
        self.kept.clear()
        self._erased = True

    def _touch(self) -> None:
        self.touched = {store.block for _, plan in self.queue for store in plan.stores}
        self.touched |= {load.block for _, plan in self.queue for load in plan.loads}


def _group(key: bytes) -> int:
    return key[-1]
