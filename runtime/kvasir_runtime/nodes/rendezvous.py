"""How the nodes of a model find one another: the leader listens until all have joined, then closes its port.

Called by `runner.startup.node_group`. Each node brings two connections: one for the steps, one for control.
"""

import contextlib
import logging
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from kvasir_runtime.errors import RankLostError, StartError
from kvasir_runtime.nodes import handshake, key_proof
from kvasir_runtime.nodes.handshake import CHANNELS, JoinAnswer, Membership
from kvasir_runtime.nodes.key_proof import WrongKeyError
from kvasir_runtime.nodes.link import Link, LinkError
from kvasir_runtime.nodes.listening import Acceptor

OnWait = Callable[[str, tuple[int, ...]], None]
"""Of what is awaited, in words, and of the nodes that have not joined node 0, which is empty elsewhere."""
LOG = logging.getLogger(__name__)
JOIN_S: Final = 600.0
"""For as long nodes wait for one another: a pod may be scheduled, and its image and model fetched, that much later."""
RETRY_S: Final = 0.25
MOST_STRANGERS: Final = 16
"""Connections that may be in their handshake at a time; further ones are closed."""
_GO: Final = b"go"


@dataclass(frozen=True, slots=True)
class NodeLinks:
    """The connections of one node: of the leader to each other node in their order, else one, to the leader.

    steps: for what is computed. control: for heartbeats, and the reason of an end.
    """

    node: int
    nodes: int
    steps: tuple[Link, ...]
    control: tuple[Link, ...]


