"""Opens the two ports before anything slow happens, imports included.

Called by the command. A taken port is one clear line at once, not an error after a minute of loading. A probe that
comes early waits for its answer instead of being refused.
"""

import asyncio
import logging
import os
import socket
import ssl
from pathlib import Path
from typing import Final, NamedTuple

from kvasir_api import names
from kvasir_runtime.nodes.listening import PortError, bind

RELOAD_S: Final = 1.0

log = logging.getLogger("kvasir.tls")


class ServerTls:
    """TLS of both ports: one context, into which a certificate is loaded again when its files are replaced. Connections
    keep what they began with. Clients show no certificate: keys decide who may do what.

    directory: with the two files of a Secret of type kubernetes.io/tls. Raises PortError where they cannot be
    used."""

    def __init__(self, directory: Path) -> None:
        self._certificate, self._key = directory / names.TLS_CERTIFICATE, directory / names.TLS_KEY
        self._loaded = self._seen()
        self._trouble = ""
        self.context = self._context()

    def refresh(self) -> bool:
        """Load the files where they were replaced; what cannot be loaded changes nothing, and is logged once in a row.

        Returns whether there is another certificate now. On the event loop's thread, which makes the connections.
        """
        seen = self._seen()
        if seen == self._loaded:
            return False
        try:
            self._context()  # a certificate that does not fit its key would be left in the context without one
            self.context.load_cert_chain(self._certificate, self._key)
        except (PortError, OSError) as error:
            if str(error) != self._trouble:
                log.warning("the previous certificate stays in use: %s", error)
            self._trouble = str(error)
            return False
        self._loaded, self._trouble = seen, ""
        log.info("new connections get the certificate that is in %s now", self._certificate)
        return True

    async def follow(self) -> None:
        """Look for other files until cancelled."""
        while True:
            await asyncio.sleep(RELOAD_S)
            self.refresh()

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._certificate, self._key)
        except OSError as error:  # those of ssl are among them
            why = getattr(error, "reason", None) or error.strerror or error
            raise PortError(
                f"--tls-dir has no certificate that fits its key: {self._certificate.parent}: {why}"
            ) from error
        return context

    def _seen(self) -> tuple[object, ...]:
        """Differs when a file is another one; a mounted Secret's are links that lead elsewhere."""
        return tuple(_version(path) for path in (self._certificate, self._key))


class Listeners(NamedTuple):
    """The sockets of the port for clients and of the ops port. tls: what both speak, None for plain HTTP."""

    http: socket.socket
    ops: socket.socket
    tls: ServerTls | None = None


def opened(host: str, port: int, ops_port: int, tls_dir: str = "") -> Listeners:
    """Both ports of --host. Raises PortError."""
    tls = ServerTls(Path(tls_dir)) if tls_dir else None
    http = bind(host, port, "--port")
    try:
        return Listeners(http, bind(host, ops_port, "--ops-port"), tls)
    except PortError:
        http.close()
        raise


def address_of(listener: socket.socket, *, tls: bool = False) -> str:
    """The http:// address, or with TLS the https:// one, with the port that was taken."""
    (host, port), scheme = listener.getsockname()[:2], "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _version(path: Path) -> tuple[str, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return os.path.realpath(path), found.st_mtime_ns, found.st_size
