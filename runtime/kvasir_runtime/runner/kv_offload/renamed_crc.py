"""The checksum of a block under another key, without reading the block again.

A block's checksum is `crc32(content, crc32(key))`. For one length of content it is an affine function of the key's
checksum, so that the checksums under two keys differ by a linear function of how those of the keys do.
"""

from functools import lru_cache
from zlib import crc32


def renamed(block_crc: int, *, key: bytes, new_key: bytes, block_bytes: int) -> int:
    """The checksum under new_key of a block whose checksum under key is block_crc. block_bytes: of its content."""
    difference, changed = crc32(key) ^ crc32(new_key), 0
    for bit, moved in enumerate(_moved(block_bytes)):
        if difference >> bit & 1:
            changed ^= moved
    return block_crc ^ changed


@lru_cache(maxsize=4)
def _moved(block_bytes: int) -> tuple[int, ...]:
    """What each bit of the difference becomes behind so many bytes, found out with zeros."""
    zeros = bytes(block_bytes)
    unmoved = crc32(zeros)
    return tuple(crc32(zeros, 1 << bit) ^ unmoved for bit in range(32))
