"""Prompts that this engine computes for other replicas: each is a request of a client of its own.

Called by the threads that give out blocks (`runner/kv_transfer`), with what the other replica sent. The engine treats
such a request as any other: it waits its turn among those of its tenant, counts in `/state`, and may be refused. One
token is drawn, since a prompt is computed no other way; it goes nowhere.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

import msgspec
import zmq

from kvasir_runtime.core.plan import PeerPrefill
from kvasir_runtime.runner.kv_transfer.interface import PeerError
from kvasir_runtime.wire import (
    Abort,
    EngineFacts,
    EngineOutput,
    EngineRequest,
    SamplingConfig,
    Submit,
    ToEngine,
    unpacked_ids,
)

MOST_SALT_BYTES: Final = 256
ID_PREFIX: Final = "prefill-"


class _Outputs(msgspec.Struct, frozen=True, tag="step"):
    """wire.StepOutputs, of which nothing else is read."""

    outputs: tuple[EngineOutput, ...]


class PeerPrefills:
    """Implements `Prefill`. address: of the engine's socket. facts: of its model, that a prompt must fit."""

    def __init__(self, address: str, facts: EngineFacts) -> None:
        self._address, self._facts = address, facts

    @contextmanager
    def __call__(self, tokens: bytes, salt: bytes, prefill: PeerPrefill) -> Iterator["_OpenPrefill"]:
        """Raises PeerError for a prompt that the model does not take."""
        request = _request(tokens, salt, prefill, self._facts)
        with zmq.Context(io_threads=1) as context, _OpenPrefill(context, self._address, request.request_id) as opened:
            opened.send(Submit(request))
            yield opened


class _OpenPrefill:
    """A connection to the engine for one request, which ends with it. Used by one thread."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, request_id: str) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._request_id, self._ended = request_id, False
        self._socket.setsockopt(zmq.LINGER, 1000)  # an abort should arrive
        self._socket.connect(address)
        self._decode = msgspec.msgpack.Decoder(_Outputs).decode

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ended:
            self.send(Abort(self._request_id))
        self._socket.close()

    def send(self, message: ToEngine) -> None:
        """Queue a message; never waits."""
        self._socket.send(msgspec.msgpack.encode(message), zmq.NOBLOCK)

    def has_ended(self, wait_s: float) -> bool:
        """Whether the engine has computed or refused the prompt; waits for at most so long."""
        while not self._ended and self._socket.poll(int(wait_s * 1000)):
            message = b"".join(self._socket.recv_multipart(zmq.NOBLOCK))
            self._ended = any(
                output.request_id == self._request_id and output.finish_reason is not None
                for output in self._decode(message).outputs
            )
            wait_s = 0.0
        return self._ended


def _request(tokens: bytes, salt: bytes, prefill: PeerPrefill, facts: EngineFacts) -> EngineRequest:
    """The prompt as a request. What the engine expects to be checked is checked here: a peer may be wrong."""
    longest = min(facts.max_model_len, facts.max_cached_tokens)
    if len(tokens) % 4 or not 0 < len(tokens) // 4 < longest:
        raise PeerError(f"a prompt of {len(tokens)} bytes is none of 1 to {longest - 1} tokens")
    if len(salt) > MOST_SALT_BYTES:
        raise PeerError(f"a salt of {len(salt)} bytes is longer than {MOST_SALT_BYTES}")
    if max(unpacked_ids(tokens)) >= facts.vocab_size:
        raise PeerError("a prompt has ids that the model does not have")
    return EngineRequest(
        request_id=f"{ID_PREFIX}{uuid.uuid4()}",
        prompt=(),
        packed_prompt=tokens,
        sampling=SamplingConfig(temperature=0.0, max_tokens=1, ignore_eos=True),
        salt=salt,
        tenant=prefill.tenant,
        weight=prefill.weight,
        priority=prefill.priority,
        for_peer=True,
    )
