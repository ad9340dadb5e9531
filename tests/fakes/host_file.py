"""A second tier for a runner that tests make without the engine's start."""

from collections.abc import Callable
from pathlib import Path

from kvasir_runtime.runner.kv_offload.file_store import FileStore, open_store
from kvasir_runtime.runner.kv_offload.transfer_thread import TransferThread
from kvasir_runtime.runner.runner import ModelRunner


def use_host_file(
    runner: ModelRunner,
    folder: Path,
    num_bytes: int,
    *,
    name: str = "0f" * 16,
    new_store: Callable[[Path, str, int, int], FileStore] = open_store,
) -> None:
    """Give a runner on the CPU a second tier: a file in a folder, which others with the same name share."""
    blocks = runner.blocks
    store = new_store(folder, name, blocks[:, 0].numel(), num_bytes)
    runner.use_host_tier(TransferThread(store, blocks.numpy()))
