"""Runs uvicorn on a port that is open already. Called by the process."""

import contextlib
from collections.abc import Iterator
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from kvasir_runtime.server.http_limits import BoundedProtocol
from kvasir_runtime.server.ports import BACKLOG

KEEP_ALIVE_S: Final = 75
"""Longer than the 60 s for which gateways usually keep a connection, so that they close it and not we."""


class Server(uvicorn.Server):
    """uvicorn without signal handlers: the process has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield


def server(app: ASGIApp, *, forwarded: bool) -> Server:
    """A server of one app, to be run with serve(sockets=[...]).

    forwarded: believe `X-Forwarded-For` of proxies on loopback, or of those that the environment's FORWARDED_ALLOW_IPS
    lists. Only for an app where a caller's address decides no more than whose turn it is, never what it may do.
    """
    return Server(
        uvicorn.Config(
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
    )
