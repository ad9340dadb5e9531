"""Starts the processes of the ranks behind the first of a host, and watches them. Called by `build` and `node_worker`.

Each runs `rank_worker` with a RankArgs on its standard input, which stays open: they end with this process. One that
ends before it, for whatever reason, aborts the group, so that no rank waits for it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec
import torch

from kvasir_api import pod_layouts
from kvasir_api.multi_node import option_of
from kvasir_api.options import ServeOptions
from kvasir_runtime import source
from kvasir_runtime.engine_reports import Progress
from kvasir_runtime.errors import StartError
from kvasir_runtime.kernels import backends
from kvasir_runtime.kernels.collectives import Collectives, StageCollectives
from kvasir_runtime.kernels.node_collectives import NodeCollectives
from kvasir_runtime.kernels.node_stages import NodeStages
from kvasir_runtime.nodes.rendezvous import NodeLinks
from kvasir_runtime.runner.startup import host_resources, node_group

COMMAND: Final = (sys.executable, "-m", "kvasir_runtime.runner.startup.rank_worker")
LAST_WORDS_BYTES: Final = 4096
STDERR: Final = 2
NONE: Final = -1


class RankArgs(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank serves. options: those of the engine. rank, ranks: of those on this node. stages: that these form.
    descriptor: of their memory. threads: to compute with. device: of torch, by name. meeting: descriptor of a file in
    which ranks with a device each meet, NONE for others.

    last_words: descriptor of a pipe for one line about why it ended.
    """

    options: dict[str, Any]
    rank: int
    ranks: int
    stages: int
    descriptor: int
    threads: int
    device: str
    meeting: int
    last_words: int


def start(
    options: ServeOptions, device: torch.device, threads: int, on_progress: Callable[[Progress], None]
) -> Collectives:
    """Join the other nodes where there are any, and start the ranks behind the first of this one; this process's part
    in their group. threads: of each rank. on_progress: called about every second while nodes are missing.

    Raises StartError where ranks cannot compute together on this device, or with these options, and RankLostError where
    a node is missing.
    """
    if device.type != "cpu":
        return _with_cards(options, device, threads)
    if options.nnodes == 1 and not options.node_rank:
        return _node(options, threads, lambda local: local)
    folder = source.resolve(options.model)

    def on_wait(message: str, missing: tuple[int, ...]) -> None:
        on_progress(Progress(phase="starting", progress_fraction=0.0, message=message, missing_nodes=missing))

    links = node_group.joined(options, folder, on_wait)
    if options.local_ranks == 1:
        return node_collectives(options, None, links)
    return _node(options, threads, lambda local: node_collectives(options, local, links))


def node_collectives(options: ServeOptions, local: Collectives | None, links: NodeLinks | None) -> Collectives:
    """A rank's part of a group over nodes, by its part in the group of its node. links: at the first rank of a node."""
    kind = NodeStages if options.pipeline_parallel_size > 1 else NodeCollectives
    return kind(local, links, node=options.node_rank, nodes=options.nnodes)


def rank_memory(options: ServeOptions, group: Collectives | None) -> int:
    """Most memory that a rank may use on the node where that is least, the same on all ranks. All call it before they
    load the model. Raises RankLostError.
    """
    return least_memory(group, host_resources.memory_limit_bytes() // options.local_ranks)


def least_memory(group: Collectives | None, own_bytes: int) -> int:
    """The least that ranks of the stages of a group have. own_bytes: of this one. It goes from stage to stage, and back
    to rank 0, which sends it to all.
    """
    if not isinstance(group, StageCollectives):
        return own_bytes
    least = torch.tensor([own_bytes])
    if group.rank >= group.ranks // group.stages:
        least = torch.minimum(least, group.receive(torch.zeros_like(least)))
    group.send(least)
    if not group.rank:
        least = group.receive(torch.zeros_like(least))
    return int(group.broadcast(b"" if group.rank else str(int(least)).encode()))


def _with_cards(options: ServeOptions, device: torch.device, threads: int) -> Collectives:
    """Ranks with a CUDA device each, this process's first."""
    if why := pod_layouts.refusal(options, "cuda"):
        raise StartError(why)
    there = torch.cuda.device_count()
    if there < options.ranks:
        raise StartError(f"{_named(options)} needs {options.ranks} CUDA devices, and there are {there}")
    # Here, since others need not wait for torch.distributed.
    from kvasir_runtime.kernels.torch_collectives import TorchCollectives

    meeting = os.memfd_create("kvasir-cards")
    group = _node(options, threads, lambda local: TorchCollectives(local, device), meeting)
    assert isinstance(group, TorchCollectives)
    group.connect(meeting)
    return group


def _node(
    options: ServeOptions,
    threads: int,
    group_of: Callable[[Collectives], Collectives],
    meeting: int = NONE,
) -> Collectives:
    """Start the ranks of this node behind its first. group_of: the whole group, of that of this node. meeting: as of
    RankArgs.
    """
    ranks, stages = options.local_ranks, options.pipeline_parallel_size if options.nnodes == 1 else 1
    try:
        descriptor = backends.rank_memory(ranks, stages)
    except (RuntimeError, OSError) as error:
        raise StartError(f"{_named(options)} is not possible: {error}") from error
    try:
        group = group_of(backends.collectives_of(descriptor, 0, ranks, stages))
        for rank in range(1, ranks):
            words, last_words = os.pipe()
            args = RankArgs(
                options=options.model_dump(mode="json"),
                rank=rank,
                ranks=ranks,
                stages=stages,
                descriptor=descriptor,
                threads=threads,
                device="cpu" if meeting == NONE else f"cuda:{rank}",
                meeting=meeting,
                last_words=last_words,
            )
            try:
                _start(args, words, options.node_rank * ranks + rank, group)
            finally:
                os.close(last_words)
    finally:
        os.close(descriptor)
    return group


def _named(options: ServeOptions) -> str:
    return option_of(options.tensor_parallel_size, options.pipeline_parallel_size, options.data_parallel_size)


def _start(args: RankArgs, words: int, number: int, group: Collectives) -> None:
    """number: of the rank among all. words: the other end of its last_words. What libraries print is no reason to end:
    it goes to standard error.
    """
    process = subprocess.Popen(
        COMMAND,
        stdin=subprocess.PIPE,
        stdout=STDERR,
        pass_fds=[one for one in (args.descriptor, args.last_words, args.meeting) if one != NONE],
        start_new_session=True,
    )
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # it died already: the watch says how
        process.stdin.write(msgspec.json.encode(args) + b"\n")
        process.stdin.flush()
    name = f"rank {number}"
    threading.Thread(target=_watch, args=(process, words, name, group), daemon=True, name=name).start()


def _watch(process: "subprocess.Popen[bytes]", words_descriptor: int, name: str, group: Collectives) -> None:
    """Abort the group when a process ends, with its last words if it had any."""
    with process, open(words_descriptor, "rb") as stream:
        words = stream.read()[-LAST_WORDS_BYTES:].decode(errors="replace").strip()  # all, which is when it ended
    code = process.returncode
    ended = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with code {code}"
    group.abort(f"{name}: {words}" if words else f"{name} {ended}")


def _signal_name(number: int) -> str:
    """Real-time signals have no name of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
