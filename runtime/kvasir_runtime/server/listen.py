"""Opens the two ports before anything slow happens, and runs uvicorn on them.

Called by the process. A taken port is one clear line at once, not an error after a minute of loading.
"""

import contextlib
import socket
from collections.abc import Iterator
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from kvasir_runtime.server.http_limits import BoundedProtocol

BACKLOG: Final = 2048
KEEP_ALIVE_S: Final = 75
"""Longer than the 60 s for which gateways usually keep a connection, so that they close it and not we."""


class PortError(Exception):
    """The address cannot be listened on; the message is one line with the reason."""


class Server(uvicorn.Server):
    """uvicorn without signal handlers: the process has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield


def bind(host: str, port: int, flag: str) -> socket.socket:
    """A bound socket; port 0 takes a free one. flag is named in the error. Raises PortError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise PortError(f"cannot listen on {host}: {error.strerror or error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise PortError(f"cannot listen on {host}:{port}: {error.strerror} (choose another with {flag})") from error
    return listener


def address_of(listener: socket.socket) -> str:
    """The http:// address, with the port that was taken."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def server(app: ASGIApp) -> Server:
    """A server of one app, to be run with serve(sockets=[...])."""
    return Server(
        uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=2,
        )
    )
