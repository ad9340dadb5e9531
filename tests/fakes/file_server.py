"""A web server on loopback that fails as networks do; what an OCI registry answers to a pull is files at known paths.

Before another server (moto's bucket) it forwards, and does the same harm to large answers.
"""

import base64
import contextlib
import datetime as dt
import hashlib
import http.server
import json
import ssl
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from kvasir_kube import certificates

Fault = Literal[
    "none",
    "cut once",
    "cut always",
    "dead",
    "truncated",
    "damaged once",
    "damaged always",
    "no parts",
    "no length",
    "unauthorized",
    "refused",
    "absent",
    "busy",
    "busy once",
    "unprotected",
    "elsewhere",
    "circle",
    "held",
]
STATUS: Final[Mapping[Fault, int]] = {"unauthorized": 401, "refused": 403, "absent": 404, "busy": 503}
LARGE: Final = 100_000
"""Faults of the transfer are those of files of at least so many bytes."""
TOKEN: Final = "token-not-to-be-shown"
USER: Final = base64.b64encode(b"user:password-not-to-be-shown").decode()


@dataclass(slots=True)
class FileServer:
    """files: content by path. upstream: the server that is asked instead. challenge: files need a token, which the path
    /token gives to USER. asked: method, path, Range and Authorization of each request. proxied: Proxy-Authorization.
    times: what happens once happens so often to each path. open: of what is "held" the bytes behind those that come
    `at_once` are sent once it is set."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    fault: Fault = "none"
    upstream: str = ""
    challenge: bool = False
    elsewhere: str = ""
    asked: list[tuple[str, str, str, str]] = field(default_factory=list)
    proxied: set[str] = field(default_factory=set)
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)
    times: int = 1
    open: threading.Event = field(default_factory=threading.Event)
    at_once: int = 0

    def parts(self, path: str) -> list[str]:
        """The Range of each request for a path, empty for all of it."""
        return [part for method, name, part, _ in self.asked if (method, name) == ("GET", path)]

    def push(self, repository: str, tag: str, manifest: Mapping[str, Any]) -> str:
        """Put a manifest or an index under a tag. Returns its digest."""
        body = json.dumps(manifest).encode()
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        for reference in (tag, digest):
            self.files[f"/v2/{repository}/manifests/{reference}"] = body
        return digest

    def layer(self, repository: str, content: bytes, kind: str, **notes: str) -> dict[str, Any]:
        """Put a blob. Returns its descriptor; notes: annotations, of which _ stands for a dot."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.files[f"/v2/{repository}/blobs/{digest}"] = content
        named = {name.replace("_", "."): text for name, text in notes.items()}
        return {"mediaType": kind, "digest": digest, "size": len(content), "annotations": named}


