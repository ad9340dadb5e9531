"""Reads `/state` of pods under one deadline and requests drains; used by the autoscaler and the endpoint picker.

A pod that does not answer in time, or with something else than a state document of bounded size, has *no reading*: it
is absent from the result, never zero. It delays the readings of no other pod.
"""

import asyncio
from collections.abc import Callable, Hashable, Mapping
from types import TracebackType
from typing import Final, Self, TypeVar
from urllib.parse import urlencode

import msgspec

from kvasir_api import names, state
from kvasir_api.prefix_digest import FollowedPrefixes
from kvasir_kube.http_connections import Exchange, HttpAnswer, HttpConnections
from kvasir_kube.pod_tls import PodTls

MAX_BYTES: Final = 1024 * 1024
REQUESTS_AT_A_TIME: Final = 256
"""So many are sent before what else waits in the event loop has its turn."""

Id = TypeVar("Id", bound=Hashable)
Document = TypeVar("Document", state.RuntimeState, state.GatewayState)
Sign = Callable[[str, str], str]
"""The Authorization header of a call by its method and target (`kvasir_api.ops_tokens`); empty for none."""


def unsigned(method: str, target: str) -> str:  # noqa: ARG001 - a Sign
    """For pods that ask for no signature."""
    return ""


def url(host: str, port: int, path: str) -> str:
    """http URL of a pod's endpoint; brackets IPv6 addresses."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{path}"


class StateReader:
    """All readings of a process; connections are kept, so a reading is one round trip. Use as an async context
    manager. most_open: connections to all pods, see `HttpConnections`. tls: verifies pods that speak it."""

    def __init__(self, *, most_open: int = 0) -> None:
        self.tls = PodTls()
        self._connections = HttpConnections(most_open=most_open, tls=self.tls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connections.close()

    async def states(
        self,
        targets: Mapping[Id, str],
        *,
        deadline_s: float,
        prefixes: Mapping[Id, FollowedPrefixes] | None = None,
    ) -> dict[Id, state.RuntimeState]:
        """Documents of runtime pods. targets: base URL of each ops port, for example http://10.1.2.3:8001.

        prefixes: sets that follow those of pods. What a pod's document cannot prove complete is empty afterwards, and
        read as a whole the next time, of a pod that contradicted itself after a pause; so is the set of a pod that
        accepts no connection. The set of one that is late stays as it was.
        """
        followed = prefixes or {}
        queries = {id_: _query(mine) for id_, mine in followed.items()}
        refused: set[Id] = set()
        found = await self._read(targets, deadline_s, state.decode, queries, refused)
        for id_ in followed.keys() & refused:
            followed[id_].forget()
        for id_ in followed.keys() & found.keys():
            followed[id_].take(found[id_].instance, found[id_].prefixes)
        return found

    async def gateway_states(self, targets: Mapping[Id, str], *, deadline_s: float) -> dict[Id, state.GatewayState]:
        """Documents of gateway pods."""
        return await self._read(targets, deadline_s, state.decode_gateway, {}, set())

    async def drain(self, base: str, *, on: bool, sign: Sign = unsigned, deadline_s: float = 2.0) -> bool:
        """Make a runtime drain, or take requests again. False when it did not confirm within the deadline."""
        return await self._confirmed(base, "POST" if on else "DELETE", names.PATH_DRAIN, sign, deadline_s)

    async def introduce(
        self, base: str, peers: Mapping[str, str], *, sign: Sign = unsigned, deadline_s: float = 1.0
    ) -> bool:
        """Name replicas that serve to one that starts, with the token for its call to each, empty for none. False when
        it did not confirm within the deadline."""
        named = [pair for address, token in peers.items() for pair in (("address", address), ("token", token))]
        path = f"{names.PATH_PEERS}?{urlencode(named)}"
        return await self._confirmed(base, "POST", path, sign, deadline_s)

    async def prefetch(
        self,
        base: str,
        leaving: str,
        token: str,
        *,
        share: int = 0,
        shares: int = 1,
        sign: Sign = unsigned,
        deadline_s: float = 1.0,
    ) -> bool:
        """Name a replica that leaves to one that stays, with the token for its call there, and which share of what is
        there it is to fetch first. False as of `introduce`."""
        fields = {"address": leaving, "token": token, "share": share, "shares": shares}
        path = f"{names.PATH_PREFETCH}?{urlencode(fields)}"
        return await self._confirmed(base, "POST", path, sign, deadline_s)

    async def give_keys(self, base: str, sealed: str, *, sign: Sign = unsigned, deadline_s: float = 1.0) -> bool:
        """Give a runtime its keys of continuation tokens (`kvasir_api.sealed_keys`). False as of `introduce`."""
        path = f"{names.PATH_CONTINUATION_KEYS}?{urlencode({'sealed': sealed})}"
        return await self._confirmed(base, "POST", path, sign, deadline_s)

    async def _confirmed(self, base: str, method: str, path: str, sign: Sign, deadline_s: float) -> bool:
        confirmed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(_: Exchange, answer: HttpAnswer | None) -> None:
            if not confirmed.done():
                confirmed.set_result(answer is not None and answer.status < 300)

        exchange = Exchange(base, method, path, most_bytes=MAX_BYTES, done=done, authorization=sign(method, path))
        self._connections.send(exchange)
        try:
            async with asyncio.timeout(deadline_s):
                return await confirmed
        except TimeoutError:
            return False
        finally:
            exchange.cancel()

    async def _read(
        self,
        targets: Mapping[Id, str],
        deadline_s: float,
        decode: Callable[[bytes], Document],
        queries: Mapping[Id, str],
        refused: set[Id],
    ) -> dict[Id, Document]:
        found: dict[Id, Document] = {}
        sent: dict[Exchange, Id] = {}
        left, complete = len(targets), asyncio.Event()

        def take(exchange: Exchange, answer: HttpAnswer | None) -> None:
            nonlocal left
            name = sent.pop(exchange)
            document = _decoded(answer, decode)
            if document is not None:
                found[name] = document
            elif answer is None:
                refused.add(name)
            left -= 1
            if not left:
                complete.set()

        try:
            async with asyncio.timeout(deadline_s):
                for number, (name, base) in enumerate(targets.items(), start=1):
                    path = names.PATH_STATE + queries.get(name, "")
                    exchange = Exchange(base, "GET", path, most_bytes=MAX_BYTES, done=take)
                    sent[exchange] = name
                    self._connections.send(exchange)
                    if number % REQUESTS_AT_A_TIME == 0:
                        await asyncio.sleep(0)
                if targets:
                    await complete.wait()
        except TimeoutError:
            pass
        finally:
            while sent:  # what is left refers to `take` and so to itself
                sent.popitem()[0].cancel()
        self._connections.prune()
        return found


def _query(followed: FollowedPrefixes) -> str:
    if followed.is_paused:
        return ""
    return "?" + urlencode({"prefixes_after": followed.after, "instance": followed.instance})


def _decoded(answer: HttpAnswer | None, decode: Callable[[bytes], Document]) -> Document | None:
    if answer is None or answer.status != 200:
        return None
    try:
        return decode(answer.body)
    except msgspec.MsgspecError:
        return None
