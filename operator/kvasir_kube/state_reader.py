"""Reads `/state` of pods under one deadline and requests drains; used by the autoscaler and the endpoint picker.

A pod that does not answer in time, or with something else than a state document of bounded size, has *no reading*: it
is absent from the result, never zero.
"""

import asyncio
from collections.abc import Callable, Hashable, Mapping
from typing import Final, TypeVar

import aiohttp
import msgspec

from kvasir_api import names, state

MAX_BYTES: Final = 1024 * 1024

Id = TypeVar("Id", bound=Hashable)
Document = TypeVar("Document", state.RuntimeState, state.GatewayState)


def url(host: str, port: int, path: str) -> str:
    """http URL of a pod's endpoint; brackets IPv6 addresses."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{path}"


class StateReader:
    """One aiohttp session for all readings; connections are kept, so a reading is one round trip."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def states(self, targets: Mapping[Id, str], *, deadline_s: float) -> dict[Id, state.RuntimeState]:
        """Documents of runtime pods. targets: base URL of each ops port, for example http://10.1.2.3:8001."""
        return await self._read(targets, deadline_s, state.decode)

    async def gateway_states(self, targets: Mapping[Id, str], *, deadline_s: float) -> dict[Id, state.GatewayState]:
        """Documents of gateway pods."""
        return await self._read(targets, deadline_s, state.decode_gateway)

    async def drain(self, base: str, *, on: bool, deadline_s: float = 2.0) -> bool:
        """Make a runtime drain, or take requests again. False when it did not confirm within the deadline."""
        method = "POST" if on else "DELETE"
        try:
            async with (
                asyncio.timeout(deadline_s),
                self._session.request(method, base + names.PATH_DRAIN) as response,
            ):
                return response.status < 300
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def _read(
        self, targets: Mapping[Id, str], deadline_s: float, decode: Callable[[bytes], Document]
    ) -> dict[Id, Document]:
        tasks = {name: asyncio.create_task(self._one(base, decode)) for name, base in targets.items()}
        if not tasks:
            return {}
        _, late = await asyncio.wait(tasks.values(), timeout=deadline_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
        return {
            name: document
            for name, task in tasks.items()
            if not task.cancelled() and (document := task.result()) is not None
        }

    async def _one(self, base: str, decode: Callable[[bytes], Document]) -> Document | None:
        try:
            async with self._session.get(base + names.PATH_STATE, allow_redirects=False) as response:
                if response.status != 200:
                    return None
                body = await bounded(response)
                return None if body is None else decode(body)
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError):
            return None


async def bounded(response: aiohttp.ClientResponse) -> bytes | None:
    """The whole body, or None when it is longer than MAX_BYTES, so that no server can fill our memory."""
    body = bytearray()
    async for piece in response.content.iter_chunked(65536):
        body += piece
        if len(body) > MAX_BYTES:
            return None
    return bytes(body)
