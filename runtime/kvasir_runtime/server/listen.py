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
