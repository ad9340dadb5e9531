"""This host as one of several nodes that compute a model: what they must have in common, and how they join.

Called by `build` at node 0 and by `node_worker` at the others, before weights are read.
"""

import hashlib
import hmac
import struct
import time
from pathlib import Path
from typing import Final

import msgspec
import torch

from kvasir_api import __version__
from kvasir_api.flags import flag
from kvasir_api.options import RuntimeOptions, ServeOptions
from kvasir_runtime import arriving, gguf
from kvasir_runtime.errors import ModelError, StartError
from kvasir_runtime.nodes import rendezvous
from kvasir_runtime.nodes.handshake import Membership
from kvasir_runtime.nodes.rendezvous import NodeLinks, OnWait
from kvasir_runtime.runner.startup import startup_cache_key
from kvasir_runtime.weights import safetensors_checkpoint

LEAST_KEY_CHARACTERS: Final = 32
MOST_KEY_BYTES: Final = 4096
_COMMON: Final = ("revision", "model_impl", "device", "enable_eplb", "eplb_config")
"""Options of the process that shape what ranks compute."""
_SAMPLE_BYTES: Final = 4096
_LEAST_SAMPLES: Final = 4
_MOST_APART_BYTES: Final = 4 << 20
"""Of samples of a tensor: every tensor has some, since a fine-tune may change few of them."""


def joined(options: ServeOptions, folder: Path, on_wait: OnWait, join_s: float = rendezvous.JOIN_S) -> NodeLinks:
    """The links of this node, once all nodes have joined. folder: of the model. on_wait: called about every second.

    Raises StartError where the options or the nodes do not fit together, and RankLostError where a node is missing.
    """
    check(options)
    key, facts = _key(options.node_key_file, options.node_group), facts_of(options, folder)
    own = Membership(node=options.node_rank, nodes=options.nnodes, channel="", facts=facts)
    address, port, deadline = options.master_addr, options.master_port, time.monotonic() + join_s
    if options.node_rank:
        return rendezvous.follow(address, port, key, own, deadline, on_wait)
    listener = rendezvous.listen(address, port, deadline)
    return rendezvous.lead(listener, key, own, deadline, on_wait)


def check(options: ServeOptions) -> None:
    """Raises StartError where the options of nodes contradict one another."""
    nodes = options.nnodes
    if options.node_rank >= nodes:
        raise StartError(f"--node-rank {options.node_rank} must be less than --nnodes {nodes}")
    if not options.master_addr:
        raise StartError(f"--nnodes {nodes} needs --master-addr, the address of node 0")


def _key(path: str, group: str) -> bytes:
    """By which nodes of this group recognize one another: a node of another one, which may have the same file, is a
    stranger, and its attempts end nothing. Raises StartError where the file holds no key. The key is in no message.
    """
    if not path:
        raise StartError("--nnodes needs --node-key-file: without a key any process could join")
    try:
        with Path(path).open("rb") as stream:
            key = stream.read(MOST_KEY_BYTES).strip()
    except OSError as error:
        raise StartError(f"--node-key-file {path} cannot be read: {error.strerror}") from error
    if len(key) < LEAST_KEY_CHARACTERS:
        raise StartError(
            f"--node-key-file {path} holds {len(key)} characters; at least {LEAST_KEY_CHARACTERS} are needed"
        )
    return hmac.digest(key, group.encode(), "sha256")


def facts_of(options: ServeOptions, folder: Path) -> dict[str, str]:
    """What all nodes must have in common, by the name that a message gives it."""
    names = (*RuntimeOptions.model_fields, *_COMMON)
    facts = {flag(name): str(getattr(options, name)) for name in names}
    return facts | {
        "the version": f"kvasir {__version__} torch {torch.__version__}",
        "the model's content": content_of(folder),
    }


def content_of(folder: Path) -> str:
    """Names the content of a model: its config, the headers of its files, and samples of each of their tensors, once
    all are there. Raises ModelError.
    """
    arriving.all_awaited(folder)
    folder = arriving.real(folder)
    try:
        digest = hashlib.sha256(startup_cache_key.model_of(folder).encode())
        for path, places in _places(folder).items():
            with path.open("rb") as stream:
                for start, length in places:
                    for offset in range(0, length, _apart(length)):
                        stream.seek(start + offset)
                        digest.update(stream.read(min(_SAMPLE_BYTES, length - offset)))
    except (OSError, struct.error, msgspec.DecodeError) as error:
        raise ModelError(f"{folder} cannot be read: {error}") from error
    return digest.hexdigest()[:32]


def _places(folder: Path) -> dict[Path, list[tuple[int, int]]]:
    """First byte and length of each tensor, by file."""
    if not gguf.is_gguf(folder):
        return {path: safetensors_checkpoint.places(path) for path in startup_cache_key.weight_files(folder)}
    found: dict[Path, list[tuple[int, int]]] = {}
    for entry in gguf.read(folder).tensors.values():
        found.setdefault(entry.path, []).append((entry.start, entry.num_bytes))
    return found


def _apart(length: int) -> int:
    """Bytes from a sample of a tensor to the next; a small tensor is read whole."""
    return max(_SAMPLE_BYTES, min(length // _LEAST_SAMPLES, _MOST_APART_BYTES))
