"""Fetches blocks of other replicas into the host's tier, in threads beside the engine's.

A fetch ends by its deadline, whatever the peer does. What came until then and has the right checksum is kept, so that
another fetch brings the rest alone. No failure here raises: what does not come is computed.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple
from zlib import crc32

from kvasir_api.hashes import block_root, prompt_block_hashes, split_block_hashes
from kvasir_runtime.core.peer_fetches import MOST_FETCHES
from kvasir_runtime.core.plan import BlockFetch, FetchResult
from kvasir_runtime.runner.kv_offload.file_store import FileStore
from kvasir_runtime.runner.kv_offload.renamed_crc import renamed
from kvasir_runtime.runner.kv_transfer.interface import BlockPeer, BlockQuery, Connect, PeerError

LOG = logging.getLogger(__name__)
THREADS: Final = MOST_FETCHES
"""None waits for another one that waits for what a peer computes. They are started when they are needed."""
BATCH_BLOCKS: Final = 16
BATCH_BYTES: Final = 4 * 1024 * 1024
"""Of blocks that a thread holds until it writes them to the file together, which takes its lock once."""
IDLE_S: Final = 30.0
"""Less than a peer keeps a connection without requests."""
MOST_IDLE: Final = 16
MOST_IDLE_OF_PEER: Final = 4
"""Connections without requests, of all peers and of one, whose places are for all replicas."""
CONNECT_S: Final = 2.0
"""For which a peer that is to compute may take to let this replica in: the time of such a fetch is that of computing.
"""
CANCELLED: Final = "no request waits for the blocks any more"
QUIET_S: Final = 60.0
"""Between two log lines about fetches that failed."""


class _Idle(NamedTuple):
    peer: str
    connection: BlockPeer
    since: float


class _Received(NamedTuple):
    """What came of a fetch. damaged: blocks whose checksum is wrong. error: why it ended early, if it did. moved_s:
    seconds in which content was read and kept, without those in which the peer computed it. was_silent: it ended early
    because the peer let its time go by, as it would on another connection. is_late: the peer was computing when
    the time of the fetch was over, which is no failure."""

    keys: tuple[bytes, ...]
    damaged: int
    error: str
    moved_s: float = 0.0
    was_silent: bool = False
    is_late: bool = False


class BlockFetcher:
    """store: of the file, for this object's calls alone. connect: makes connections to peers. changed: is notified when
    a fetch has ended. block_size: in tokens.
    """

    def __init__(
        self,
        store: FileStore,
        connect: Connect,
        *,
        block_size: int,
        changed: threading.Condition,
    ) -> None:
        self._store, self._connect, self._block_size = store, connect, block_size
        self._changed = changed
        self._storing = threading.Lock()
        self._waiting: deque[tuple[BlockFetch, float]] = deque()
        self._ended: list[FetchResult] = []
        self._open: set[int] = set()
        self._cancelled: set[int] = set()
        """Those of the open ones that are to end."""
        self._asked: dict[int, BlockPeer] = {}
        """Connections that are read, by the number of the fetch."""
        self._idle: deque[_Idle] = deque()
        self._threads: list[threading.Thread] = []
        self._warned_at = float("-inf")

    @property
    def is_busy(self) -> bool:
        """Whether a fetch has not ended."""
        return bool(self._open)

    @property
    def has_ended(self) -> bool:
        """Whether `take` returns something."""
        return bool(self._ended)

    def submit(self, fetches: Sequence[BlockFetch]) -> None:
        """Begin some. Each has its time from now on, also while it waits for a thread. With `changed` held."""
        now = time.monotonic()
        self._waiting += ((fetch, now + fetch.within_s) for fetch in fetches)
        self._open.update(fetch.number for fetch in fetches)
        try:
            while len(self._threads) < min(THREADS, len(self._open)):
                self._threads.append(self._started())
        except RuntimeError as error:  # the container may have no more threads
            LOG.warning("a thread that fetches blocks cannot be started: %s", error)
            if not self._threads:
                self._ended += (FetchResult(number=fetch.number, failed=True) for fetch, _ in self._waiting)
                self._open.difference_update(fetch.number for fetch, _ in self._waiting)
                self._waiting.clear()
        self._changed.notify_all()

    def cancel(self, numbers: Sequence[int]) -> None:
        """No request needs the rest of these: each ends at once, with what has come, so that its peer computes no more.
        With `changed` held."""
        for number in self._open.intersection(numbers):
            self._cancelled.add(number)
            if number in self._asked:
                self._asked[number].end()

    def take(self) -> tuple[FetchResult, ...]:
        """Those that ended since the last call. With `changed` held."""
        ended, self._ended = tuple(self._ended), []
        return ended

    def forget_connections(self) -> None:
        """Later fetches make connections of their own: keys have changed."""
        with self._changed:
            idle = list(self._idle)
            self._idle.clear()
        for one in idle:
            one.connection.close()

    def _started(self) -> threading.Thread:
        thread = threading.Thread(target=self._work, name="kv-fetches", daemon=True)
        thread.start()
        return thread

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                fetch, deadline = self._waiting.popleft()
            result = self._result(fetch, deadline)
            with self._changed:
                self._ended.append(result)
                self._open.discard(fetch.number)
                self._cancelled.discard(fetch.number)
                self._changed.notify_all()

    def _result(self, fetch: BlockFetch, deadline: float) -> FetchResult:
        begun = time.monotonic()
        try:
            received = self._fetched(fetch, deadline)
        except Exception:
            LOG.exception("a fetch of blocks from another replica failed")
            received = _Received((), 0, "")
        if received.error and not received.is_late and fetch.number not in self._cancelled:
            self._warn(fetch.peer, received.error)
        elif received.damaged:
            self._warn(fetch.peer, f"{received.damaged} blocks came damaged")
        return FetchResult(
            number=fetch.number,
            keys=received.keys,
            seconds=time.monotonic() - begun if fetch.prefill is None else received.moved_s,
            failed=(bool(received.error) and not received.is_late) or received.damaged > len(received.keys),
        )

    def _fetched(self, fetch: BlockFetch, deadline: float) -> _Received:
        """Over a connection that is there already, else over a new one; the former may have been closed meanwhile."""
        if idle := self._take_idle(fetch.peer):
            received = self._over(idle, fetch, deadline)
            if received.keys or received.damaged or not received.error or received.was_silent:
                return received
        if fetch.number in self._cancelled:
            return _Received((), 0, CANCELLED)
        let_in_by = deadline if fetch.prefill is None else min(deadline, time.monotonic() + CONNECT_S)
        try:
            connection = self._connect(fetch.peer, let_in_by)
        except (OSError, PeerError) as error:
            return _Received((), 0, _words(error))
        return self._over(connection, fetch, deadline)

    def _over(self, connection: BlockPeer, fetch: BlockFetch, deadline: float) -> _Received:
        """Ask, receive, and keep what is right. The connection stays for another fetch where the answer was whole."""
        wanted = self._peer_keys(fetch, connection.hash_salt)
        batch = _Batch(self._store.block_bytes)
        kept: list[bytes] = []
        damaged, error, kept_s, was_silent = 0, "", 0.0, False
        query = BlockQuery(keys=b"".join(wanted))
        if fetch.prefill is not None:
            query = BlockQuery(keys=query.keys, prefill=fetch.prefill, tokens=fetch.tokens, salt=fetch.salt)
        try:
            self._begin(fetch.number, connection)
            connection.ask(query, deadline)
            while (found := connection.receive(batch.place(), deadline)) is not None:
                index, block_crc = found
                if crc32(batch.place(), crc32(wanted[index])) != block_crc:
                    damaged += 1
                    continue
                key, size = fetch.blocks[index].key, self._store.block_bytes
                batch.add(key, renamed(block_crc, key=wanted[index], new_key=key, block_bytes=size))
                if batch.is_full:
                    begun = time.monotonic()
                    kept += self._keep(batch)
                    kept_s += time.monotonic() - begun
        except (OSError, PeerError) as failed:
            error, was_silent = _words(failed), isinstance(failed, TimeoutError)
        with self._changed:
            self._asked.pop(fetch.number, None)  # from here on no other thread ends it
        if error or fetch.number in self._cancelled:
            connection.close()
        else:
            self._put_idle(fetch.peer, connection)
        kept += self._keep(batch)
        is_late = was_silent and fetch.prefill is not None and time.monotonic() >= deadline
        return _Received(tuple(kept), damaged, error, connection.content_s + kept_s, was_silent, is_late)

    def _begin(self, number: int, connection: BlockPeer) -> None:
        """From here on another thread may end the connection."""
        with self._changed:
            if number in self._cancelled:
                raise PeerError(CANCELLED)
            self._asked[number] = connection

    def _peer_keys(self, fetch: BlockFetch, salt: bytes) -> list[bytes]:
        """The blocks of a fetch as the peer knows them."""
        root = block_root(salt=fetch.salt, secret=salt)
        hashes = split_block_hashes(prompt_block_hashes(fetch.tokens, root=root, block_size=self._block_size))
        return [hashes[block.column] + block.key[-1:] for block in fetch.blocks]

    def _keep(self, batch: "_Batch") -> list[bytes]:
        """The keys of those that the file holds now."""
        blocks, crcs = batch.take()
        with self._storing:
            self._store.put(blocks, crcs)
            held = self._store.located([key for key, _ in blocks])
        return [key for (key, _), slot in zip(blocks, held, strict=True) if slot is not None]

    def _take_idle(self, peer: str) -> BlockPeer | None:
        with self._changed:
            old = [one for one in self._idle if one.since + IDLE_S < time.monotonic()]
            found = next((one for one in self._idle if one.peer == peer and one not in old), None)
            self._idle = deque(one for one in self._idle if one not in old and one is not found)
        for one in old:
            one.connection.close()
        return None if found is None else found.connection

    def _put_idle(self, peer: str, connection: BlockPeer) -> None:
        with self._changed:
            is_kept = sum(one.peer == peer for one in self._idle) < MOST_IDLE_OF_PEER
            if is_kept:
                self._idle.append(_Idle(peer, connection, time.monotonic()))
            excess = [self._idle.popleft() for _ in range(len(self._idle) - MOST_IDLE)]
        for one in excess:
            one.connection.close()
        if not is_kept:
            connection.close()

    def _warn(self, peer: str, why: str) -> None:
        now = time.monotonic()
        if now >= self._warned_at + QUIET_S:
            self._warned_at = now
            LOG.warning("blocks of the replica at %s are computed instead: %s", peer, why)


class _Batch:
    """Memory for some blocks, and the keys and checksums of those that are in it."""

    def __init__(self, block_bytes: int) -> None:
        count = max(1, min(BATCH_BLOCKS, BATCH_BYTES // block_bytes))
        memory = memoryview(bytearray(count * block_bytes))
        self._places = [memory[index * block_bytes : (index + 1) * block_bytes] for index in range(count)]
        self._crcs: dict[bytes, int] = {}

    @property
    def is_full(self) -> bool:
        """Whether there is no place for another one."""
        return len(self._crcs) == len(self._places)

    def place(self) -> memoryview:
        """Where the next block goes."""
        return self._places[len(self._crcs)]

    def add(self, key: bytes, block_crc: int) -> None:
        """The block in the next place is right. block_crc: its checksum under this key, which no other block has."""
        self._crcs[key] = block_crc

    def take(self) -> tuple[list[tuple[bytes, memoryview]], dict[bytes, int]]:
        """What is in it, with the checksums; the places are filled again afterwards."""
        crcs, self._crcs = self._crcs, {}
        return list(zip(crcs, self._places, strict=False)), crcs


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
