"""The external backends that the administrator configured: one file NAME.json each, as a Secret is mounted.

A file that cannot be used is left out, with a line in the log that quotes nothing of it. Files are read again when they
change; requests that run keep the connections with which they began.
"""

import ipaddress
import logging
import re
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from kvasir_gateway import backends
from kvasir_gateway.backends import BackendGrant

LOG = logging.getLogger(__name__)
SUFFIX: Final = ".json"
MOST_FILE_BYTES: Final = 1 << 18
CONNECT_S: Final = 10.0
MOST_CONNECTIONS: Final = 256
"""Of a backend. Where it is for several namespaces, one gets half of what the others leave."""
MOST_HEAD_FIELDS: Final = 100
MOST_FIELD_BYTES: Final = 8 << 10
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
UNICAST: Final = ipaddress.ip_network("2000::/3")
"""All that is assigned of IPv6 (RFC 4291); what is outside of it leads elsewhere, such as fec0::/10."""
NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
"""Whose last 32 bits are an address of IPv4 (RFC 6052)."""


class BackendFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file. url: https, up to what stands before `/chat/completions`. key: sent as a bearer token, "" for none. ca:
    PEM certificates in place of the system's. networks: that are not public and where the address may be all the same.
    """

    url: str
    namespaces: tuple[str, ...]
    key: str = ""
    anonymous: bool = False
    ca: str = ""
    networks: tuple[str, ...] = ()


class BackendBusyError(Exception):
    """A backend takes no further request of a namespace."""


class PublicResolver(AbstractResolver):
    """Finds the addresses of a name, but those that are not public and in none of these networks."""

    def __init__(self, networks: tuple[IpNetwork, ...]) -> None:
        self._networks, self._system = networks, ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Raises OSError where nothing is left."""
        found = await self._system.resolve(host, port, family)
        permitted = [one for one in found if may_reach(one["host"], self._networks)]
        if not permitted:
            raise OSError(f"{host} has no address that is public or in `networks`")
        return permitted

    async def close(self) -> None:
        """Nothing is open."""


class OpenBackend:
    """A backend with its connections. Raises ValueError and ssl.SSLError for what cannot be used."""

    def __init__(self, grant: BackendGrant, file: BackendFile) -> None:
        networks = tuple(ipaddress.ip_network(one) for one in file.networks)
        url = _checked(file.url, networks)
        if not re.fullmatch(r"[!-~]*", file.key):
            raise ValueError("key: it has characters that no header may have")
        self.grant = grant
        self.base_url = url.geturl().rstrip("/")
        self.key = file.key
        self._running: Counter[str] = Counter()
        self._share = 1 if len(grant.namespaces) == 1 and backends.ANY_NAMESPACE not in grant.namespaces else 2
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=MOST_CONNECTIONS, resolver=PublicResolver(networks), ssl=_context(file.ca), ttl_dns_cache=30
            ),
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_connect=CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            max_headers=MOST_HEAD_FIELDS,
            max_line_size=MOST_FIELD_BYTES,
            max_field_size=MOST_FIELD_BYTES,
            auto_decompress=False,
            trust_env=False,
        )

    @contextmanager
    def session(self, namespace: str) -> Iterator[aiohttp.ClientSession]:
        """For one request of a route. Raises BackendBusyError."""
        own = self._running[namespace]
        if own >= (MOST_CONNECTIONS - self._running.total() + own) // self._share:
            raise BackendBusyError
        self._running[namespace] += 1
        try:
            yield self._session
        finally:
            self._running[namespace] -= 1
            self._running += Counter()  # without those that have none

    @property
    def idle(self) -> bool:
        """Whether no request has it."""
        return not self._running.total()

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()


class BackendFiles:
    """The backends of a directory; `read` brings it up to date."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._found: dict[str, tuple[bytes, OpenBackend | None]] = {}
        self._retired: list[OpenBackend] = []
        self._troubles: list[str] = []

    def get(self, name: str) -> OpenBackend | None:
        """The backend of a name; None for none."""
        return self._found.get(name, (b"", None))[1]

    def grants(self) -> tuple[BackendGrant, ...]:
        """Of all of them."""
        return tuple(backend.grant for _, backend in self._found.values() if backend is not None)

    async def read(self) -> None:
        """Read what has changed."""
        contents = self._contents()
        for name in [one for one, (content, _) in self._found.items() if contents.get(one) != content]:
            _, backend = self._found.pop(name)
            self._retired += [backend] if backend is not None else []
        for name, content in contents.items():
            if name not in self._found:
                self._found[name] = content, _opened(name, content)
        idle = [backend for backend in self._retired if backend.idle]
        self._retired = [backend for backend in self._retired if not backend.idle]
        for backend in idle:
            await backend.close()

    def _contents(self) -> dict[str, bytes]:
        """Of the files that can be read. What cannot be is in the log once."""
        found: dict[str, bytes] = {}
        paths, troubles = _paths(self._directory)
        for path in paths:
            try:
                with path.open("rb") as file:
                    found[path.stem] = file.read(MOST_FILE_BYTES)
            except OSError as error:
                troubles.append(str(error))
        for trouble in troubles:
            if trouble not in self._troubles:
                LOG.warning("external backends cannot be read: %s", trouble)
        self._troubles = troubles
        return found

    async def close(self) -> None:
        """Close all connections."""
        for backend in (*self._retired, *(found for _, found in self._found.values() if found is not None)):
            await backend.close()


def may_reach(address: str, networks: tuple[IpNetwork, ...]) -> bool:
    """Whether an IP address is public, or in one of these networks. Raises ValueError for what is none."""
    whole = ipaddress.ip_address(address.partition("%")[0])
    found = whole if whole.version == 4 else _embedded(whole) or whole
    assigned = found.version == 4 or found in UNICAST
    public = assigned and found.is_global and not found.is_multicast
    return public or any(one in network for network in networks for one in (whole, found))


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """To which an address of IPv6 is translated, or tunnelled."""
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def _paths(directory: Path) -> tuple[list[Path], list[str]]:
    """Of the backends, and why there are none."""
    try:
        found = sorted(path for path in directory.iterdir() if path.suffix == SUFFIX and not path.name.startswith("."))
    except OSError as error:
        return [], [str(error)]
    return found[: backends.MOST_BACKENDS], []


def _opened(name: str, content: bytes) -> OpenBackend | None:
    try:
        file = msgspec.json.decode(content, type=BackendFile)
        known = {"name": name, "namespaces": file.namespaces, "anonymous": file.anonymous}
        return OpenBackend(msgspec.convert(known, BackendGrant), file)
    except (ValueError, TypeError, OSError, RecursionError, msgspec.MsgspecError) as error:  # none quotes a value
        LOG.warning("external backend %s is left out: %s", name, error)
        return None


def _context(ca: str) -> ssl.SSLContext:
    if not ca.isascii():
        raise ValueError("ca: it is not PEM, which is ASCII")
    context = ssl.create_default_context(cadata=ca or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _checked(text: str, networks: tuple[IpNetwork, ...]) -> SplitResult:
    """The address of a backend. Raises ValueError."""
    url = urlsplit(text)
    if url.scheme != "https" or not url.hostname or "@" in url.netloc or url.query or url.fragment or url.port == 0:
        raise ValueError("url: it is not https://HOST[:PORT][/PATH]")
    try:
        ipaddress.ip_address(url.hostname)
    except ValueError:
        return url
    if not may_reach(url.hostname, networks):
        raise ValueError("url: its address is neither public nor in `networks`")
    return url
