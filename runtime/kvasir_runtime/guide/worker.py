"""A process that validates grammars: python -m kvasir_runtime.guide.worker FOLDER VOCAB_SIZE.

Started by the API process at the first grammar, and connected through its standard input and output. It loads the
vocabulary once; each grammar is validated in a fork of its own with limits on memory and time, so that a hostile one
takes nothing with it and whatever it took is given back. It ends when its input ends."""

import collections
import os
import resource
import selectors
import signal
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from kvasir_runtime.guide import validate, vocabulary
from kvasir_runtime.guide.errors import GrammarError
from kvasir_runtime.guide.protocol import (
    CPU_S,
    HEAD,
    LOADED,
    MEMORY_BYTES,
    WALL_S,
    Verdict,
    VerdictReply,
    VerdictRequest,
    framed,
)
from kvasir_runtime.guide.vocabulary import Vocabulary
from kvasir_runtime.wire import Grammar

NUM_AT_ONCE: Final = 2
STDIN, STDOUT, STDERR = 0, 1, 2


def main(arguments: list[str]) -> int:
    """Serve until the input ends; 1 when the vocabulary cannot be loaded."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setrecursionlimit(10_000)  # schemas are walked, and their depth is bounded before
    try:
        loaded = vocabulary.load(Path(arguments[0]), int(arguments[1]))
    except GrammarError as error:
        _send(VerdictReply(LOADED, Verdict(error=" ".join(str(error).split())[:400])))
        return 1
    _send(VerdictReply(LOADED, Verdict()))
    return _Validations(loaded).run()


class _Validation:
    """One fork. number: of its request; output: read from its pipe so far."""

    __slots__ = ("began", "number", "output", "pid")

    def __init__(self, number: int, pid: int) -> None:
        self.number = number
        self.pid = pid
        self.began = time.monotonic()
        self.output = b""


class _Validations:
    """The loop: requests from the input, verdicts from the pipes of the forks."""

    def __init__(self, loaded: Vocabulary) -> None:
        self._vocabulary = loaded
        self._selector = selectors.DefaultSelector()
        self._selector.register(STDIN, selectors.EVENT_READ)
        self._received = bytearray()
        self._waiting: collections.deque[VerdictRequest] = collections.deque()
        self._running: dict[int, _Validation] = {}

    def run(self) -> int:
        """Until the input ends."""
        while True:
            while self._waiting and len(self._running) < NUM_AT_ONCE:
                self._begin(self._waiting.popleft())
            due = min((one.began + WALL_S for one in self._running.values()), default=None)
            ready = self._selector.select(None if due is None else max(0.0, due - time.monotonic()))
            for key, _ in ready:
                if key.fd == STDIN:
                    if not self._read_requests():
                        return 0
                elif not (chunk := os.read(key.fd, 1 << 16)):
                    self._end(key.fd)
                else:
                    self._running[key.fd].output += chunk
            for pipe, one in list(self._running.items()):
                if time.monotonic() > one.began + WALL_S:
                    os.kill(one.pid, signal.SIGKILL)
                    self._end(pipe)

    def _read_requests(self) -> bool:
        piece = os.read(STDIN, 1 << 20)
        self._received += piece
        while len(self._received) >= HEAD.size:
            end = HEAD.size + HEAD.unpack_from(self._received)[0]
            if len(self._received) < end:
                break
            self._waiting.append(msgspec.msgpack.decode(self._received[HEAD.size : end], type=VerdictRequest))
            del self._received[:end]
        return bool(piece)

    def _begin(self, ask: VerdictRequest) -> None:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _try(ask.grammar, self._vocabulary, writer)
        os.close(writer)
        self._selector.register(reader, selectors.EVENT_READ)
        self._running[reader] = _Validation(ask.number, pid)

    def _end(self, pipe: int) -> None:
        one = self._running.pop(pipe)
        self._selector.unregister(pipe)
        os.close(pipe)
        _, status = os.waitpid(one.pid, 0)
        try:
            found = msgspec.msgpack.decode(one.output, type=Verdict)
        except msgspec.MsgspecError:
            found = Verdict(error=death(os.waitstatus_to_exitcode(status)))
        _send(VerdictReply(one.number, found, time.monotonic() - one.began))


def _try(grammar: Grammar, loaded: Vocabulary, writer: int) -> None:
    """In the fork: never returns."""
    status = 1
    try:
        limit()
        encoded = msgspec.msgpack.encode(validate.verdict(grammar, loaded))
        while encoded:
            encoded = encoded[os.write(writer, encoded) :]
        status = 0
    except MemoryError:
        status = 2
    finally:
        os._exit(status)


def limit() -> None:
    """Memory on top of what the vocabulary takes, seconds of one core, and no core dumps."""
    os.nice(5)  # the engine on the same cores comes first
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    statm = Path("/proc/self/statm")
    if statm.exists():
        limit = int(statm.read_text().split()[0]) * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (STDIN, STDOUT, STDERR):  # Rust's message about a lack of memory is not needed
        os.dup2(null, stream)


def death(code: int) -> str:
    """Why a fork ended without a verdict, from its exit status, or its signal with a minus."""
    if code in {-signal.SIGKILL, -signal.SIGXCPU}:
        return f"it is too complex: it took more than {CPU_S} s to compile"
    return f"it is too complex: it took more than {MEMORY_BYTES >> 20} MB to compile"


def _send(reply: VerdictReply) -> None:
    frame = framed(reply)
    while frame:
        frame = frame[os.write(STDOUT, frame) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
