"""Ports that this process listens on, and threads for their connections where no event loop serves them."""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from kvasir_api import names
from kvasir_runtime.nodes.link import Link

LOG = logging.getLogger(__name__)
BACKLOG: Final = 2048
RETRY_S: Final = 0.25


class PortError(Exception):
    """The address cannot be listened on, or not with TLS; the message is one line with the reason."""


class Acceptor:
    """Has each connection of a listener served in a thread of its own, at most so many at a time; further ones are
    closed. serve: ends, or closes, what it gets. name: of the threads.
    """

    def __init__(self, listener: socket.socket, serve: Callable[[Link], None], *, most: int, name: str) -> None:
        self._listener, self._serve, self._name = listener, serve, name
        self._places = threading.Semaphore(most)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._accept, daemon=True, name=name)

    @property
    def is_closed(self) -> bool:
        """Whether no more is accepted."""
        return self._closed.is_set()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Accept no more, and free the port. Connections that are being served go on."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, address = self._listener.accept()
            except OSError:
                if self._closed.is_set():
                    return
                time.sleep(RETRY_S)  # no descriptor is free, or the client has left
                continue
            if not self._places.acquire(blocking=False):
                connection.close()
                continue
            try:
                link = Link(connection, str(address[0]))
                threading.Thread(target=self._run, args=(link,), daemon=True, name=self._name).start()
            except (RuntimeError, OSError) as error:  # no more threads, or the client has left
                LOG.warning("a connection of %s is not served: %s", address[0], error)
                connection.close()
                self._places.release()
                time.sleep(RETRY_S)

    def _run(self, link: Link) -> None:
        try:
            self._serve(link)
        finally:
            self._places.release()


def bind(host: str, port: int, flag: str) -> socket.socket:
    """A bound socket; host `::` takes IPv4 as well, port 0 a free one. flag is named in the error. Raises PortError."""
    if is_all := host == names.ALL_ADDRESSES:
        host = host if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - as it was asked for
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise PortError(f"cannot listen on {host}: {error.strerror or error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_all and family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # whatever the node's default is
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PortError(f"cannot listen on {host}:{port}: {error.strerror} (choose another with {flag})") from error
    return listener
