"""Opens the second tier of the KV cache on the host, as the options ask for it. Called by `build`."""

import hashlib
import logging
import os
import threading
from collections.abc import Mapping
from errno import EDQUOT, EIO, ENOSPC
from pathlib import Path
from typing import Final

import msgspec
import torch
from torch import Tensor

import kvasir_runtime
from kvasir_api import __version__
from kvasir_api.flags import flag
from kvasir_api.options import RuntimeOptions, ServeOptions
from kvasir_runtime import arriving
from kvasir_runtime.errors import StartError
from kvasir_runtime.nodes.listening import PortError, bind
from kvasir_runtime.runner.kv_offload import store_layout
from kvasir_runtime.runner.kv_offload.file_store import FileStore, open_store
from kvasir_runtime.runner.kv_offload.interface import BlockTransfers
from kvasir_runtime.runner.kv_offload.pinned_transfers import PinnedTransfers
from kvasir_runtime.runner.kv_offload.store_file import LockBusyError
from kvasir_runtime.runner.kv_offload.transfer_thread import TransferThread
from kvasir_runtime.runner.kv_transfer.peer_transfers import PeerTransfers
from kvasir_runtime.runner.startup import node_group, startup_cache_key
from kvasir_runtime.runner.state.device_stream import CudaCopyStream
from kvasir_runtime.wire import EngineFacts

LOG = logging.getLogger(__name__)
VARIABLE: Final = "KVASIR_KV_HOST_DIR"
_OF_SERVING: Final = {
    *(
        "kv_cache_tokens",
        "kv_host_bytes",
        "weights_host_bytes",
        "memory_percent",
        "prefix_cache",
        "prefix_warmup_seconds",
        "cuda_graphs",
        "max_batch_tokens",
    ),
    *("max_waiting", "max_waiting_seconds", "max_waiting_tokens", "ttft_milliseconds"),
    *("max_sequences", "tool_call_parser", "reasoning_parser", "generation_config"),
    *("pooling", "normalize", "matryoshka", "scoring", "shared_prefix_cache", "tenant_weights"),
}
"""Options that change no key and no value of a token; any other, and any to come, gives another file."""
_TRANSIENT: Final = (ENOSPC, EDQUOT, EIO)
"""A disk's troubles, which pass; what else goes wrong is a wrong option."""


def transfers(options: ServeOptions, model: Path, facts: EngineFacts, blocks: Tensor) -> BlockTransfers | None:
    """The copies between a cache and its second tier; None where there is none, or its disk cannot hold it.

    blocks: (pieces, num_blocks, piece_bytes) uint8, the cache. Raises StartError where the options cannot be followed.
    """
    _check_transfer(options)
    if not options.kv_host_bytes:
        return None
    block_bytes = blocks.shape[0] * blocks.shape[2]
    if blocks.device.type != "cpu":
        if options.kv_transfer_port >= 0:
            raise StartError("--kv-transfer-port needs a replica on a CPU: other tiers give out no blocks yet")
        return _pinned(options, blocks, block_bytes)
    if store_layout.num_slots(options.kv_host_bytes, block_bytes) < 1:
        raise StartError(f"--kv-host-bytes {options.kv_host_bytes} does not hold one block of {block_bytes:,} bytes")
    name = file_name(options, model, facts, block_bytes)
    store = _file(options, name, block_bytes)
    if store is None or options.kv_transfer_port < 0:
        return None if store is None else TransferThread(store, blocks.numpy())
    changed, of_peers = threading.Condition(), _file(options, name, block_bytes, is_watched=False)
    tier = TransferThread(store, blocks.numpy(), changed)
    if of_peers is None:
        return tier
    try:
        listener = bind(options.host, options.kv_transfer_port, "--kv-transfer-port")
    except PortError as error:
        raise StartError(str(error)) from error
    shared = peer_facts(options, model, facts, block_bytes)
    return PeerTransfers(tier, changed, of_peers, listener, shared, facts.block_size)


def _check_transfer(options: ServeOptions) -> None:
    if options.kv_transfer_port < 0:
        return
    if not options.kv_host_bytes:
        raise StartError("--kv-transfer-port needs --kv-host-bytes: blocks are given out from there, and come there")
    if not (options.continuation_key_file or options.pod_revision):
        raise StartError("--kv-transfer-port needs --continuation-key-file: replicas prove themselves by its keys")


