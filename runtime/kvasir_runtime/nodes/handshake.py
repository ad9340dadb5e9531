"""How a node joins the leader: each proves to the other that it has the key (`key_proof`), and says what it is.

The answer says whether the node may compute with the leader.
"""

from typing import Final

import msgspec

from kvasir_runtime.nodes import key_proof
from kvasir_runtime.nodes.key_proof import Call, Purpose, WrongKeyError
from kvasir_runtime.nodes.link import Link

MAGIC: Final = b"kvasir nodes 1\n"
PURPOSE: Final = Purpose(magic=MAGIC, label=b"kvasir nodes ", called="leader of nodes", key="--node-key-file")
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


def receive_membership(link: Link, key: bytes) -> tuple[Membership, Call]:
    """The leader's side: who wants to join, and what `answer` needs.

    Raises WrongKeyError after an answer, and OSError, TimeoutError or LinkError for what is no node at all.
    """
    call = key_proof.receive(link, PURPOSE, HANDSHAKE_S)
    if not call.is_by(key):
        answer(link, key, call, JoinAnswer(refusal="it does not have the key"))
        raise WrongKeyError(f"{link.peer} does not have the key of {PURPOSE.key}")
    return key_proof.decoded(link, call.body, Membership), call


def answer(link: Link, key: bytes, call: Call, verdict: JoinAnswer) -> None:
    """Raises OSError."""
    key_proof.answer(link, call, key, msgspec.msgpack.encode(verdict), HANDSHAKE_S)


def join(link: Link, key: bytes, own: Membership) -> JoinAnswer:
    """The side of a node that joins: what the leader answers.

    Raises WrongKeyError where the leader cannot prove that it has the key, OSError, TimeoutError and LinkError.
    """
    body, _ = key_proof.call(link, PURPOSE, key, msgspec.msgpack.encode(own), within_s=HANDSHAKE_S, answer_s=ANSWER_S)
    return key_proof.decoded(link, body, JoinAnswer)


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
