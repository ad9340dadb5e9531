"""Opens the two ports before anything slow happens, imports included.

Called by the command. A taken port is one clear line at once, not an error after a minute of loading. A probe that
comes early waits for its answer instead of being refused.
"""

import socket
from typing import Final, NamedTuple

BACKLOG: Final = 2048


class PortError(Exception):
    """The address cannot be listened on; the message is one line with the reason."""


class Listeners(NamedTuple):
    """The sockets of the port for clients and of the ops port."""

    http: socket.socket
    ops: socket.socket


def opened(host: str, port: int, ops_port: int) -> Listeners:
    """Both ports of --host. Raises PortError."""
    http = bind(host, port, "--port")
    try:
        return Listeners(http, bind(host, ops_port, "--ops-port"))
    except PortError:
        http.close()
        raise


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
