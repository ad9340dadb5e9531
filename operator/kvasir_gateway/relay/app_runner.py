"""The HTTP server of the relay's process on a socket of the pod, whatever it serves there."""

import logging
from typing import Final

from aiohttp import web
from aiohttp.http import HttpProcessingError

from kvasir_gateway.envoy.bootstrap import MAX_INNER_HEAD_BYTES

STOP_GRACE_S: Final = 5.0
KEEP_ALIVE_S: Final = 75.0
"""Longer than Envoy keeps an idle connection, so that none is used while it closes."""
MAX_FIELD_BYTES: Final = MAX_INNER_HEAD_BYTES
"""Of a line of a head: what Envoy lets through passes the relay."""


def app_runner(application: web.Application) -> web.AppRunner:
    """Handlers are cancelled when their client leaves; streams have STOP_GRACE_S to end."""
    return web.AppRunner(
        application,
        access_log=None,
        logger=_logger(),
        handler_cancellation=True,
        keepalive_timeout=KEEP_ALIVE_S,
        shutdown_timeout=STOP_GRACE_S,
        max_line_size=MAX_FIELD_BYTES,
        max_field_size=MAX_FIELD_BYTES,
        auto_decompress=False,
    )


def _logger() -> logging.Logger:
    """Of the HTTP server. What it could not read is not written, since a key may be in it."""
    logger = logging.getLogger(f"{__name__}.http")
    logger.addFilter(_is_no_request)
    return logger


def _is_no_request(record: logging.LogRecord) -> bool:
    """False for errors that quote a request."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
