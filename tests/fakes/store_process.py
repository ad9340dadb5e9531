"""A process that fills a file of blocks without end, to be killed in the middle of a write, and what its blocks hold.

python -m fakes.store_process FOLDER NUM_KEYS SEED: prints a line once it is writing.
"""

import hashlib
import random
import sys
from pathlib import Path

from kvasir_runtime.runner.kv_offload.file_store import FileStore, open_store
from kvasir_runtime.runner.kv_offload.store_layout import KEY_BYTES

BLOCK_BYTES = 50_000
LIMIT_BYTES = 1_500_000
"""Of a file: less than the keys of any test need, so that slots are taken over all the time."""
NAME = "ab" * 16


def key(number: int) -> bytes:
    """One of the keys."""
    return hashlib.sha256(number.to_bytes(4, "big")).digest().ljust(KEY_BYTES, b"\1")


def content(number: int) -> memoryview:
    """What the block of a key holds."""
    return memoryview(hashlib.shake_128(key(number)).digest(BLOCK_BYTES))


def opened(folder: Path, *, limit_bytes: int = LIMIT_BYTES, block_bytes: int = BLOCK_BYTES) -> FileStore:
    """The file that all of them share."""
    return open_store(folder, NAME, block_bytes, limit_bytes)


def found(store: FileStore, numbers: list[int]) -> list[int]:
    """Those that are there; what is there must be right."""
    places = [bytearray(BLOCK_BYTES) for _ in numbers]
    there = store.get([(key(number), memoryview(place)) for number, place in zip(numbers, places, strict=True)])
    for number, place, is_there in zip(numbers, places, there, strict=True):
        assert not is_there or place == content(number), f"block {number} is not what was kept under its key"
    return [number for number, is_there in zip(numbers, there, strict=True) if is_there]


def main(folder: str, num_keys: str, seed: str) -> None:
    """Writes and reads until it is killed."""
    store, chance = opened(Path(folder)), random.Random(int(seed))
    contents = [content(number) for number in range(int(num_keys))]
    sys.stdout.write("writing\n")
    sys.stdout.flush()
    while True:
        numbers = chance.sample(range(int(num_keys)), 4)
        store.put([(key(number), contents[number]) for number in numbers])
        found(store, chance.sample(range(int(num_keys)), 2))


if __name__ == "__main__":
    main(*sys.argv[1:])
