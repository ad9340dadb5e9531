"""Replicas that exchange blocks, in one process: their tiers in files of folders of their own, on ports of loopback."""

import threading
from pathlib import Path

from kvasir_runtime.nodes.listening import bind
from kvasir_runtime.runner.kv_offload.file_store import open_store
from kvasir_runtime.runner.kv_offload.transfer_thread import TransferThread
from kvasir_runtime.runner.kv_transfer.peer_transfers import PeerTransfers
from kvasir_runtime.runner.runner import ModelRunner

NAME = "0f" * 16
KEY = b"k" * 32
FACTS = {"the model's content": "00ff", "the types": "float32"}


def use_peers(
    runner: ModelRunner,
    folder: Path,
    num_bytes: int,
    *,
    keys: tuple[bytes, ...] = (KEY,),
    facts: dict[str, str] = FACTS,
) -> PeerTransfers:
    """Give a runner on the CPU a second tier in a folder, and a port on which others get its blocks."""
    blocks, changed = runner.blocks, threading.Condition()
    block_bytes = blocks[:, 0].numel()
    store = open_store(folder, NAME, block_bytes, num_bytes)
    of_peers = open_store(folder, NAME, block_bytes, num_bytes, is_watched=False)
    tier = TransferThread(store, blocks.numpy(), changed)
    listener = bind("127.0.0.1", 0, "--kv-transfer-port")
    transfers = PeerTransfers(tier, changed, of_peers, listener, facts, runner.facts.block_size)
    transfers.use_keys(keys)
    runner.use_host_tier(transfers)
    return transfers
