"""The set of prefixes that a runtime pod holds, as its writer keeps it and as a reader follows it.

The members are route hashes (`hashes.route_hashes`). Each hash that comes or goes is a change with a number, counted
from the start of the process; a reader names the last one that it has, and gets those behind it. The size and the
exclusive or of all members prove that nothing was lost: they are over the whole set, not over what was sent.
Pure; `state.PrefixDigest` is the document.
"""

from collections.abc import Iterable
from typing import Final

from kvasir_api.hashes import ROUTE_HASH_BYTES
from kvasir_api.state import PrefixDigest

MOST_ENTRIES: Final = 65_536
"""Members of a set: 16 MiB of prompt text. A document of all of them is 700 KB."""
WHOLE: Final = -1
"""In place of a number: the whole set, not the changes behind one."""
PAUSE_DOCUMENTS: Final = 20
"""So many documents of a pod that contradicted itself are not followed; a true one cannot."""


def split(joined: bytes) -> list[bytes]:
    """The hashes of a document, one by one."""
    return [joined[start : start + ROUTE_HASH_BYTES] for start in range(0, len(joined), ROUTE_HASH_BYTES)]


class PrefixSet:
    """Route hashes and their exclusive or."""

    __slots__ = ("_xor", "hashes")

    def __init__(self, hashes: Iterable[bytes] = ()) -> None:
        self.hashes: set[bytes] = set()
        self._xor = 0
        for route_hash in hashes:
            self.toggle(route_hash)

    def toggle(self, route_hash: bytes) -> None:
        """Add a hash that is not there, remove one that is."""
        if route_hash in self.hashes:
            self.hashes.remove(route_hash)
        else:
            self.hashes.add(route_hash)
        self._xor ^= int.from_bytes(route_hash)

    @property
    def checksum(self) -> str:
        """The exclusive or of all members, in hexadecimal."""
        return self._xor.to_bytes(ROUTE_HASH_BYTES).hex()


class FollowedPrefixes:
    """The set of one pod as a reader has it. instance, after: of the process that it is of and of its last change,
    which the reader names in its next request; WHOLE while nothing is known.

    A pod is not believed: memory is bounded by MOST_ENTRIES, and so is the work for each document.
    """

    __slots__ = ("_pause", "_set", "after", "instance")

    def __init__(self) -> None:
        self._set, self.instance, self.after = PrefixSet(), "", WHOLE
        self._pause = 0

    @property
    def hashes(self) -> set[bytes]:
        """The members, empty while nothing is known."""
        return self._set.hashes

    @property
    def is_paused(self) -> bool:
        """Whether the next document is not followed, so that it need list nothing."""
        return self._pause > 0

    def take(self, instance: str, digest: PrefixDigest) -> bool:
        """Follow to the number of a document. False where that cannot be proved complete: a change is missing, or the
        pod has restarted. Then nothing is known any more, and the next document has to be of the whole set; that of a
        pod whose document contradicts itself, or has too many members, only after PAUSE_DOCUMENTS more.
        """
        if self._pause:
            self._pause -= 1
            return False
        if digest.after == WHOLE:
            self._set = PrefixSet()
        elif (instance, digest.after) != (self.instance, self.after):
            self.forget()
            return False
        if not self._applied(digest):
            self.forget()
            self._pause = PAUSE_DOCUMENTS
            return False
        self.instance, self.after = instance, digest.sequence
        return True

    def forget(self) -> None:
        """Know nothing: the process that held the set is gone."""
        self._set, self.instance, self.after = PrefixSet(), "", WHOLE

    def _applied(self, digest: PrefixDigest) -> bool:
        """Change the set; False where it is not what the document says then, if possible by sizes alone."""
        most = MOST_ENTRIES * ROUTE_HASH_BYTES
        grown = len(digest.added) - len(digest.removed)
        if digest.entries > MOST_ENTRIES or len(digest.added) + len(digest.removed) > most:
            return False
        if len(self._set.hashes) * ROUTE_HASH_BYTES + grown != digest.entries * ROUTE_HASH_BYTES:
            return False
        for route_hash in (*split(digest.added), *split(digest.removed)):
            self._set.toggle(route_hash)
        return (len(self._set.hashes), self._set.checksum) == (digest.entries, digest.checksum)
