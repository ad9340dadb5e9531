"""A second tier without bytes: it remembers which tokens a block held, is slow, and loses what it likes.

What a plan copies is read and written when the copy ends, steps later, so that a block that changes hands meanwhile
changes an answer or fails at once.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from kvasir_runtime.core.plan import HostChanges, StepPlan, TransferResults


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

    def submit(self, plan: StepPlan, cache: dict[int, int], block_size: int) -> None:
        """Takes a plan's copies; a block that is stored must be whole now and stay as it is."""
        for store in plan.stores:
            assert -1 not in self._content(cache, store.block, block_size), "a block is stored before it is computed"
        targets = [load.block for load in plan.loads]
        assert not self.touched & set(targets), "a block is loaded while it is copied"
        for block in targets:
            for offset in range(block_size):
                cache[block * block_size + offset] = -1
        self.queue.append((self._collected, plan))
        self._touch()

    def completed(self, cache: dict[int, int], block_size: int) -> TransferResults:
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
                self.kept[store.key] = self._content(cache, store.block, block_size)
                self.kept.move_to_end(store.key)
                while len(self.kept) > self.num_slots:
                    self.kept.popitem(last=False)
            for load in plan.loads:
                content = self.kept.get(load.key)
                if content is None or load.key in self.damaged:
                    self.kept.pop(load.key, None)
                    continue
                loaded.append(load.block)
                for offset, token in enumerate(content):
                    cache[load.block * block_size + offset] = token
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

    def _content(self, cache: dict[int, int], block: int, block_size: int) -> tuple[int, ...]:
        return tuple(cache.get(block * block_size + offset, -1) for offset in range(block_size))
