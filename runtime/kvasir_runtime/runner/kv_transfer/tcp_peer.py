"""Blocks over TCP: what both ends say, and the end that asks. The other end is `block_server`.

Both prove that they have a key of the service before either sends anything else. The caller then sends what a block's
content depends on, each value as a code under the key, and gets a refusal that names the first difference, or the
peer's secret of hashes, masked with a code that only a holder of the key can make.

A request is a frame of keys. For each of them that the peer holds come its index and checksum in one frame and its
content in the next, which the kernel copies from the file; the last frame has END in place of an index.
"""

import hashlib
import hmac
import ipaddress
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
from kvasir_runtime.runner.kv_transfer.interface import PeerError

PURPOSE: Final = Purpose(
    magic=b"kvasir blocks 1\n", label=b"kvasir blocks ", called="replica that gives out blocks", key="the service"
)
HEAD: Final = struct.Struct("<II")
END: Final = 0xFFFF_FFFF
MOST_KEYS: Final = MOST_BLOCKS
"""Of a request, which names the blocks of one fetch."""


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
        self._left: range | None = None

    @property
    def hash_salt(self) -> bytes:
        """Of the peer."""
        return self._hash_salt

    def ask(self, keys: Sequence[bytes], deadline: float) -> None:
        """At most MOST_KEYS, each of KEY_BYTES."""
        self._link.send(b"".join(keys), within_s=left_s(deadline))
        self._left = range(len(keys))

    def receive(self, place: memoryview, deadline: float) -> tuple[int, int] | None:
        """Indices rise, so an answer ends."""
        assert self._left is not None, "nothing was asked for"
        try:
            index, block_crc = HEAD.unpack(self._link.receive(HEAD.size, within_s=left_s(deadline)))
            if index == END:
                self._left = None
                return None
            if index not in self._left:
                raise PeerError(f"{self._link.peer} sent block {index}, which was not asked for or came before")
            self._left = range(index + 1, self._left.stop)
            self._link.receive_into(place, within_s=left_s(deadline))
        except (LinkError, struct.error) as error:
            raise PeerError(str(error)) from error
        return index, block_crc

    def close(self) -> None:
        """The peer sees it at once."""
        self._link.close()


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


def split_keys(request: bytes | bytearray) -> list[bytes]:
    """The keys of a request. Raises PeerError where it has another length than keys have."""
    if len(request) % KEY_BYTES:
        raise PeerError(f"a request of {len(request)} bytes is none of keys")
    return [bytes(request[start : start + KEY_BYTES]) for start in range(0, len(request), KEY_BYTES)]


def proven(call: Call, keys: Sequence[bytes]) -> bytes | None:
    """The key with which a call was made, of those that are accepted."""
    return next((key for key in keys if call.is_by(key)), None)


def left_s(deadline: float) -> float:
    """Seconds until a moment of the monotonic clock. Raises TimeoutError where it has passed."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("the time of the fetch is over")
    return seconds
