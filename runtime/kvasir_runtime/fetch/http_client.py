"""GET requests of large files: proxies, certificates, redirects that lead no credential elsewhere, parts of a file.

Called for archives and registries. The only module that uses urllib3.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urljoin, urlsplit

from kvasir_runtime.errors import ModelUnavailableError
from kvasir_runtime.fetch.model_files import BrokenTransferError, Transfer
from kvasir_runtime.fetch.settings import SECRET, SourceSettings

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager

_CONNECT_S: Final = 20.0
_READ_S: Final = 60.0
"""Without a byte for so long a connection counts as broken."""
_READ_BYTES: Final = 1 << 20
_MOST_REDIRECTS: Final = 5
_LEADS: Final = (301, 302, 303, 307, 308)
_AGAIN: Final = (408, 425, 429, 500, 502, 503, 504)


class HttpStatusError(Exception):
    """An answer that is no success. status: its code; challenge: its WWW-Authenticate; origin: who answered, which
    after redirects may be another server than the one that was asked."""

    def __init__(self, status: int, challenge: str, origin: str) -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.challenge, self.origin = status, challenge, origin


class HttpClient:
    """Requests to one source, with the connections that it keeps. Threads may share it."""

    def __init__(self, settings: SourceSettings, model: str) -> None:
        """model: as messages name it."""
        self._settings, self._model = settings, model
        self._pools: dict[str, PoolManager] = {}

    def text(self, url: str, headers: Mapping[str, str], limit: int) -> tuple[bytes, Mapping[str, str]]:
        """A small document and its headers. Raises HttpStatusError, BrokenTransferError, ModelUnavailableError."""
        with self._answered(url, headers) as response, _transfer_errors():
            body = response.read(limit + 1, decode_content=True)
            if len(body) > limit:
                raise ModelUnavailableError(
                    f"model {self._model} has a description of more than {limit} bytes; is it a model?"
                )
            return body, response.headers

    def size(self, url: str, headers: Mapping[str, str]) -> int:
        """Bytes of a file. Raises as text() does, and ModelUnavailableError where the server does not state them."""
        with self._answered(url, {**headers, "Range": "bytes=0-0"}) as response:
            stated = response.headers.get("Content-Length", "")
            if response.status == 206:
                stated = response.headers.get("Content-Range", "").rpartition("/")[2]
        if not stated.isdecimal():
            raise ModelUnavailableError(
                f"model {self._model}: the server does not state how long the file is; have it send a Content-Length"
            )
        return int(stated)

    @contextlib.contextmanager
    def opened(self, url: str, headers: Mapping[str, str], offset: int) -> Iterator[Transfer]:
        """The bytes of a file from an offset on, or all of them. Raises as text() does."""
        part = {"Range": f"bytes={offset}-"} if offset else {}
        with self._answered(url, {**headers, **part}) as response:
            start = _start(response.headers.get("Content-Range", "")) if response.status == 206 else 0
            yield Transfer(start=start, pieces=_pieces(response))

    @contextlib.contextmanager
    def _answered(self, url: str, headers: Mapping[str, str]) -> "Iterator[BaseHTTPResponse]":
        """A success, after redirects. A credential stays with the host that it is for."""
        given = {"Accept-Encoding": "identity", "User-Agent": "kvasir", **headers}
        for _ in range(_MOST_REDIRECTS + 1):
            with _transfer_errors():
                response = self._pool(url).request(
                    "GET", url, headers=given, redirect=False, retries=False, preload_content=False
                )
            try:
                if response.status in _LEADS and (location := response.headers.get("Location")):
                    url, given = self._led(url, urljoin(url, location), given)
                    continue
                if response.status in _AGAIN:
                    raise BrokenTransferError(f"HTTP {response.status} of {_host(url)}")
                if response.status not in (200, 206):
                    raise HttpStatusError(response.status, response.headers.get("WWW-Authenticate", ""), origin(url))
                yield response
                return
            finally:
                response.close()
        raise ModelUnavailableError(
            f"model {self._model} is redirected more than {_MOST_REDIRECTS} times; use an address that has the file"
        )

    def _led(self, before: str, after: str, headers: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        old, new = urlsplit(before), urlsplit(after)
        if new.scheme not in ("http", "https") or (old.scheme == "https" and new.scheme != "https"):
            raise ModelUnavailableError(
                f"model {self._model} is redirected from {origin(before)} to {origin(after)},"
                " where the connection is not protected; it is not followed: use an https:// address that has the file"
            )
        same = origin(before) == origin(after)
        return after, {name: text for name, text in headers.items() if same or name != "Authorization"}

    def _pool(self, url: str) -> "PoolManager":
        proxy = self._settings.proxy(url)
        if proxy not in self._pools:
            self._pools[proxy] = self._made(proxy)
        return self._pools[proxy]

    def _made(self, proxy: str) -> "PoolManager":
        import ssl

        from urllib3 import PoolManager, ProxyManager, Timeout, make_headers

        trusted = ssl.create_default_context()
        if certificates := self._settings.file("ca.crt"):
            try:
                trusted = ssl.create_default_context(cafile=str(certificates))
            except ssl.SSLError as error:
                raise ModelUnavailableError(f"key ca.crt of {SECRET} has no certificate") from error
        timeout = Timeout(connect=_CONNECT_S, read=_READ_S)
        if not proxy:
            return PoolManager(maxsize=8, timeout=timeout, ssl_context=trusted)
        at = urlsplit(proxy)
        user = f"{unquote(at.username)}:{unquote(at.password or '')}" if at.username else ""
        own = make_headers(proxy_basic_auth=user) if user else None
        return ProxyManager(proxy, proxy_headers=own, maxsize=8, timeout=timeout, ssl_context=trusted)


def origin(url: str) -> str:
    """Scheme, host and port of a URL: credentials are for one."""
    return f"{urlsplit(url).scheme}://{_host(url)}"


def _host(url: str) -> str:
    """With its port, and without a password that a redirect may have."""
    return urlsplit(url).netloc.rpartition("@")[2]


def _pieces(response: "BaseHTTPResponse") -> Iterator[bytes]:
    with _transfer_errors():
        while piece := response.read(_READ_BYTES, decode_content=False):
            yield piece


@contextlib.contextmanager
def _transfer_errors() -> Iterator[None]:
    """What a connection raises, as one error with its first words."""
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (HTTPError, OSError) as error:
        raise BrokenTransferError(reason(error)) from error


def reason(error: BaseException) -> str:
    """The words of the innermost cause, such as a certificate that is not trusted, in one line."""
    seen: list[BaseException] = [error]
    while (cause := seen[-1].__cause__ or seen[-1].__context__) is not None and cause not in seen:
        seen.append(cause)
    said = next((one.strerror for one in reversed(seen) if isinstance(one, OSError) and one.strerror), "") or str(error)
    return (said.splitlines() or [type(error).__name__])[0][:300]


def _start(content_range: str) -> int:
    first = content_range.removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdecimal() else 0
