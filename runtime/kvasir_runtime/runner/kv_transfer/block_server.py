"""Gives blocks of the host's tier to other replicas, straight from its file to their connections.

Each connection has a thread, which waits for requests, and for the engine where it computes a prompt for another
replica: then blocks are sent as soon as they are in the file, chunk by chunk. A block may be replaced while it is
sent: then its checksum is wrong at the other end. Every wait is bounded, and so is the number of connections.
"""

import itertools
import logging
import socket
import threading
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from kvasir_api.kv_transfer import MOST_PREFILL_S
from kvasir_runtime.nodes import key_proof
from kvasir_runtime.nodes.link import Link, LinkError
from kvasir_runtime.nodes.listening import Acceptor
from kvasir_runtime.runner.kv_offload.file_store import FileStore
from kvasir_runtime.runner.kv_transfer import tcp_peer
from kvasir_runtime.runner.kv_transfer.interface import BlockQuery, OpenPrefill, PeerError, Prefill
from kvasir_runtime.runner.kv_transfer.tcp_peer import MOST_QUERY_BYTES

LOG = logging.getLogger(__name__)
MOST_CONNECTIONS: Final = 256
"""Those that wait for a request included: a replica keeps some for a while, and may make 16 at once."""
MOST_PREFILLS: Final = 64
"""Prompts that are computed at a time; further callers get what is there, and compute the rest. Each takes two threads
and eight descriptors beside its connection."""
HANDSHAKE_S: Final = 5.0
IDLE_S: Final = 60.0
"""For which a connection may wait for its next request."""
ANSWER_S: Final = 30.0
"""For which a whole answer may take: who reads slower is cut off."""
SETTLE_S: Final = 1.0
"""For which blocks of a computed prompt may take to be in the file."""
POLL_S: Final = 0.01
LOOK_AHEAD: Final = 64
"""Blocks that are looked for at a time while a prompt is computed: they come in this order, but for those of one chunk.
Some never come, as those that a window has left behind: all are looked for where none has come for a while."""
QUIET_S: Final = 60.0
"""Between two log lines about connections that were refused."""


class BlockServer:
    """store: of the file, for this object's calls alone. facts: what a block's content depends on. keys: with any of
    them a caller may prove itself; none is accepted before there is one.
    """

    def __init__(self, listener: socket.socket, store: FileStore, facts: Mapping[str, str]) -> None:
        self.keys: tuple[bytes, ...] = ()
        self.prefill: Prefill | None = None
        self._store, self._facts = store, facts
        self._acceptor = Acceptor(listener, self._serve, most=MOST_CONNECTIONS, name="kv-peer")
        self._port: int = listener.getsockname()[1]
        self._warned_at = float("-inf")
        self._prefills = threading.Semaphore(MOST_PREFILLS)
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
                self._answer(link, *tcp_peer.query_of(link.receive(MOST_QUERY_BYTES, within_s=HANDSHAKE_S)))
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

    def _answer(self, link: Link, query: BlockQuery, keys: list[bytes]) -> None:
        """Send what is there of some keys, or what is there once their prompt is computed."""
        left = dict(enumerate(keys))
        self._send_held(link, left)
        if left and query.prefill is not None and self.prefill is not None and self._prefills.acquire(blocking=False):
            try:
                with self.prefill(query.tokens, query.salt, query.prefill) as opened:
                    self._send_computed(link, left, opened)
            finally:
                self._prefills.release()
        link.send(tcp_peer.HEAD.pack(tcp_peer.END, 0), within_s=ANSWER_S)

    def _send_computed(self, link: Link, left: dict[int, bytes], prefill: OpenPrefill) -> None:
        """Send blocks while they are computed, until all were sent, no more come, or the caller is gone."""
        deadline = time.monotonic() + MOST_PREFILL_S
        has_ended, moved_at = False, time.monotonic()
        beat_at = moved_at
        while left and (now := time.monotonic()) < deadline:
            rests = now > beat_at + tcp_peer.BEAT_S
            if self._send_held(link, left, None if rests or has_ended else LOOK_AHEAD):
                moved_at = beat_at = time.monotonic()
                continue
            if has_ended and now > moved_at + SETTLE_S:
                return
            if rests:
                link.send(tcp_peer.HEAD.pack(tcp_peer.WAIT, 0), within_s=HANDSHAKE_S)
                beat_at = now
            if link.has_bytes(0.0):
                raise ConnectionResetError(f"{link.peer} does not wait for its blocks any more")
            if not has_ended:
                has_ended = prefill.has_ended(POLL_S)
                moved_at = time.monotonic()
            else:
                time.sleep(POLL_S)

    def _send_held(self, link: Link, left: dict[int, bytes], most: int | None = None) -> bool:
        """Send what the file holds of some keys, at most the first so many, and remove it from them. Whether there was
        any."""
        deadline, before = time.monotonic() + ANSWER_S, len(left)
        first = list(itertools.islice(left.items(), most))
        for (index, _), slot in zip(first, self._store.located([key for _, key in first]), strict=True):
            if slot is None:
                continue
            link.send(tcp_peer.HEAD.pack(index, slot.block_crc), within_s=tcp_peer.left_s(deadline))
            within_s = tcp_peer.left_s(deadline)
            link.send_file(self._store.descriptor, slot.offset, self._store.block_bytes, within_s=within_s)
            del left[index]
        return len(left) < before

    def _warn(self, why: str) -> None:
        now = time.monotonic()
        if now >= self._warned_at + QUIET_S:
            self._warned_at = now
            LOG.warning("a connection to the port of blocks was refused: %s", why)
