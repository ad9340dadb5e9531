"""The replica that fetches blocks of a prompt, and what both replicas know of it."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from fakes.kv_peers import FACTS, KEY
from kvasir_api.hashes import block_root, prompt_block_hashes, split_block_hashes
from kvasir_runtime.core.plan import BlockFetch, FetchResult, PeerBlock, PeerPrefill
from kvasir_runtime.runner.kv_offload.file_store import FileStore, open_store
from kvasir_runtime.runner.kv_transfer import tcp_peer
from kvasir_runtime.runner.kv_transfer.block_fetcher import BlockFetcher
from kvasir_runtime.wire import packed_ids

BLOCK_BYTES = 30_000
LIMIT_BYTES = 40 * 40_000
BLOCK_SIZE = 4
TOKENS = packed_ids(range(1, 81))
"""Of 20 blocks."""
LONG_S = 60.0
SALT = b"tenant"


def store_of(folder: Path) -> FileStore:
    """A replica's, in a folder of its own."""
    return open_store(folder, "ab" * 16, BLOCK_BYTES, LIMIT_BYTES)


def keys_in(store: FileStore, salt: bytes = SALT) -> list[bytes]:
    """Of the prompt, as the replica with this store has them."""
    root = block_root(salt=salt, secret=store.salt)
    return [one + b"\0" for one in split_block_hashes(prompt_block_hashes(TOKENS, root=root, block_size=BLOCK_SIZE))]


def content(number: int) -> bytes:
    """Of a block."""
    return bytes([number + 1, 7]) * (BLOCK_BYTES // 2)


class Receiver:
    """The side that fetches. store: reads what is kept."""

    def __init__(self, folder: Path, key: bytes = KEY, facts: Mapping[str, str] = FACTS) -> None:
        self.store = store_of(folder)
        self.changed = threading.Condition()
        self.fetcher = BlockFetcher(
            store_of(folder),
            lambda peer, deadline: tcp_peer.connect(peer, deadline, key=key, facts=facts),
            block_size=BLOCK_SIZE,
            changed=self.changed,
        )
        self.keys = keys_in(self.store)
        self.number = 0

    def fetch(
        self,
        peer: str,
        columns: Sequence[int] = range(20),
        within_s: float = LONG_S,
        prefill: PeerPrefill | None = None,
    ) -> tuple[list[int], FetchResult]:
        """The numbers of blocks that came, and the result."""
        self.number += 1
        blocks = tuple(PeerBlock(column, self.keys[column]) for column in columns)
        fetch = BlockFetch(
            number=self.number, peer=peer, within_s=within_s, salt=SALT, tokens=TOKENS, blocks=blocks, prefill=prefill
        )
        with self.changed:
            self.fetcher.submit([fetch])
        return self.result()

    def cancel(self) -> None:
        """The fetch that was begun last."""
        with self.changed:
            self.fetcher.cancel([self.number])

    def result(self) -> tuple[list[int], FetchResult]:
        """Of the fetch that was begun last."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.fetcher.has_ended, LONG_S)
            (result,) = self.fetcher.take()
        assert result.number == self.number
        return [self.keys.index(key) for key in result.keys], result

    def held(self) -> list[int]:
        """The blocks in the file, each of which must be right."""
        places = [bytearray(BLOCK_BYTES) for _ in self.keys]
        found = self.store.get([(key, memoryview(place)) for key, place in zip(self.keys, places, strict=True)])
        for number, (is_there, place) in enumerate(zip(found, places, strict=True)):
            assert not is_there or place == content(number), f"block {number} is wrong"
        return [number for number, is_there in enumerate(found) if is_there]
