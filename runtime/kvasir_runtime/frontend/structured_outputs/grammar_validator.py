"""Finds out in a worker process whether a grammar can be served, and caches the verdict.

Used on the event loop before a request goes to the engine, by the server and by the offline API. The worker is started
with the first grammar and loads the model's vocabulary; a server without grammars never starts it. Verdicts are cached
for those who share a prefix cache, so that the time until one reveals nothing of other tenants' grammars, and tenants
take turns at the worker.
"""

import asyncio
import contextlib
import hashlib
import os
import signal
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from kvasir_api import openai_errors
from kvasir_runtime.frontend.client_turns import ClientTurns
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.guide.protocol import HEAD, LOADED, WALL_S, Verdict, VerdictReply, VerdictRequest, framed
from kvasir_runtime.wire import EngineRequest, Grammar

WORKER_COMMAND: Final = (sys.executable, "-m", "kvasir_runtime.guide.worker")
MAX_BYTES: Final = 8 << 20
ENTRY_BYTES: Final = 256
MAX_WAITING_BYTES: Final = 32 << 20
NUM_AT_WORKER: Final = 4
QUEUE_S: Final = 30.0
"""How long a grammar waits for its turn: others may be slow, and one core's time is all they get."""
ANSWER_S: Final = 60 + 2 * WALL_S
"""Until the worker answers: it may have to load, and to validate a few others first."""
ONE_THREAD: Final = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""The worker forks, which a second thread would not survive."""


@dataclass(slots=True, eq=False)
class _Worker:
    """One process and the futures that wait for it; its end may be noticed when the next one runs already."""

    process: asyncio.subprocess.Process
    pending: dict[int, asyncio.Future[Verdict]] = field(default_factory=dict)
    ended: bool = False


class GrammarValidator:
    """folder: of the model. vocab_size: of its logits. observe: called with the seconds of each validation and whether
    it failed."""

    def __init__(
        self,
        folder: Path,
        vocab_size: int,
        *,
        command: Sequence[str] = WORKER_COMMAND,
        max_bytes: int = MAX_BYTES,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        queue_s: float = QUEUE_S,
        observe: Callable[[float, bool], None] = lambda _seconds, _refused: None,
    ) -> None:
        self._command = (*command, str(folder), str(vocab_size))
        self._observe = observe
        self._known: OrderedDict[bytes, Verdict] = OrderedDict()
        self._max_bytes, self._max_waiting_bytes = max_bytes, max_waiting_bytes
        self._queue_s = queue_s
        self._bytes = 0
        self._asked: dict[bytes, asyncio.Future[Verdict]] = {}
        self._turns = ClientTurns(NUM_AT_WORKER)
        self._waiting_bytes: Counter[str] = Counter()
        """Of each tenant's grammars."""
        self._number = 0
        self._worker: _Worker | None = None
        self._starting = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._broken, self._closed = "", False

    @property
    def worker_pid(self) -> int | None:
        """Of the worker, None where none runs."""
        return None if self._worker is None else self._worker.process.pid

    @property
    def remembered_bytes(self) -> int:
        """What the verdicts take that are remembered, about."""
        return self._bytes

    async def checked(self, request: GenerationRequest) -> GenerationRequest:
        """The request with its grammar as the engine takes it. Raises Refused with the field of the grammar."""
        guided = next((one for one in request.requests if one.sampling.grammar is not None), None)
        if guided is None:
            return request
        verdict = await self._verdict(guided)
        if verdict.error:
            message = f"The grammar of {request.grammar_field or 'the request'} is refused: {verdict.error}."
            raise Refused(openai_errors.invalid(message, param=request.grammar_field or None, code="invalid_grammar"))
        made = verdict.grammar
        if made is None:
            return request
        replaced = msgspec.structs.replace
        requests = [replaced(one, sampling=replaced(one.sampling, grammar=made)) for one in request.requests]
        return replace(request, requests=tuple(requests))

    async def close(self) -> None:
        """End the worker. What waits for it is refused at once, for another replica, and none is started again."""
        self._closed = True
        await self._end(self._worker)
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _verdict(self, guided: EngineRequest) -> Verdict:
        """From the cache, from a request for the same grammar that is running, or from the worker."""
        grammar, tenant = guided.sampling.grammar, guided.tenant
        assert grammar is not None
        key = _key(guided.salt, grammar)
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        asked = self._asked.get(key)
        if asked is None:
            if self._is_full(tenant, len(grammar.text)):
                raise _busy()
            self._waiting_bytes[tenant] += len(grammar.text)
            asked = self._asked[key] = asyncio.ensure_future(self._turn(key, grammar, tenant))
            asked.add_done_callback(lambda done: self._answered(key, grammar, tenant, done))
        # The first request may be cancelled; the others still wait for the verdict.
        return await asyncio.shield(asked)

    def _is_full(self, tenant: str, num_bytes: int) -> bool:
        """Whether no further grammar may wait. A tenant always has its share of the bound."""
        waiting, most = self._waiting_bytes, self._max_waiting_bytes
        share = most // len({*waiting, tenant})
        return waiting.total() + num_bytes > most and waiting[tenant] + num_bytes > share

    def _answered(self, key: bytes, grammar: Grammar, tenant: str, done: asyncio.Future[Verdict]) -> None:
        del self._asked[key]
        self._waiting_bytes[tenant] -= len(grammar.text)
        if not self._waiting_bytes[tenant]:
            del self._waiting_bytes[tenant]
        if not done.cancelled():
            done.exception()  # the request may have been cancelled before

    async def _turn(self, key: bytes, grammar: Grammar, tenant: str) -> Verdict:
        try:
            async with asyncio.timeout(self._queue_s):
                await self._turns.take(tenant)
        except TimeoutError as error:
            raise _busy() from error
        try:
            return await self._ask(key, grammar)
        finally:
            self._turns.give()

    async def _ask(self, key: bytes, grammar: Grammar) -> Verdict:
        """Once more where the worker died, which is no fault of this grammar's: those die in forks of it."""
        for last in (False, True):
            worker: _Worker | None = None
            try:
                async with asyncio.timeout(ANSWER_S):
                    worker = await self._at_work()
                    told = Verdict(error=self._broken) if worker is None else await self._told(worker, grammar)
            except (TimeoutError, OSError, EOFError) as error:
                await self._end(worker)
                if self._closed:
                    raise Refused(openai_errors.draining()) from error
                if last:
                    raise Refused(openai_errors.internal()) from error
                continue
            self._remember(key, grammar, told)
            return told
        raise AssertionError("unreachable")

    async def _at_work(self) -> _Worker | None:
        """The worker, started if need be; None where there can be none. Raises Refused after the close."""
        async with self._starting:
            if self._closed:
                raise Refused(openai_errors.draining())
            if self._worker is None and not self._broken:
                await self._start()
            return self._worker

    async def _told(self, worker: _Worker, grammar: Grammar) -> Verdict:
        assert worker.process.stdin is not None
        self._number += 1
        number = self._number
        future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        worker.pending[number] = future
        try:
            worker.process.stdin.write(framed(VerdictRequest(number, grammar)))
            await worker.process.stdin.drain()
            return await future
        finally:
            worker.pending.pop(number, None)

    async def _start(self) -> None:
        """Raises EOFError where it ends before it is loaded, and where all was closed meanwhile."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, **ONE_THREAD},
            start_new_session=True,
        )
        worker = self._worker = _Worker(process)
        assert process.stdout is not None
        try:
            if self._closed:
                raise EOFError("the server ends")
            first = await _read(process.stdout)
        except BaseException:
            await self._end(worker)
            raise
        if first.number == LOADED and first.verdict.error:
            self._broken = first.verdict.error
            await self._end(worker)
            return
        self._reader = asyncio.create_task(self._read_all(worker, process.stdout))

    async def _read_all(self, worker: _Worker, stdout: asyncio.StreamReader) -> None:
        try:
            while True:
                told = await _read(stdout)
                self._observe(told.seconds, bool(told.verdict.error))
                future = worker.pending.get(told.number)
                if future is not None and not future.done():
                    future.set_result(told.verdict)
        except (EOFError, OSError, msgspec.MsgspecError):
            await self._end(worker)

    async def _end(self, worker: _Worker | None) -> None:
        """The verdicts that it has not given end with it."""
        if worker is None or worker.ended:
            return
        worker.ended = True
        if self._worker is worker:
            self._worker = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.process.pid, signal.SIGKILL)  # its forks too
        await worker.process.wait()
        for future in worker.pending.values():
            if not future.done():
                future.set_exception(EOFError("the worker ended"))

    def _remember(self, key: bytes, grammar: Grammar, verdict: Verdict) -> None:
        if verdict.grammar == grammar:
            verdict = Verdict()  # it is sent as it came
        self._known[key] = verdict
        self._bytes += _size(verdict)
        while self._bytes > self._max_bytes:
            _, oldest = self._known.popitem(last=False)
            self._bytes -= _size(oldest)


def _busy() -> Refused:
    return Refused(openai_errors.overloaded("Too many grammars are being compiled.", retry_after_s=2.0))


async def _read(stdout: asyncio.StreamReader) -> VerdictReply:
    """Raises EOFError at the end."""
    (length,) = HEAD.unpack(await stdout.readexactly(HEAD.size))
    return msgspec.msgpack.decode(await stdout.readexactly(length), type=VerdictReply)


def _key(salt: bytes, grammar: Grammar) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode((salt, grammar))).digest()


def _size(verdict: Verdict) -> int:
    """Bytes that remembering it takes, about."""
    made = verdict.grammar
    return ENTRY_BYTES + len(verdict.error) + (0 if made is None else len(made.text) + len(made.check))
