"""The engine's end of the local socket: a ZeroMQ ROUTER with msgpack messages. Decides nothing, knows no requests."""

import logging
from pathlib import Path

import msgspec
import zmq

from kvasir_runtime.wire import FromEngine, ToEngine

LOG = logging.getLogger(__name__)
IPC = "ipc://"


class ClientSocket:
    """Bound at an address; the clients connect. close() delivers what was sent, within linger_s."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # a token is never dropped; clients bound what they request
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # sending to a client that is gone fails, and is not ignored
        self._socket.bind(address)
        if address.startswith(IPC):
            Path(address.removeprefix(IPC)).chmod(0o600)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)

    def receive(self, timeout_s: float) -> list[tuple[bytes, ToEngine]]:
        """All messages that came, in order; a message that cannot be decoded is logged and left out."""
        messages: list[tuple[bytes, ToEngine]] = []
        if timeout_s > 0 and not self._socket.poll(int(timeout_s * 1000)):
            return messages
        # Checking first is faster than the exception at the end.
        while int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            client, *parts = self._socket.recv_multipart(zmq.NOBLOCK)
            try:
                messages.append((client, self._decoder.decode(b"".join(parts))))
            except msgspec.MsgspecError as error:
                LOG.warning("a message of a client cannot be decoded: %s", error)
        return messages

    def send(self, client: bytes, message: FromEngine) -> bool:
        """False when the client is gone."""
        try:
            self._socket.send_multipart([client, self._encoder.encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def close(self, linger_s: float = 1.0) -> None:
        """Wait at most linger_s until the clients have everything that was sent to them."""
        self._socket.close(linger=int(linger_s * 1000))
        self._context.term()
