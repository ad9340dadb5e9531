"""How a file of blocks is laid out: a header, a table of slots, then the slots. Only bytes; opens nothing.

    header   64 bytes used of 4,096: magic, version, bytes of a block, slots, epoch, changes, salt, checksum
    table    one entry of 64 bytes for each slot: key, checksum of key and block, sequence, checksum of the entry
    slots    each at a multiple of 4,096 bytes

Integers are little-endian. An entry whose own checksum is wrong, or whose key is zero, is empty.
"""

import struct
from dataclasses import dataclass
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

PAGE: Final = 4096
MAGIC: Final = b"KVASIRKV"
VERSION: Final = 1
SALT_BYTES: Final = 32
KEY_BYTES: Final = 33
EMPTY: Final = bytes(KEY_BYTES)

_HEADER: Final = struct.Struct(f"<8sIQQQQ{SALT_BYTES}s")
_CRC: Final = struct.Struct("<I")
HEADER_BYTES: Final = _HEADER.size + _CRC.size
_ENTRY: Final = struct.Struct(f"<{KEY_BYTES}sIQ")
ENTRY_BYTES: Final = 64
_NUMBERS: Final = np.dtype(
    {
        "names": ["sequence", "crc"],
        "formats": ["<u8", "<u4"],
        "offsets": [KEY_BYTES + 4, _ENTRY.size],
        "itemsize": ENTRY_BYTES,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreHeader:
    """What is known of a file. epoch: times that it was emptied. changes: entries written so far.

    salt: secret from which the hashes of its blocks begin.
    """

    block_bytes: int
    num_slots: int
    epoch: int
    changes: int
    salt: bytes

    def encoded(self) -> bytes:
        """The beginning of the file."""
        packed = _HEADER.pack(MAGIC, VERSION, self.block_bytes, self.num_slots, self.epoch, self.changes, self.salt)
        return packed + _CRC.pack(crc32(packed))

    @property
    def slots_at(self) -> int:
        """Offset of the first slot."""
        return PAGE + rounded(self.num_slots * ENTRY_BYTES)

    def slot_at(self, slot: int) -> int:
        """Offset of a slot."""
        return self.slots_at + slot * rounded(self.block_bytes)

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return self.slot_at(self.num_slots)


def decoded(beginning: bytes) -> StoreHeader | None:
    """The header of a file; None where it is damaged, of another version or no header at all."""
    if len(beginning) < HEADER_BYTES:
        return None
    packed = beginning[: _HEADER.size]
    magic, version, block_bytes, num_slots, epoch, changes, salt = _HEADER.unpack(packed)
    (crc,) = _CRC.unpack_from(beginning, _HEADER.size)
    if (magic, version, crc) != (MAGIC, VERSION, crc32(packed)) or not block_bytes or not num_slots:
        return None
    return StoreHeader(block_bytes=block_bytes, num_slots=num_slots, epoch=epoch, changes=changes, salt=salt)


def entry_at(slot: int) -> int:
    """Offset of a slot's entry."""
    return PAGE + slot * ENTRY_BYTES


def entry(key: bytes, block_crc: int, sequence: int) -> bytes:
    """The entry of a slot; EMPTY as key says that it holds nothing."""
    packed = _ENTRY.pack(key, block_crc, sequence)
    return (packed + _CRC.pack(crc32(packed))).ljust(ENTRY_BYTES, b"\0")


def entries_since(table: bytes, seen: int) -> list[tuple[int, int, bytes, int]]:
    """Slot, sequence, key, block checksum of entries after a sequence number, oldest first; damaged ones are empty."""
    rows: NDArray[np.void] = np.frombuffer(table, dtype=_NUMBERS)
    found = []
    for slot in np.flatnonzero(rows["sequence"] > seen).tolist():
        packed = table[slot * ENTRY_BYTES : slot * ENTRY_BYTES + _ENTRY.size]
        key, block_crc, sequence = _ENTRY.unpack(packed)
        if crc32(packed) != int(rows["crc"][slot]):
            key, block_crc = EMPTY, 0  # of an entry that is being written: later it is read with its own checksum
        found.append((slot, sequence, key, block_crc))
    found.sort(key=lambda one: one[1])
    return found


def num_slots(limit_bytes: int, block_bytes: int) -> int:
    """Slots of a file that takes at most limit_bytes, 0 where not even one fits."""
    slots = max(0, limit_bytes - PAGE) // (rounded(block_bytes) + ENTRY_BYTES)
    while slots > 0 and PAGE + rounded(slots * ENTRY_BYTES) + slots * rounded(block_bytes) > limit_bytes:
        slots -= 1
    return slots


def rounded(num_bytes: int) -> int:
    """Up to a whole page."""
    return -(-num_bytes // PAGE) * PAGE