class _Handler(http.server.BaseHTTPRequestHandler):
    found: FileServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        found = self.found
        key, part = self.headers.get("authorization", ""), self.headers.get("range", "")
        found.asked.append((self.command, self.path, part, key))
        found.proxied.add(self.headers.get("proxy-authorization", ""))
        if found.fault in STATUS:
            return self._send(b"", status=STATUS[found.fault])
        if found.fault == "busy once" and self._is_first():
            return self._send(b"", status=503)
        if found.challenge and self.path.startswith("/token"):
            ok = key == f"Basic {USER}"
            return self._send(json.dumps({"token": TOKEN}).encode() if ok else b"", status=200 if ok else 401)
        if found.challenge and key != f"Bearer {TOKEN}":
            asks = f'Bearer realm="{found.url}/token",service="registry",scope="repository:org/name:pull"'
            return self._send(b"", {"WWW-Authenticate": asks}, status=401)
        if found.upstream:
            return self._forward()
        content = found.files.get(self.path)
        if content is None:
            return self._send(b"", status=404)
        where = {"unprotected": f"http://127.0.0.1:9{self.path}", "circle": self.path}.get(found.fault)
        where = f"{found.elsewhere}{self.path}" if found.fault == "elsewhere" else where
        if where and self._is_harmed(content):
            return self._send(b"", {"Location": where}, status=302)
        return self._file(content, part)

    def _file(self, content: bytes, part: str) -> None:
        fault = self.found.fault if self._is_harmed(content) else "none"
        if fault == "truncated" and part != "bytes=0-0":  # the first question is for the length
            content = content[: len(content) // 2]
        first, _, last = part.removeprefix("bytes=").partition("-") if part and fault != "no parts" else ("", "", "")
        start, end = int(first or 0), int(last or len(content) - 1) + 1
        if first and start >= len(content):
            return self._send(b"", status=416)
        headers = {"Content-Range": f"bytes {start}-{end - 1}/{len(content)}"} if first else {}
        return self._harm(content[start:end], headers, 206 if first else 200)

    def _forward(self) -> None:
        path = urlsplit(self.path)._replace(scheme="", netloc="").geturl()  # of a proxy it is a whole URL
        request = urllib.request.Request(f"{self.found.upstream}{path}", method=self.command)
        for name, value in self.headers.items():
            if name.lower() not in {"connection", "accept-encoding"}:
                request.add_header(name, value)
        try:
            with urllib.request.urlopen(request) as answer:
                body, status, headers = answer.read(), answer.status, answer.headers
        except urllib.error.HTTPError as refused:
            body, status, headers = refused.read(), refused.code, refused.headers
        dropped = {"connection", "transfer-encoding", "date", "server"}
        given = {name: value for name, value in headers.items() if name.lower() not in dropped}
        if self.command == "HEAD":
            return self._send(body, given, status=status)
        given.pop("Content-Length", None)
        return self._harm(body, given, status)

    def _harm(self, body: bytes, headers: dict[str, str], status: int) -> None:
        large = self._is_harmed(body) or (bool(self.headers.get("range")) and len(body) > 1)
        fault = self.found.fault if large or self.found.fault == "no length" else "none"
        if fault == "damaged always" or (fault == "damaged once" and self._is_first()):
            body = bytes([body[0] ^ 1]) + body[1:]
        if fault == "no length":
            return self._chunked(body[:1])
        if fault == "dead" or (fault == "cut always" and len(body) > 1) or (fault == "cut once" and self._is_first()):
            self.close_connection = True
            sent = b"" if fault == "dead" else body[: (len(body) + 1) // 2]
            return self._send(sent, headers | {"Content-Length": str(len(body))}, status=status)
        return self._send(body, headers, status=status)

    def _is_harmed(self, content: bytes) -> bool:
        return len(content) >= LARGE

    def _is_first(self) -> bool:
        """Whether what happens once happens to this request."""
        self.found.seen[self.command, self.path] += 1
        return self.found.seen[self.command, self.path] <= self.found.times

    def _chunked(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))

    def _send(self, content: bytes, headers: Mapping[str, str] | None = None, *, status: int = 200) -> None:
        self.send_response(status)
        given = {"Content-Length": str(len(content))} | dict(headers or {})
        for name, value in given.items():
            self.send_header(name, value)
        self.end_headers()
        sent = content if self.command == "GET" else b""
        held = self.found.at_once if self.found.fault == "held" and self._is_harmed(sent) else len(sent)
        with contextlib.suppress(OSError):
            self.wfile.write(sent[:held])
            if held < len(sent) and self.found.open.wait(100):
                self.wfile.write(sent[held:])


@contextlib.contextmanager
def serving(
    files: Mapping[str, bytes] | None = None, *, tls: Path | None = None, **fields: Any
) -> Iterator[FileServer]:
    """tls: a folder to write ca.crt to; the server then speaks HTTPS with a certificate of that authority."""
    handler = type("Handler", (_Handler,), {})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        server.socket = _wrapped(server.socket, tls) if tls else server.socket
        scheme = "https" if tls else "http"
        found = FileServer(url=f"{scheme}://127.0.0.1:{server.server_address[1]}", files=dict(files or {}), **fields)
        handler.found = found  # type: ignore[attr-defined]
        with answering(server):
            try:
                yield found
            finally:
                found.open.set()


@contextlib.contextmanager
def answering(server: http.server.HTTPServer) -> Iterator[None]:
    """In a thread of its own, until the end."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


def _wrapped(plain: Any, folder: Path) -> ssl.SSLSocket:
    now = dt.datetime.now(dt.UTC)
    issuer = certificates.authority("files", now=now)
    pair = certificates.leaf(issuer, user="files", addresses=("127.0.0.1",), now=now)
    (folder / "ca.crt").write_bytes(issuer.certificate)
    own = folder / "server.pem"
    own.write_bytes(pair.certificate + pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own)
    own.unlink()
    return context.wrap_socket(plain, server_side=True)