def directory(option: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Where files are kept: the option, else the variable, else below the user's cache. Raises StartError."""
    chosen = option or environment.get(VARIABLE, "")
    if chosen:
        return Path(os.path.expanduser(chosen))  # noqa: PTH111 -- Path's own raises where the user is unknown
    cache = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    if not cache.startswith("/"):
        raise StartError("--kv-host-bytes needs a directory, and this user has no cache: set --kv-host-dir")
    return Path(cache) / "kvasir" / "kv"


def file_name(options: ServeOptions, model: Path, facts: EngineFacts, block_bytes: int) -> str:
    """Hexadecimal, of everything that the content of a block depends on, and of the service that it belongs to."""
    name = options.served_model_name[0] if options.served_model_name else ""
    decisive = [option for option in RuntimeOptions.model_fields if option not in _OF_SERVING]
    known = {
        "service": name,
        "model": startup_cache_key.identity(model),
        "block": f"{facts.block_size} tokens {block_bytes} bytes",
        "options": " ".join(f"{name}={getattr(options, name)}" for name in decisive),
        "types": f"{facts.dtype} {facts.quantization}",
        "kernels": f"{facts.device} {facts.kernels} {facts.fallback}",
        "versions": f"kvasir {__version__} torch {torch.__version__}",
        "source": startup_cache_key.source(Path(kvasir_runtime.__file__).parent),
    }
    return hashlib.sha256(msgspec.json.encode(known, order="sorted")).hexdigest()[:32]


def peer_facts(options: ServeOptions, model: Path, facts: EngineFacts, block_bytes: int) -> dict[str, str]:
    """What two replicas must have in common so that blocks of one are those of the other, by the name that a message
    gives it. Unlike `file_name` it says nothing of where the model's files lie.

    The content of a model is known by samples alone, so that its commit, and the revision of the pods, which a change
    of the model in a spec makes another one, must be the same as well.
    """
    decisive = [option for option in RuntimeOptions.model_fields if option not in _OF_SERVING]
    options_of = {flag(name): str(getattr(options, name)) for name in (*decisive, "model_impl")}
    return options_of | {
        "the service": options.served_model_name[0] if options.served_model_name else "",
        "the pods' revision": options.pod_revision,
        "the model's commit": _commit(model),
        "the model's content": node_group.content_of(model),
        "the layout of blocks": f"{facts.block_size} tokens {block_bytes} bytes {facts.attentions}",
        "the types": f"{facts.dtype} {facts.quantization}",
        "the kernels": f"{facts.kernels} {facts.fallback}",
        "the version": f"kvasir {__version__} torch {torch.__version__}",
    }


def _commit(model: Path) -> str:
    """Of a model in the hub's cache, as REPOSITORY/snapshots/COMMIT names it; empty for any other."""
    path = arriving.real(model).absolute()
    return next((one.name for one in (path, *path.parents) if one.parent.name == "snapshots"), "")


def _pinned(options: ServeOptions, blocks: Tensor, block_bytes: int) -> PinnedTransfers:
    """In memory of this process, which a card copies to and from; `load_model` has checked that it may use so much."""
    num_slots = options.kv_host_bytes // block_bytes
    if num_slots < 1:
        raise StartError(f"--kv-host-bytes {options.kv_host_bytes:,} does not hold one block of {block_bytes:,} bytes")
    try:
        return PinnedTransfers(blocks, num_slots, CudaCopyStream(blocks.device))
    except (RuntimeError, MemoryError) as error:
        raise StartError(f"--kv-host-bytes {options.kv_host_bytes:,}: {error}") from error


def _file(options: ServeOptions, name: str, block_bytes: int, *, is_watched: bool = True) -> FileStore | None:
    folder = directory(options.kv_host_dir)
    try:
        return open_store(folder, name, block_bytes, options.kv_host_bytes, is_watched=is_watched)
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno not in _TRANSIENT and not isinstance(error, LockBusyError):
            raise StartError(f"--kv-host-dir {folder}: {why}") from error
        LOG.warning("the KV cache has no second tier: %s: %s", folder, why)
        return None
