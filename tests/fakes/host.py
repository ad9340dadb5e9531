"""A second tier without bytes: it remembers which tokens a block or a state held, is slow, and loses what it likes.

What a plan copies is read and written when the copy ends, steps later, so that a block that changes hands meanwhile
changes an answer or fails at once.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from kvasir_runtime.core.plan import BlockFetch, FetchResult, HostChanges, StepPlan, TransferResults


class Blocks(Protocol):
    """The memory of the device."""

    def read_block(self, block: int, group: int) -> tuple[int, ...] | None:
        """Its tokens, or those that went into the state which it holds; None where one is missing."""

    def write_block(self, block: int, group: int, content: tuple[int, ...] | None) -> None:
        """None for a block of undefined content."""


@dataclass(slots=True, kw_only=True)
class FakeHost:
    """delay: collected plans after which copies end. damaged: keys that cannot be loaded.

    peer: what other replicas hold. peer_delay: as delay, of fetches. gives_up: so many blocks come, then the peer
    fails; below 0 all come. peer_remembers: peer gets all that is kept here. cancelled: numbers of fetches
    that were to end before.
    """

    num_slots: int
    delay: int = 0
    damaged: set[bytes] = field(default_factory=set)
    kept: OrderedDict[bytes, tuple[int, ...]] = field(default_factory=OrderedDict)
    queue: deque[tuple[int, StepPlan]] = field(default_factory=deque)
    touched: set[int] = field(default_factory=set)
    """Blocks that are being copied."""
    num_loaded: int = 0
    peer: dict[bytes, tuple[int, ...]] = field(default_factory=dict)
    peer_delay: int = 0
    gives_up: int = -1
    peer_remembers: bool = False
    fetches: list[tuple[int, BlockFetch]] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
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
        self.fetches += [(self._collected, fetch) for fetch in plan.fetches]
        self.cancelled += plan.cancels
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
                self._keep(store.key, content)
            for load in plan.loads:
                content = self.kept.get(load.key)
                if content is None or load.key in self.damaged:
                    self.kept.pop(load.key, None)
                    continue
                loaded.append(load.block)
                blocks.write_block(load.block, _group(load.key), content)
        self.num_loaded += len(loaded)
        self._touch()
        return TransferResults(
            through=self._through,
            loaded=tuple(loaded),
            num_stored=num_stored,
            load_s=0.001,
            fetched=tuple(self._fetched()),
        )

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

    def _keep(self, key: bytes, content: tuple[int, ...]) -> None:
        if self.peer_remembers:
            self.peer[key] = content
        self.kept[key] = content
        self.kept.move_to_end(key)
        while len(self.kept) > self.num_slots:
            self.kept.popitem(last=False)

    def _fetched(self) -> Iterator[FetchResult]:
        """Fetches that end now."""
        ended = [
            one for one in self.fetches if one[0] + self.peer_delay < self._collected or one[1].number in self.cancelled
        ]
        self.fetches = [one for one in self.fetches if one not in ended]
        for begun, fetch in ended:
            held = [block.key for block in fetch.blocks if block.key in self.peer]
            came = held if self.gives_up < 0 else held[: self.gives_up]
            if begun + self.peer_delay >= self._collected:
                came = []
            for key in came:
                self._keep(key, self.peer[key])
            yield FetchResult(number=fetch.number, keys=tuple(came), seconds=0.001, failed=len(came) < len(held))

    def _touch(self) -> None:
        self.touched = {store.block for _, plan in self.queue for store in plan.stores}
        self.touched |= {load.block for _, plan in self.queue for load in plan.loads}


def with_failing_peer(num_slots: int, pick: int) -> FakeHost:
    """More or less slow, with a peer that has all that was ever computed and may end early."""
    return FakeHost(
        num_slots=num_slots, delay=pick % 3, peer_remembers=True, peer_delay=pick % 4, gives_up=pick % 5 - 1
    )


def _group(key: bytes) -> int:
    return key[-1]
