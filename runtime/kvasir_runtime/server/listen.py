"""Runs uvicorn on a port that is open already. Called by the process."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from kvasir_runtime.nodes.listening import BACKLOG
from kvasir_runtime.server.http_limits import BoundedProtocol

KEEP_ALIVE_S: Final = 75
"""Longer than the 60 s for which gateways usually keep a connection, so that they close it and not we."""


class Server(uvicorn.Server):
    """uvicorn without signal handlers: the process has its own. It serves sockets that are given."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, but that a TLS handshake takes no longer than the head of a request: `BoundedProtocol` begins
        behind it, and uvicorn has no setting for asyncio's 60 s."""
        await self.lifespan.startup()
        loop, config = asyncio.get_running_loop(), self.config
        self.servers = [
            await loop.create_server(
                self._protocol,
                sock=listener,
                backlog=config.backlog,
                ssl=config.ssl,
                ssl_handshake_timeout=BoundedProtocol.head_s if config.ssl else None,
            )
            for listener in sockets or ()
        ]
        self.started = True

    def _protocol(self) -> BoundedProtocol:
        return BoundedProtocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)


def server(app: ASGIApp, *, forwarded: bool, tls: ssl.SSLContext | None = None) -> Server:
    """A server of one app, to be run with serve(sockets=[...]). tls: of its connections, None for plain HTTP.

    forwarded: believe `X-Forwarded-For` of proxies on loopback, or of those that the environment's FORWARDED_ALLOW_IPS
    lists. Only for an app where a caller's address decides no more than whose turn it is, never what it may do.
    """
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=forwarded,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=2,
    )
    config.load()
    config.ssl = tls  # not from files, of which uvicorn would make a context of its own for each port
    return Server(config)
