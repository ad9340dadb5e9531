"""Asks Envoy, over its socket in the shared directory: is it alive, since when, and which clusters it has accepted.

Called by the picker's loop. Its answers are bounded and have a deadline; a silent Envoy is None, never an error.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from kvasir_gateway.envoy.bootstrap import ADMIN_SOCKET

VERSION = "cluster_manager.cds.version_text"
REJECTED = "cluster_manager.cds.update_rejected"
MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """live: the listener takes requests. uptime_s: whole seconds. clusters_version: the last one accepted, or empty."""

    live: bool
    uptime_s: int
    clusters_version: str
    rejected_updates: int


class Admin:
    """Envoy's admin interface on its unix socket."""

    def __init__(self, directory: Path, *, timeout_s: float = 2.0) -> None:
        self._connector = aiohttp.UnixConnector(path=str(directory / ADMIN_SOCKET))
        self._session = aiohttp.ClientSession(
            connector=self._connector, timeout=aiohttp.ClientTimeout(total=timeout_s), base_url="http://envoy"
        )

    async def status(self) -> Status | None:
        """What Envoy says now; None when it does not answer."""
        try:
            server = msgspec.json.decode(await self._get("/server_info"))
            stats = (await self._get("/stats?filter=^cluster_manager.cds.(version_text|update_rejected)$")).decode()
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        values = dict(line.split(": ", 1) for line in stats.splitlines() if ": " in line)
        return Status(
            live=server.get("state") == "LIVE",
            uptime_s=_seconds(server.get("uptime_current_epoch")),
            clusters_version=values.get(VERSION, "").strip('"'),
            rejected_updates=int(values.get(REJECTED, "0")),
        )

    async def drain(self) -> bool:
        """Tell Envoy to close kept connections as they end, and to take no new ones; False when it does not answer."""
        try:
            async with self._session.post("/drain_listeners?graceful&skip_exit") as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def _get(self, path: str) -> bytes:
        async with self._session.get(path) as response:
            response.raise_for_status()
            return await response.content.read(MAX_BYTES)

    async def close(self) -> None:
        """Give the connections back."""
        await self._session.close()


def _seconds(text: Any) -> int:
    digits = str(text).removesuffix("s")
    return int(digits) if digits.isdigit() else 0
