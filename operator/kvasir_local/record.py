"""The record of one running cluster, `state.json`, and what to make of it at the next `up`.

`examine` is pure and decides; `read`, `write` and `forget` touch the file. Called by `control_plane` and `stack`.
"""

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from kvasir_local.credentials import write_private
from kvasir_local.errors import StaleStateError
from kvasir_local.layout import Layout
from kvasir_local.members import Network
from kvasir_local.processes import Identity

SCHEMA: Final = 1
NODE_PREFIX: Final = "node/"
GUARD: Final = "guard"
"""The process that stops the cluster when its owner dies; only clusters with an owner have it."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the cluster. name: one of members.MEMBERS, node/NAME, or GUARD."""

    name: str
    process: Identity


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A process node as it was asked for, so that it can be started again the same way.

    index: which /24 of the pod network is its own; fake_gpus: None means the GPUs that are present.
    """

    name: str
    index: int
    fake_gpus: int | None = None

    @property
    def member(self) -> str:
        return NODE_PREFIX + self.name


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What is needed to find, judge, repair and stop a cluster that another process started."""

    schema: int
    boot_id: str
    binaries: str
    network: Network
    owner: Identity | None = None
    members: tuple[Member, ...] = ()
    nodes: tuple[Node, ...] = ()

    def with_member(self, member: Member) -> "State":
        """The same cluster with this member added, or in the place of the one with its name."""
        by_name = {known.name: known for known in self.members} | {member.name: member}
        return msgspec.structs.replace(self, members=tuple(by_name.values()))

    def with_node(self, node: Node) -> "State":
        by_name = {known.name: known for known in self.nodes} | {node.name: node}
        return msgspec.structs.replace(self, nodes=tuple(by_name.values()))

    def process(self, name: str) -> Identity | None:
        """The recorded process of a member, dead or alive; None when there is no such member."""
        return next((member.process for member in self.members if member.name == name), None)


class Finding(StrEnum):
    NOTHING = "nothing"
    HEALTHY = "healthy"
    DAMAGED = "damaged"
    STALE = "stale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """dead: names of members that no longer live; reason: a sentence for the terminal."""

    finding: Finding
    reason: str
    dead: tuple[str, ...] = ()


def examine(state: State | None, *, boot_id: str, living: Collection[Identity]) -> Verdict:
    """What a state directory holds.

    NOTHING: no cluster; HEALTHY: every recorded process lives; DAMAGED: some died, the rest can be repaired with the
    same data; STALE: none lives, so what is written there describes a cluster that is no more.
    """
    if state is None:
        return Verdict(finding=Finding.NOTHING, reason="no cluster is recorded")
    names = tuple(member.name for member in state.members)
    if state.boot_id != boot_id:
        return Verdict(finding=Finding.STALE, reason="the machine was started anew since", dead=names)
    dead = tuple(member.name for member in state.members if member.process not in living)
    if len(dead) == len(names):
        return Verdict(finding=Finding.STALE, reason="none of its processes lives", dead=dead)
    if dead:
        return Verdict(finding=Finding.DAMAGED, reason=f"no longer alive: {', '.join(dead)}", dead=dead)
    return Verdict(finding=Finding.HEALTHY, reason=f"{len(names)} processes live")


def read(layout: Layout) -> State | None:
    """The recorded cluster, None when there is none. StaleStateError when the file cannot be understood."""
    try:
        content = layout.state.read_bytes()
    except FileNotFoundError:
        return None
    try:
        state = msgspec.json.decode(content, type=State)
    except msgspec.DecodeError as error:
        raise StaleStateError(
            f"{layout.state} is not a record of a cluster ({error}); `kvasir local down` clears it"
        ) from error
    if state.schema != SCHEMA:
        raise StaleStateError(
            f"{layout.state} has schema {state.schema}, expected {SCHEMA}: another version of kvasir wrote it; "
            "`kvasir local down` of that version stops its cluster, of this version clears it"
        )
    return state


def write(layout: Layout, state: State) -> None:
    write_private(layout.state, msgspec.json.format(msgspec.json.encode(state)))


def forget(layout: Layout) -> None:
    with contextlib.suppress(FileNotFoundError):
        layout.state.unlink()
