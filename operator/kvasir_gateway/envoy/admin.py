"""Reads Envoy's admin interface, a socket in the shared directory: live, restarted, which requests it has.

Called by the picker's loop. Answers are bounded and have a deadline; an Envoy that does not answer is None, no error.
"""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec

from kvasir_gateway.envoy.bootstrap import ADMIN_SOCKET

ACTIVE_REQUESTS = "http.gateway.downstream_rq_active"
CLUSTER = "cluster."
CLUSTER_ACTIVE = (".upstream_rq_active", ".upstream_rq_pending_active")
MAX_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoyStatus:
    """live: the listener takes requests. draining: its connections close after their answers.

    incarnation: differs for every process, since each creates the socket; Envoy's own uptime is in whole seconds.
    age_s: since it created that socket, which is before its first request. active: requests that have not ended, by
    cluster; those without one are absent.
    """

    live: bool
    draining: bool
    incarnation: tuple[int, int]
    age_s: float
    active: Mapping[str, int] = field(default_factory=dict)


class _Server(msgspec.Struct):
    state: str


class EnvoyAdmin:
    """Envoy's admin interface on its unix socket."""

    def __init__(self, directory: Path, *, timeout_s: float = 2.0) -> None:
        self._socket = directory / ADMIN_SOCKET
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path=str(self._socket)),
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            base_url="http://envoy",
        )

    async def status(self) -> EnvoyStatus | None:
        """Envoy's status now; None when it does not answer."""
        try:
            made = self._socket.stat()
            server = msgspec.json.decode(await self._get("/server_info"), type=_Server)
            stats = (await self._get("/stats")).decode()
            values = dict(line.split(": ", 1) for line in stats.splitlines() if ": " in line)
            active = _active(values)
        except (aiohttp.ClientError, OSError, ValueError, msgspec.DecodeError):
            return None
        return EnvoyStatus(
            live=server.state in {"LIVE", "DRAINING"},
            draining=server.state == "DRAINING",
            incarnation=(made.st_ino, made.st_mtime_ns),
            age_s=time.time() - made.st_mtime,
            active=active,
        )

    async def set_draining(self, on: bool) -> bool:
        """Make Envoy close each connection after its answer, or keep them again; False when it does not answer.

        By its health check and not by /drain_listeners, which cannot be undone.
        """
        try:
            async with self._session.post(f"/healthcheck/{'fail' if on else 'ok'}") as response:
                return response.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    async def active_requests(self) -> int | None:
        """Requests of clients that have not ended; None when Envoy does not answer."""
        try:
            stats = (await self._get(f"/stats?filter=^{ACTIVE_REQUESTS}$")).decode()
            return int(stats.partition(": ")[2])
        except (aiohttp.ClientError, OSError, ValueError):
            return None

    async def _get(self, path: str) -> bytes:
        async with self._session.get(path) as response:
            response.raise_for_status()
            body = bytearray()
            async for piece in response.content.iter_chunked(65536):
                body += piece
                if len(body) > MAX_BYTES:
                    raise ValueError(f"Envoy's answer to {path} is too long")
            return bytes(body)

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()


def _active(values: Mapping[str, str]) -> dict[str, int]:
    """Requests by cluster, both those at a pod and those that wait for a connection to one."""
    found: Counter[str] = Counter()
    for name, value in values.items():
        for suffix in CLUSTER_ACTIVE:
            if name.startswith(CLUSTER) and name.endswith(suffix) and value != "0":
                found[name.removeprefix(CLUSTER).removesuffix(suffix)] += int(value)
    return dict(found)
