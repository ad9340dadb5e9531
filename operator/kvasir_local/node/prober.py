"""Runs one probe or hook: an HTTP request, a connection, a command in the container. Counts nothing."""

import asyncio
import os
from dataclasses import dataclass
from typing import Final

import aiohttp

from kvasir_local.node.container import Container
from kvasir_local.node.rules.probe import Exec, HttpGet, LifecycleHandler, Sleep, TcpSocket

NO_TIMEOUT: Final = aiohttp.ClientTimeout(total=None)
"""Every check has its own deadline; a preStop request may wait for minutes."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Whether a probe passed, and the failure if it did not."""

    passed: bool
    message: str = ""


async def run_check(
    wanted: LifecycleHandler | TcpSocket, *, pod_ip: str, container: Container, timeout_s: float
) -> ProbeResult:
    """Run one check within the timeout. Never raises for a failing check."""
    try:
        async with asyncio.timeout(timeout_s):
            match wanted:
                case HttpGet():
                    return await _http(wanted, wanted.host or pod_ip)
                case TcpSocket():
                    _, writer = await asyncio.open_connection(wanted.host or pod_ip, wanted.port)
                    writer.close()
                    return ProbeResult(True)
                case Exec():
                    code, output = await container.run(wanted.command, timeout_s=timeout_s)
                    return ProbeResult(code == 0, f"command {wanted.command[0]!r} exited with {code}: {output}")
                case Sleep():
                    await asyncio.sleep(wanted.seconds)
                    return ProbeResult(True)
    except TimeoutError:
        return ProbeResult(False, f"no answer within {timeout_s:g} s")
    except OSError as error:  # aiohttp's connection errors are among them
        where = "" if isinstance(wanted, Exec | Sleep) else f"{wanted.host or pod_ip}:{wanted.port}: "
        return ProbeResult(False, where + (os.strerror(error.errno) if error.errno else str(error)))
    except aiohttp.ClientError as error:
        return ProbeResult(False, str(error) or type(error).__name__)


async def _http(wanted: HttpGet, host: str) -> ProbeResult:
    headers = {"User-Agent": "kube-probe/kvasir-node", "Accept": "*/*", **dict(wanted.headers)}
    url = f"{wanted.scheme}://{host}:{wanted.port}{wanted.path}"
    # A connection for each probe, certificates unchecked, no proxy: as the kubelet does.
    async with (
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=False, force_close=True), timeout=NO_TIMEOUT
        ) as session,
        session.get(url, headers=headers, allow_redirects=False) as response,
    ):
        body = await response.content.read(256)
        text = body.decode(errors="replace").strip()
        return ProbeResult(
            200 <= response.status < 400, f"HTTP probe failed with statuscode: {response.status} {text}".rstrip()
        )
