"""Starts the processes of the ranks behind the first, and watches them. Called by `build` in the engine process.

Each runs `rank_worker` with a RankArgs on its standard input, which stays open: they end with this process. One that
ends before it, for whatever reason, aborts the group, so that no rank waits for it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from typing import Any, Final

import msgspec
import torch

from kvasir_api.options import ServeOptions
from kvasir_runtime.errors import StartError
from kvasir_runtime.kernels import backends
from kvasir_runtime.kernels.collectives import Collectives

COMMAND: Final = (sys.executable, "-m", "kvasir_runtime.runner.startup.rank_worker")
LAST_WORDS_BYTES: Final = 4096
STDERR: Final = 2


class RankArgs(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank serves. options: those of the engine. descriptor: of the group's memory. threads: to compute with.

    last_words: descriptor of a pipe for one line about why it ended.
    """

    options: dict[str, Any]
    rank: int
    ranks: int
    descriptor: int
    threads: int
    last_words: int


def start(options: ServeOptions, device: torch.device, threads: int) -> Collectives:
    """Start all ranks behind the first; this process's part in their group. threads: of each rank.

    Raises StartError where ranks cannot compute together on this device, or with these options.
    """
    ranks = options.tensor_parallel_size
    if device.type != "cpu":
        raise StartError(f"--tensor-parallel-size {ranks} is not possible on CUDA yet: ranks compute on CPUs only")
    try:
        descriptor = backends.rank_memory(ranks)
    except (RuntimeError, OSError) as error:
        raise StartError(f"--tensor-parallel-size {ranks} is not possible: {error}") from error
    try:
        group = backends.collectives_of(descriptor, 0, ranks)
        for rank in range(1, ranks):
            words, last_words = os.pipe()
            args = RankArgs(
                options=options.model_dump(mode="json"),
                rank=rank,
                ranks=ranks,
                descriptor=descriptor,
                threads=threads,
                last_words=last_words,
            )
            try:
                _start(args, words, group)
            finally:
                os.close(last_words)
    finally:
        os.close(descriptor)
    return group


def _start(args: RankArgs, words: int, group: Collectives) -> None:
    """words: the other end of its last_words. What libraries print is no reason to end: it goes to standard error."""
    process = subprocess.Popen(
        COMMAND,
        stdin=subprocess.PIPE,
        stdout=STDERR,
        pass_fds=(args.descriptor, args.last_words),
        start_new_session=True,
    )
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # it died already: the watch says how
        process.stdin.write(msgspec.json.encode(args) + b"\n")
        process.stdin.flush()
    name = f"rank {args.rank}"
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
