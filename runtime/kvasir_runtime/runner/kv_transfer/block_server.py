"""Gives blocks of the host's tier to other replicas, straight from its file to their connections.

Each connection has a thread, which waits for requests and never for the engine. A block may be replaced while it is
sent: then its checksum is wrong at the other end. Every wait is bounded, and so is the number of connections.
"""

import logging
import socket
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from kvasir_runtime.nodes import key_proof
from kvasir_runtime.nodes.link import Link, LinkError
from kvasir_runtime.nodes.listening import Acceptor
from kvasir_runtime.runner.kv_offload.file_store import FileStore
from kvasir_runtime.runner.kv_offload.store_layout import KEY_BYTES
from kvasir_runtime.runner.kv_transfer import tcp_peer
from kvasir_runtime.runner.kv_transfer.interface import PeerError

LOG = logging.getLogger(__name__)
MOST_CONNECTIONS: Final = 64
HANDSHAKE_S: Final = 5.0
IDLE_S: Final = 60.0
"""For which a connection may wait for its next request."""
ANSWER_S: Final = 30.0
"""For which a whole answer may take: who reads slower is cut off."""
QUIET_S: Final = 60.0
"""Between two log lines about connections that were refused."""


class BlockServer:
    """store: of the file, for this object's calls alone. facts: what a block's content depends on. keys: with any of
    them a caller may prove itself; none is accepted before there is one.
    """

    def __init__(self, listener: socket.socket, store: FileStore, facts: Mapping[str, str]) -> None:
        self.keys: tuple[bytes, ...] = ()
        self._store, self._facts = store, facts
        self._acceptor = Acceptor(listener, self._serve, most=MOST_CONNECTIONS, name="kv-peer")
        self._port: int = listener.getsockname()[1]
        self._warned_at = float("-inf")
        self._acceptor.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._port

    def close(self) -> None:
        """Accept no more."""
        self._acceptor.close()

    def _serve(self, link: Link) -> None:
        try:
            self._admit(link)
            while link.has_bytes(IDLE_S):
                keys = tcp_peer.split_keys(link.receive(tcp_peer.MOST_KEYS * KEY_BYTES, within_s=HANDSHAKE_S))
                self._answer(link, keys)
        except (ConnectionError, EOFError, TimeoutError):
            return  # the caller ended it, or is too slow; the file was cut short
        except (LinkError, PeerError, OSError) as error:
            self._warn(str(error))
        except Exception:
            LOG.exception("a request of another replica for blocks failed")
        finally:
            link.close()

    def _admit(self, link: Link) -> None:
        call = key_proof.receive(link, tcp_peer.PURPOSE, HANDSHAKE_S)
        key = tcp_peer.proven(call, self.keys)
        if key is None:
            raise PeerError(f"{link.peer} does not have a key of this service")
        said = key_proof.decoded(link, call.body, tcp_peer.PeerCall)
        why = tcp_peer.refusal(tcp_peer.coded(self._facts, key), said.facts)
        salt = b"" if why else tcp_peer.masked(self._store.salt, key, call.numbers)
        answer = msgspec.msgpack.encode(tcp_peer.PeerAnswer(refusal=why, salt=salt))
        key_proof.answer(link, call, key, answer, HANDSHAKE_S)
        if why:
            raise PeerError(f"{link.peer} gets no blocks: {why}")

    def _answer(self, link: Link, keys: list[bytes]) -> None:
        """Send what is there of some keys."""
        deadline = time.monotonic() + ANSWER_S
        for index, slot in enumerate(self._store.located(keys)):
            if slot is None:
                continue
            link.send(tcp_peer.HEAD.pack(index, slot.block_crc), within_s=tcp_peer.left_s(deadline))
            within_s = tcp_peer.left_s(deadline)
            link.send_file(self._store.descriptor, slot.offset, self._store.block_bytes, within_s=within_s)
        link.send(tcp_peer.HEAD.pack(tcp_peer.END, 0), within_s=tcp_peer.left_s(deadline))

    def _warn(self, why: str) -> None:
        now = time.monotonic()
        if now >= self._warned_at + QUIET_S:
            self._warned_at = now
            LOG.warning("a connection to the port of blocks was refused: %s", why)
