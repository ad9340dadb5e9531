"""HTTP servers on unix sockets in the directory that only the pod's containers share."""

from pathlib import Path
from typing import Final

from aiohttp import web

from kvasir_kube import http_sites

BACKLOG: Final = 4096
"""Connections that wait until a busy process takes them, as far as the kernel allows (net.core.somaxconn). A further
one fails at once, where one over TCP would be tried again."""


async def listen(runner: web.AppRunner, path: Path, *, mode: int = 0o600) -> None:
    """Set the runner up and listen; the socket of an earlier process is replaced. mode: permissions of the socket."""
    path.unlink(missing_ok=True)
    await runner.setup()
    await http_sites.UnixSite(runner, str(path), backlog=BACKLOG).start()
    path.chmod(mode)
