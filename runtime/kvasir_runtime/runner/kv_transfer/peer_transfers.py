"""A host's tier of which other replicas get blocks, and that fetches theirs. Made by `runner.startup.host_tier`."""

import socket
import threading
from collections.abc import Mapping

import msgspec

from kvasir_runtime.core.plan import HostChanges, StepPlan, TransferResults
from kvasir_runtime.runner.kv_offload.file_store import FileStore
from kvasir_runtime.runner.kv_offload.transfer_thread import TransferThread
from kvasir_runtime.runner.kv_transfer import tcp_peer
from kvasir_runtime.runner.kv_transfer.block_fetcher import BlockFetcher
from kvasir_runtime.runner.kv_transfer.block_server import BlockServer
from kvasir_runtime.runner.kv_transfer.interface import BlockPeer, PeerError, Prefill


class PeerTransfers:
    """Implements `BlockTransfers`: copies are those of the tier.

    changed: of the tier, notified when something has ended. store: of the tier's file, for this object alone. facts:
    what the content of a block depends on, by name. block_size: in tokens.
    """

    def __init__(
        self,
        tier: TransferThread,
        changed: threading.Condition,
        store: FileStore,
        listener: socket.socket,
        facts: Mapping[str, str],
        block_size: int,
    ) -> None:
        self._tier, self._changed, self._facts = tier, changed, facts
        self._fetcher = BlockFetcher(store, self._connected, block_size=block_size, changed=changed)
        self._server = BlockServer(listener, store, facts)

    @property
    def port(self) -> int:
        """On which blocks are given out."""
        return self._server.port

    @property
    def hash_salt(self) -> bytes:
        """Of the tier."""
        return self._tier.hash_salt

    @property
    def num_slots(self) -> int:
        """Of the tier."""
        return self._tier.num_slots

    def use_keys(self, keys: tuple[bytes, ...]) -> None:
        """Keys that replicas of the service share: all are accepted, the first is used."""
        self._server.keys = tuple(map(tcp_peer.transfer_key, keys))
        self._fetcher.forget_connections()

    def use_prefill(self, prefill: Prefill) -> None:
        """Compute prompts for other replicas in this way; before that none is."""
        self._server.prefill = prefill

    def submit(self, plan: StepPlan) -> None:
        """Begin fetches and copies. The former come first: requests wait for them, whatever becomes of the copies."""
        if plan.fetches or plan.cancels:
            with self._changed:
                self._fetcher.cancel(plan.cancels)
                self._fetcher.submit(plan.fetches)
        self._tier.submit(plan)

    def completed(self, wait_s: float) -> TransferResults:
        """What ended since the last call."""
        with self._changed:
            if wait_s and self._fetcher.is_busy and not self._fetcher.has_ended:
                self._changed.wait(wait_s)
                wait_s = 0.0
            fetched = self._fetcher.take()
        return msgspec.structs.replace(self._tier.completed(0.0 if fetched else wait_s), fetched=fetched)

    def changes(self) -> HostChanges | None:
        """Of the tier, what was fetched included."""
        return self._tier.changes()

    def forget(self) -> None:
        """Erase the tier. What fetches bring after that is dropped by later plans."""
        self._tier.forget()

    def close(self) -> None:
        """Give out no more, and keep no connection."""
        self._server.close()
        self._fetcher.forget_connections()

    def _connected(self, peer: str, deadline: float) -> BlockPeer:
        keys = self._server.keys
        if not keys:
            raise PeerError("this replica has no key of the service yet")
        return tcp_peer.connect(peer, deadline, key=keys[0], facts=self._facts)
