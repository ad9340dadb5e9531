"""Blocks over TCP: what both ends say, and the end that asks. The other end is `block_server`.

Both prove that they have a key of the service before either sends anything else. The caller then sends what a block's
content depends on, each value as a code under the key, and gets a refusal that names the first difference, or the
peer's secret of hashes, masked with a code that only a holder of the key can make.

A request is a frame with a `BlockQuery`. For each of its keys that the peer holds come its index and checksum in one
frame and its content in the next, which the kernel copies from the file; the last frame has END in place of an index.
Where the peer computes the blocks first they come in any order, and frames with WAIT between them, at least one in
BEAT_S: a peer that is silent for SILENCE_S is gone.
"""

import hashlib
import hmac
import ipaddress
import math
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from kvasir_runtime.core.peer_fetches import MOST_BLOCKS
from kvasir_runtime.nodes import key_proof
from kvasir_runtime.nodes.key_proof import Call, Purpose, WrongKeyError
from kvasir_runtime.nodes.link import Link, LinkError
from kvasir_runtime.runner.kv_offload.store_layout import KEY_BYTES
from kvasir_runtime.runner.kv_transfer.interface import BlockQuery, PeerError

PURPOSE: Final = Purpose(
    magic=b"kvasir blocks 2\n", label=b"kvasir blocks ", called="replica that gives out blocks", key="the service"
)
HEAD: Final = struct.Struct("<II")
END: Final = 0xFFFF_FFFF
WAIT: Final = 0xFFFF_FFFE
BEAT_S: Final = 0.25
SILENCE_S: Final = 2.0
MOST_KEYS: Final = MOST_BLOCKS
"""Of a request, which names the blocks of one fetch."""
MOST_QUERY_BYTES: Final = 16 * 1024 * 1024
"""Most of it are the ids of a prompt: four bytes for each."""


class PeerCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a caller's blocks are. facts: by name, as `coded`."""

    facts: dict[str, bytes]


class PeerAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """refusal: empty where blocks are given out; then salt is the secret of hashes, as `masked`."""

    refusal: str
    salt: bytes = b""


def transfer_key(key: bytes) -> bytes:
    """For this purpose alone, from a key that replicas of a service share for another one."""
    return hmac.new(key, b"kvasir key of blocks 1", hashlib.sha256).digest()


def coded(facts: Mapping[str, str], key: bytes) -> dict[str, bytes]:
    """Facts that can be compared, and that say nothing to who does not have the key."""
    return {
        name: hmac.new(key, f"kvasir fact\0{name}\0{value}".encode(), hashlib.sha256).digest()[:16]
        for name, value in facts.items()
    }


def refusal(own: Mapping[str, bytes], other: Mapping[str, bytes]) -> str:
    """Why blocks of two replicas are not the same, empty where they are: the first difference, by name."""
    for name in sorted(own.keys() | other.keys()):
        if own.get(name) != other.get(name):
            return f"{name[:80]} is not the same at both replicas"
    return ""


def masked(salt: bytes, key: bytes, call_numbers: bytes) -> bytes:
    """A secret of 32 bytes under the random numbers of one connection; the same again gives it back."""
    mask = PURPOSE.code(key, b"salt", call_numbers, b"")
    return bytes(a ^ b for a, b in zip(salt, mask, strict=True))


def address_of(peer: str) -> tuple[str, int]:
    """Host and port of an address such as 10.0.0.2:8002 or [fd00::2]:8002. Raises PeerError for anything else."""
    host, _, port = peer.rpartition(":")
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        number = int(port)
    except ValueError:
        number = 0
    if not 0 < number < 65_536:
        raise PeerError("a peer is an IP address and a port")
    return host.removeprefix("[").removesuffix("]"), number