def listen(address: str, port: int, deadline: float) -> socket.socket:
    """The leader's port. A name may be known only a while after the start of its pod. Raises StartError."""
    while True:
        try:
            family, kind, protocol, _, where = socket.getaddrinfo(
                address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = socket.socket(family, kind, protocol)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(where)
                listener.listen(MOST_STRANGERS)
            except OSError:
                listener.close()
                raise
            return listener
        except socket.gaierror as error:
            if time.monotonic() > deadline:
                raise StartError(f"--master-addr {address} is no known name: {error.strerror}") from error
            time.sleep(RETRY_S)
        except (OSError, OverflowError) as error:
            raise StartError(
                f"--master-addr {address} --master-port {port}: node 0 cannot listen there: {error}"
            ) from error


def lead(listener: socket.socket, key: bytes, own: Membership, deadline: float, on_wait: OnWait) -> NodeLinks:
    """Wait until every node has joined, and close the port. on_wait: called about every second with what
    is awaited; what it raises ends the wait.

    Raises StartError where a node that has the key cannot compute with this one, and RankLostError where one has not
    joined by the deadline, in monotonic seconds. A stranger is refused and logged, and ends nothing.
    """
    hall, joined = _Hall(key, own, listener), dict[tuple[int, str], Link]()
    hall.acceptor.start()
    try:
        _fill(joined, hall, own, deadline, on_wait)
    except BaseException:
        for link in joined.values():
            link.close()
        raise
    finally:
        hall.acceptor.close()
        hall.dismiss()
    others = range(1, own.nodes)
    steps, control = (tuple(joined[node, channel] for node in others) for channel in CHANNELS)
    for link in control:
        with contextlib.suppress(OSError):  # its end is noticed at the first look
            link.send(_GO)
    return NodeLinks(0, own.nodes, steps, control)


def _fill(
    joined: dict[tuple[int, str], Link],
    hall: "_Hall",
    own: Membership,
    deadline: float,
    on_wait: OnWait,
) -> None:
    """Put every connection there, by node and channel. A node that was started again replaces its earlier ones."""
    while len(joined) < (own.nodes - 1) * len(CHANNELS):
        others = range(1, own.nodes)
        missing = tuple(node for node in others if any((node, name) not in joined for name in CHANNELS))
        words = ", ".join(map(str, missing))
        on_wait(f"waiting for nodes {words} of {own.nodes}", missing)
        try:
            link, member = hall.members.get(timeout=1.0)
        except queue.Empty:
            if time.monotonic() > deadline:
                raise RankLostError(f"nodes {words} of {own.nodes} have not joined within {JOIN_S:.0f} s") from None
            continue
        if why := handshake.refusal(own, member):
            link.close()
            raise StartError(f"node {member.node} at {link.peer} cannot join: {why}")
        link.peer = f"node {member.node} at {link.peer}"
        # A process begins with its steps: the control of an earlier one is not its own.
        for channel in CHANNELS if member.channel == CHANNELS[0] else CHANNELS[1:]:
            if earlier := joined.pop((member.node, channel), None):
                with contextlib.suppress(OSError):
                    earlier.send(f"another process has joined as node {member.node}".encode(), within_s=RETRY_S)
                earlier.close()
        joined[member.node, member.channel] = link


class _Hall:
    """Where connections are until they have proved that they have the key. members: those that have, answered."""

    def __init__(self, key: bytes, own: Membership, listener: socket.socket) -> None:
        self.members: queue.Queue[tuple[Link, Membership]] = queue.Queue()
        self.acceptor = Acceptor(listener, self._admit, most=MOST_STRANGERS, name="nodes")
        self._key, self._own, self._name = key, own, secrets.token_bytes(16)
        self._admitting = threading.Lock()
        """A node opens its next connection when it has the answer, which is queued behind this one then."""

    def dismiss(self) -> None:
        """Close what has joined too late."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.members.get_nowait()[0].close()

    def _admit(self, link: Link) -> None:
        try:
            member, call = handshake.receive_membership(link, self._key)
            answered = JoinAnswer(refusal=handshake.refusal(self._own, member), leader=self._name)
            with self._admitting:
                handshake.answer(link, self._key, call, answered)
                self.members.put((link, member))
            if self.acceptor.is_closed:
                self.dismiss()
        except (OSError, LinkError, WrongKeyError) as error:
            LOG.warning("a connection to the port of nodes was refused: %s", error)
            link.close()


def follow(address: str, port: int, key: bytes, own: Membership, deadline: float, on_wait: OnWait) -> NodeLinks:
    """Join the leader, and wait until all have joined. on_wait: as of `lead`.

    Raises StartError where the leader refuses this node or does not have the key, and RankLostError where it ends or
    cannot be reached by the deadline.
    """
    links = _entered(address, port, key, own, deadline, on_wait)
    try:
        _await_go(links[1], deadline, on_wait)
    except BaseException:
        _close(links)
        raise
    steps, control = links
    return NodeLinks(own.node, own.nodes, (steps,), (control,))


def _entered(address: str, port: int, key: bytes, own: Membership, deadline: float, on_wait: OnWait) -> list[Link]:
    """A connection for each channel, both to the same leader: one may have taken the place of another in between."""
    while True:
        on_wait(f"joining node 0 at {address}:{port}", ())
        links, leaders = list[Link](), set[bytes]()
        try:
            for channel in CHANNELS:
                connection = socket.create_connection((address, port), handshake.HANDSHAKE_S)
                links.append(Link(connection, f"node 0 at {address}:{port}"))
                answered = handshake.join(links[-1], key, msgspec.structs.replace(own, channel=channel))
                if answered.refusal:
                    raise StartError(f"{links[-1].peer} refuses node {own.node}: {answered.refusal}")
                leaders.add(answered.leader)
            if len(leaders) == 1:
                return links
            _close(links)
        except (LinkError, WrongKeyError) as error:
            _close(links)
            raise StartError(str(error)) from error
        except StartError:
            _close(links)
            raise
        except OSError as error:  # it is not there yet, or too many are at its door
            _close(links)
            if time.monotonic() > deadline:
                raise RankLostError(
                    f"node 0 at {address}:{port} cannot be reached within {JOIN_S:.0f} s: {error}"
                ) from error
            time.sleep(RETRY_S)


def _close(links: list[Link]) -> None:
    for link in links:
        link.close()


def _await_go(control: Link, deadline: float, on_wait: OnWait) -> None:
    while not control.has_bytes(1.0):
        on_wait(f"joined {control.peer}, waiting for other nodes", ())
        if time.monotonic() > deadline + JOIN_S:  # the leader's wait began later, by that at most
            raise RankLostError(f"{control.peer} has not started the model: other nodes are missing")
    try:
        words = bytes(control.receive(key_proof.MOST_BYTES, within_s=handshake.HANDSHAKE_S))
    except (OSError, LinkError) as error:
        raise RankLostError(f"{control.peer} ended before all nodes had joined") from error
    if words != _GO:
        raise RankLostError(words.decode(errors="replace"))
