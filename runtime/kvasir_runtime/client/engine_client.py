"""The API process's end of the socket to the engine: sends requests, queues each output for its stream.

Owned by the server's process; used on its event loop only. It handles messages, not HTTP, text or tensors. When the
engine dies every open stream gets an error output, so that no client waits forever.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
import zmq

from kvasir_api.openai_errors import DRAINING, MODEL_OUTPUT_INVALID
from kvasir_api.state import RuntimeState
from kvasir_runtime import wire
from kvasir_runtime.client.event_queue import EventQueue
from kvasir_runtime.client.open_sequences import OpenSequences, TenantLoad
from kvasir_runtime.client.prefix_log import PrefixLog
from kvasir_runtime.engine_reports import PrefixChanges, Progress, TenantUsage

RECONNECT_MS = 20
ENDED_WELL = ("stop", "length")


class _StepMessage(msgspec.Struct, frozen=True, tag="step"):
    """wire.StepOutputs with a state that is decoded only when it is read: most are replaced before."""

    outputs: tuple[wire.EngineOutput, ...]
    state: msgspec.Raw
    computed_tokens: int = 0
    prefixes: PrefixChanges | None = None
    tenants: dict[str, TenantUsage] | None = None
    expected_s: float = 0.0


class EngineDeadError(Exception):
    """The engine takes no more requests; the message has the reason. refusal: another start would end the same."""

    def __init__(self, message: str, *, refusal: bool = False) -> None:
        super().__init__(message)
        self.refusal = refusal


class EngineClient:
    """Routes of all live sequences, and the last state of the engine.

    address: of the engine's ROUTER socket. clock: monotonic seconds. on_progress is called for each step of the start,
    on_step with the tokens that each step of the engine computed, on_usage with what tenants used since the last call,
    on_failure when the engine is gone.
    ready is None until the engine takes requests, hash_salt empty; state is its last snapshot, prefixes what is cached.
    The last message came at last_message_at, and announced the next one within expected_s (0: not at all).
    invalid_in_a_row: requests that ended since one ended well because the model's output was not finite.
    interrupted: the process is about to end, and nothing is to be sent again.
    """

    def __init__(
        self,
        address: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_progress: Callable[[Progress], None] = lambda _: None,
        on_step: Callable[[int], None] = lambda _: None,
        on_usage: Callable[[Mapping[str, TenantUsage]], None] = lambda _: None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._address = address
        self._clock = clock
        self._on_progress = on_progress
        self._on_step = on_step
        self._on_usage = on_usage
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._open = OpenSequences()
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(_StepMessage | Progress | wire.Ready | wire.EngineFailed).decode
        self._decode_state = msgspec.msgpack.Decoder(RuntimeState).decode
        self._packed_state: msgspec.Raw | None = None
        self._state = RuntimeState()
        self.prefixes = PrefixLog()
        self._outcome: asyncio.Future[wire.EngineFacts] = self._loop.create_future()
        self.ready: wire.EngineFacts | None = None
        self.hash_salt = b""
        self.last_message_at = clock()
        self.expected_s = 0.0
        self.invalid_in_a_row = 0
        self.interrupted = False
        self.failure: str | None = None

    @property
    def num_inflight(self) -> int:
        """Sequences that were sent and have not ended."""
        return len(self._open)

    @property
    def load_by_tenant(self) -> Mapping[str, TenantLoad]:
        """The same by tenant, of those that have any."""
        return self._open.tenants

    @property
    def state(self) -> RuntimeState:
        """The engine's last snapshot of itself."""
        if self._packed_state is not None:
            self._state, self._packed_state = self._decode_state(self._packed_state), None
        return self._state

    async def run(self) -> None:
        """Register with the engine and dispatch its messages, until cancelled or the engine fails."""
        socket = self._socket
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)  # bounded by the admission of requests, not by losing an Abort
        socket.setsockopt(zmq.RCVHWM, 0)  # bounded by the tokens that the requests may generate
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)  # the engine may bind after us
        socket.connect(self._address)
        self._loop.add_reader(socket.fileno(), self._receive)
        try:
            self._send(wire.Hello())
            await self._closed
        finally:
            self.fail("the connection to the engine was closed")
            self._loop.remove_reader(socket.fileno())
            self._context.destroy(linger=0)

    async def wait_ready(self) -> wire.EngineFacts:
        """The engine's facts once it takes requests. Raises EngineDeadError with the reason when the start fails."""
        return await asyncio.shield(self._outcome)

    def submit(
        self, requests: Sequence[wire.EngineRequest], queue: EventQueue, indices: Sequence[int] | None = None
    ) -> None:
        """Send sequences of one HTTP request; their outputs arrive in queue under their indices, by default from 0 on.

        Raises EngineDeadError.
        """
        if self.failure is not None:
            raise EngineDeadError(self.failure)
        for index, request in zip(range(len(requests)) if indices is None else indices, requests, strict=True):
            self._open.add(request, queue, index)
        for request in requests:
            if request.packed_prompt:
                request = msgspec.structs.replace(request, prompt=())
            if not request.follows:
                self._send(wire.Submit(request))

    def abort(self, request_id: str, *, stopped: bool = False) -> None:
        """Free a sequence's blocks at the next step; stopped when a stop string ended it. No output follows."""
        if self._open.end(request_id) is not None and self.failure is None:
            self._send(wire.Abort(request_id, "stop" if stopped else "abort"))

    def use_peer_keys(self, keys: tuple[bytes, ...]) -> None:
        """Secrets that replicas of the service share, for the blocks that they exchange."""
        if self.failure is None:
            self._send(wire.PeerKeys(keys))

    def inject(self, request_id: str, token_ids: tuple[int, ...]) -> None:
        """Append ids to a running request. Ended requests are ignored."""
        if request_id in self._open and self.failure is None:
            self._send(wire.Inject(request_id, token_ids))

    def forget(self, owner: bytes = b"") -> None:
        """Let no later request find what was computed so far, and erase what the host holds of it.

        owner: only blocks with this mark (`hashes.owner_of_salt`).
        """
        if self.failure is None:
            self._send(wire.Forget(owner))

    def drain(self) -> None:
        """Put the engine into draining: the process is about to end."""
        if self.failure is None:
            self._send(wire.Drain())

    def hand_back(self) -> None:
        """End the sequences that wait for their first step, with the code "draining"."""
        if self.failure is None:
            self._send(wire.HandBack())

    def interrupt(self, message: str) -> None:
        """End all open sequences, in the engine too, with an error of this message and the code "draining"."""
        self.interrupted = True
        for request_id, (queue, index, _) in self._open.end_all().items():
            ended = wire.EngineOutput(request_id=request_id, finish_reason="abort", message=message, code=DRAINING)
            queue.put(index, ended)
            if self.failure is None:
                self._send(wire.Abort(request_id))

    def shutdown(self) -> None:
        """Stop the engine."""
        if self.failure is None:
            self._send(wire.Shutdown())

    def fail(self, message: str, *, refusal: bool = False) -> None:
        """The engine is gone: end every stream with an error of this message. The first message stays."""
        if self.failure is not None:
            return
        self.failure = message
        self._on_failure()
        if not self._closed.done():
            self._closed.set_result(None)
        if not self._outcome.done():
            self._outcome.set_exception(EngineDeadError(message, refusal=refusal))
            self._outcome.exception()  # the future may have no reader
        for request_id, (queue, index, _) in self._open.end_all().items():
            queue.put(index, wire.EngineOutput(request_id=request_id, finish_reason="error", message=message))

    def _send(self, message: wire.ToEngine) -> None:
        self._socket.send(self._encode(message), zmq.NOBLOCK)
        self._loop.call_soon(self._receive)  # a send may consume the readable signal

    def _receive(self) -> None:
        """Read all messages. ZeroMQ signals readable only once, so the socket is read until it is empty."""
        try:
            while self.failure is None and not self._socket.closed and self._readable:
                self._dispatch(self._decode(self._socket.recv(zmq.NOBLOCK)))
        except msgspec.MsgspecError as error:
            self.fail(f"the engine sent a message that cannot be decoded: {error}")

    @property
    def _readable(self) -> bool:
        """A look at the flag is quicker than the exception of an empty socket."""
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def _dispatch(self, message: _StepMessage | Progress | wire.Ready | wire.EngineFailed) -> None:
        self.last_message_at = self._clock()
        match message:
            case _StepMessage(outputs, state, computed_tokens, prefixes, tenants, expected_s):
                self._packed_state, self.expected_s = state, expected_s
                if prefixes is not None:
                    self.prefixes.take(prefixes)
                if tenants is not None:
                    self._on_usage(tenants)
                if computed_tokens:
                    self._on_step(computed_tokens)
                for output in outputs:
                    self._route(output)
            case Progress():
                self._on_progress(message)
            case wire.Ready(facts, hash_salt):
                self.ready, self.hash_salt = facts, hash_salt
                if not self._outcome.done():
                    self._outcome.set_result(facts)
            case wire.EngineFailed(text, refusal):
                self.fail(text, refusal=refusal)

    def _route(self, output: wire.EngineOutput) -> None:
        """Unknown ids are those that were aborted a moment ago."""
        if output.code == MODEL_OUTPUT_INVALID:
            self.invalid_in_a_row += 1
        elif output.finish_reason in ENDED_WELL:
            self.invalid_in_a_row = 0
        has_ended = output.finish_reason is not None
        sequence = self._open.end(output.request_id) if has_ended else self._open.get(output.request_id)
        if sequence is not None:
            sequence.queue.put(sequence.place, output)
