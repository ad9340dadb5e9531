"""How two nodes prove to one another that they have the same key, before either acts on what the other sends.

The leader sends a random number. The node that joins answers with one of its own, what it is, and a code (HMAC-SHA256)
of all three; the leader answers with a code over the same numbers. Each code names the side that made it, so that none
can be sent back or used again. Frames after that are neither signed nor encrypted.
"""

import hashlib
import hmac
import secrets
from typing import Final

import msgspec

from kvasir_runtime.nodes.link import Link, LinkError

MAGIC: Final = b"kvasir nodes 1\n"
NONCE_BYTES: Final = 32
MAC_BYTES: Final = 32
MOST_BYTES: Final = 262_144
"""Of a frame of the handshake. The longest field of the options has 64 KiB."""
HANDSHAKE_S: Final = 5.0
ANSWER_S: Final = 30.0
"""For the leader's answer, after which it may have ended: the reason of a refusal comes once."""
CHANNELS: Final = ("steps", "control")


class Membership(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a node is. facts: what all nodes must have in common, by the name that a message gives it."""

    node: int
    nodes: int
    channel: str
    facts: dict[str, str]


class JoinAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The leader's answer. refusal: why the node may not join, empty where it may. leader: names the process."""

    refusal: str
    leader: bytes = b""


class WrongKeyError(Exception):
    """The other process does not have this node's key."""


def receive_membership(link: Link, key: bytes) -> tuple[Membership, bytes]:
    """The leader's side: who wants to join, and the numbers that `answer` needs.

    Raises WrongKeyError after an answer, and OSError, TimeoutError or LinkError for what is no node at all.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    link.send(MAGIC + nonce, within_s=HANDSHAKE_S)
    raw = bytes(link.receive(MOST_BYTES, within_s=HANDSHAKE_S))
    if len(raw) < NONCE_BYTES + MAC_BYTES:
        raise LinkError(f"{link.peer} sent {len(raw)} bytes, which are no request to join")
    own, mac, body = raw[:NONCE_BYTES], raw[NONCE_BYTES : NONCE_BYTES + MAC_BYTES], raw[NONCE_BYTES + MAC_BYTES :]
    numbers = nonce + own
    if not hmac.compare_digest(mac, _mac(key, b"join", numbers, body)):
        answer(link, key, numbers, JoinAnswer(refusal="it does not have the key"))
        raise WrongKeyError(f"{link.peer} does not have the key of --node-key-file")
    try:
        return msgspec.msgpack.decode(body, type=Membership), numbers
    except msgspec.MsgspecError as error:
        raise LinkError(f"{link.peer} is of another version: {error}") from error


def answer(link: Link, key: bytes, numbers: bytes, verdict: JoinAnswer) -> None:
    """Raises OSError."""
    body = msgspec.msgpack.encode(verdict)
    link.send(_mac(key, b"answer", numbers, body) + body, within_s=HANDSHAKE_S)


def join(link: Link, key: bytes, own: Membership) -> JoinAnswer:
    """The side of a node that joins: what the leader answers.

    Raises WrongKeyError where the leader cannot prove that it has the key, OSError, TimeoutError and LinkError.
    """
    greeting = bytes(link.receive(MOST_BYTES, within_s=HANDSHAKE_S))
    if not greeting.startswith(MAGIC) or len(greeting) != len(MAGIC) + NONCE_BYTES:
        raise LinkError(f"{link.peer} is no leader of nodes of this version")
    nonce, body = secrets.token_bytes(NONCE_BYTES), msgspec.msgpack.encode(own)
    numbers = greeting[len(MAGIC) :] + nonce
    link.send(nonce + _mac(key, b"join", numbers, body) + body, within_s=HANDSHAKE_S)
    raw = bytes(link.receive(MOST_BYTES, within_s=ANSWER_S))
    mac, body = raw[:MAC_BYTES], raw[MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(key, b"answer", numbers, body)):
        raise WrongKeyError(f"{link.peer} does not have the key of --node-key-file")
    try:
        return msgspec.msgpack.decode(body, type=JoinAnswer)
    except msgspec.MsgspecError as error:
        raise LinkError(f"{link.peer} is of another version: {error}") from error


def refusal(leader: Membership, other: Membership) -> str:
    """Why a node cannot compute with the leader, empty where it can: the first difference, by name."""
    if other.nodes != leader.nodes:
        return f"--nnodes is {other.nodes} there and {leader.nodes} at node 0"
    if not 0 < other.node < leader.nodes:
        return f"--node-rank {other.node} is not one of 1 to {leader.nodes - 1}"
    if other.channel not in CHANNELS:
        return f"the connection is for {other.channel[:40]!r}, of another version"
    for name in sorted(leader.facts.keys() | other.facts.keys()):
        here, there = (_short(one.facts.get(name, "unknown")) for one in (leader, other))
        if leader.facts.get(name) != other.facts.get(name):
            return f"{name} is {there} there and {here} at node 0"
    return ""


def _short(value: str) -> str:
    return value if len(value) <= 80 else f"{value[:76]}…"


def _mac(key: bytes, side: bytes, numbers: bytes, body: bytes) -> bytes:
    return hmac.new(key, b"kvasir nodes " + side + b"\0" + numbers + body, hashlib.sha256).digest()