class TcpPeer:
    """Implements `BlockPeer`."""

    def __init__(self, link: Link, hash_salt: bytes) -> None:
        """Call `connect`."""
        self._link, self._hash_salt = link, hash_salt
        self._left: set[int] | None = None
        self._most_silent_s = math.inf
        self._content_s = 0.0

    @property
    def hash_salt(self) -> bytes:
        """Of the peer."""
        return self._hash_salt

    @property
    def content_s(self) -> float:
        """Of the answer that was read last."""
        return self._content_s

    def ask(self, query: BlockQuery, deadline: float) -> None:
        """At most MOST_KEYS, each of KEY_BYTES."""
        self._most_silent_s = math.inf if query.prefill is None else SILENCE_S
        self._link.send(msgspec.msgpack.encode(query), within_s=min(left_s(deadline), self._most_silent_s))
        self._left = set(range(len(query.keys) // KEY_BYTES))
        self._content_s = 0.0

    def receive(self, place: memoryview, deadline: float) -> tuple[int, int] | None:
        """Each index comes once, so an answer ends; a peer that only waits is read up to the deadline."""
        assert self._left is not None, "nothing was asked for"
        try:
            index, block_crc = self._head(deadline)
            if index == END:
                self._left = None
                return None
            if index not in self._left:
                raise PeerError(f"{self._link.peer} sent block {index}, which was not asked for or came before")
            self._left.remove(index)
            begun = time.monotonic()
            self._link.receive_into(place, within_s=min(left_s(deadline), self._most_silent_s))
            self._content_s += time.monotonic() - begun
        except (LinkError, struct.error) as error:
            raise PeerError(str(error)) from error
        return index, block_crc

    def end(self) -> None:
        """The peer sees it at once, too."""
        self._link.end()

    def close(self) -> None:
        """The peer sees it at once."""
        self._link.close()

    def _head(self, deadline: float) -> tuple[int, int]:
        """Index and checksum of the next block, or END."""
        while True:
            within_s = min(left_s(deadline), self._most_silent_s)
            index, block_crc = HEAD.unpack(self._link.receive(HEAD.size, within_s=within_s))
            if index != WAIT or self._most_silent_s == math.inf:
                return index, block_crc


def connect(peer: str, deadline: float, *, key: bytes, facts: Mapping[str, str]) -> TcpPeer:
    """A connection to a replica that has the key and whose blocks are the same. Raises as `BlockPeer`."""
    connection = socket.create_connection(address_of(peer), left_s(deadline))
    link = Link(connection, peer)
    try:
        said = msgspec.msgpack.encode(PeerCall(facts=coded(facts, key)))
        within_s = left_s(deadline)
        body, numbers = key_proof.call(link, PURPOSE, key, said, within_s=within_s, answer_s=within_s)
        answered = key_proof.decoded(link, body, PeerAnswer)
        if answered.refusal:
            raise PeerError(f"{peer} gives no blocks: {answered.refusal[:200]}")
        return TcpPeer(link, masked(answered.salt, key, numbers))
    except (LinkError, WrongKeyError, ValueError) as error:
        link.close()
        raise PeerError(str(error)) from error
    except BaseException:
        link.close()
        raise


def query_of(request: bytes | bytearray) -> tuple[BlockQuery, list[bytes]]:
    """A request and its keys. Raises PeerError where it is none, or has no whole keys or too many."""
    try:
        query = msgspec.msgpack.decode(request, type=BlockQuery)
    except msgspec.MsgspecError as error:
        raise PeerError(f"a request of {len(request)} bytes is none for blocks") from error
    keys = query.keys
    if len(keys) % KEY_BYTES or len(keys) > MOST_KEYS * KEY_BYTES:
        raise PeerError(f"{len(keys)} bytes of keys are none")
    return query, [keys[start : start + KEY_BYTES] for start in range(0, len(keys), KEY_BYTES)]


def proven(call: Call, keys: Sequence[bytes]) -> bytes | None:
    """The key with which a call was made, of those that are accepted."""
    return next((key for key in keys if call.is_by(key)), None)


def left_s(deadline: float) -> float:
    """Seconds until a moment of the monotonic clock. Raises TimeoutError where it has passed."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("the time of the fetch is over")
    return seconds
