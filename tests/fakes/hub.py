"""A model hub on loopback that fails as networks do: it cuts, refuses, lies about sizes and leads in circles."""

import contextlib
import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

Fault = Literal[
    "none",
    "cut once",
    "cut always",
    "too long",
    "damaged once",
    "damaged always",
    "huge",
    "refused",
    "unauthorized",
    "gated",
    "absent",
    "no revision",
    "busy",
    "circle",
    "elsewhere",
    "moves",
]
REFUSALS: Final[Mapping[Fault, tuple[int, str]]] = {
    "refused": (403, ""),
    "unauthorized": (401, ""),
    "gated": (403, "GatedRepo"),
    "absent": (404, "RepoNotFound"),
    "no revision": (404, "RevisionNotFound"),
    "busy": (503, ""),
}
"""Status and X-Error-Code of whatever is asked."""
COMMIT: Final = "c" * 40
LATER: Final = "d" * 40
LARGE: Final = 200_000
WEIGHTS: Final = "model.safetensors"
FILES: Final = {"config.json": b'{"model_type": "llama"}', WEIGHTS: bytes(range(256)) * (LARGE // 256)}


@dataclass(slots=True)
class Hub:
    """files: of the repository, by name. fault: of the weights, or of the whole repository. commit: of every revision;
    after a listing of one that "moves" it is LATER. digest: what is said to be that of the weights.

    asked: method, path and authorization of each request. open: the weights are sent once it is set.
    """

    url: str
    fault: Fault = "none"
    files: Mapping[str, bytes] = field(default_factory=lambda: FILES)
    open: threading.Event = field(default_factory=threading.Event)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    elsewhere: str = ""
    commit: str = COMMIT
    digest: str = ""

    def env(self, home: Path) -> dict[str, str]:
        """What leads the hub's library here. home: where it keeps what it fetched."""
        off = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        return {"HF_HOME": str(home), "HF_ENDPOINT": self.url, **off}

    def of(self, method: str) -> list[str]:
        """Paths that were asked for by a method."""
        return [path for how, path, _ in self.asked if how == method]


def git_object(content: bytes) -> str:
    """The id of a file in a Git repository."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class _Handler(http.server.BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_HEAD(self) -> None:
        """What a file is."""
        self._answer(body=False)

    def do_GET(self) -> None:
        """A file, or the list of them."""
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        hub = self.hub
        hub.asked.append((self.command, self.path, self.headers.get("authorization", "")))
        if hub.fault in REFUSALS:
            return self._refuse(*REFUSALS[hub.fault])
        if "/tree/" in self.path:
            # A hub that means harm names them in the other listing alone: the library refuses to fetch them.
            tree = [self._entry(name, file) for name, file in hub.files.items() if ".." not in name]
            return self._send(json.dumps(tree).encode(), {})
        if self.path.startswith("/api/"):
            siblings = [self._sibling(name, content) for name, content in hub.files.items()]
            listed = json.dumps({"id": "org/name", "sha": self._commit(), "siblings": siblings}).encode()
            if hub.fault == "moves":
                hub.commit = LATER
            return self._send(listed, {})
        name = self.path.rsplit("/", 1)[-1].partition("?")[0]
        of_weights = name == WEIGHTS
        if of_weights and body:
            hub.open.wait(100)
        if of_weights and hub.fault == "circle":
            return self._lead(self.path)
        if of_weights and hub.fault == "elsewhere" and body:
            return self._lead(f"{hub.elsewhere}{self.path}")
        return self._file(name, body=body, fault=hub.fault if of_weights else "none")

    def _commit(self) -> str:
        """The commit in the path, else the one that every branch and tag points to."""
        named = re.search(r"/(?:resolve|revision|tree)/([0-9a-f]{40})", self.path)
        return named[1] if named else self.hub.commit

    def _sibling(self, name: str, content: bytes) -> dict[str, Any]:
        """A file as /api/models/… lists it with blobs=true."""
        entry = self._entry(name, content)
        found = {"rfilename": name, "size": entry["size"], "blobId": entry["oid"]}
        if "lfs" in entry:
            digest = self.hub.digest or entry["lfs"]["oid"]
            found["lfs"] = {"size": entry["size"], "sha256": digest, "pointerSize": 134}
        return found

    def _entry(self, name: str, content: bytes) -> dict[str, Any]:
        """A file as /api/models/…/tree lists it: large ones by their SHA-256, small ones as Git's object."""
        size = 10**17 if self.hub.fault == "huge" and name == WEIGHTS else len(content)
        entry: dict[str, Any] = {"type": "file", "path": name, "size": size, "oid": git_object(content)}
        if name.endswith(".safetensors"):
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": size, "pointerSize": 134}
        return entry

    def _file(self, name: str, *, body: bool, fault: Fault) -> None:
        content = self.hub.files[name]
        digest = hashlib.sha256(content).hexdigest() if name.endswith(".safetensors") else git_object(content)
        times = self.hub.of("GET").count(self.path)
        if fault == "damaged always" or (fault == "damaged once" and times == 1):
            content = bytes([content[0] ^ 1]) + content[1:]
        first = int((self.headers.get("range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        headers = {"ETag": f'"{digest}"', "X-Repo-Commit": self._commit()}
        claimed = len(content) + (1000 if fault == "too long" else 0)
        if not body:
            return self._send(b"", headers, length=claimed)
        rest, status = content[first:], 206 if first else 200
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        cut = fault == "cut always" or (fault == "cut once" and times == 1)
        self._send(rest[: len(rest) // 2] if cut else rest, headers, length=len(rest), status=status)
        if cut:
            self.close_connection = True
        return None

    def _refuse(self, status: int, code: str) -> None:
        body = b"{}" if self.command == "GET" else b""
        self._send(body, {"X-Error-Code": code} if code else {}, status=status)

    def _lead(self, where: str) -> None:
        self._send(b"", {"Location": where}, status=302)

    def _send(self, content: bytes, headers: dict[str, str], *, length: int = -1, status: int = 200) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content) if length < 0 else length))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(content)


@contextlib.contextmanager
def serving(fault: Fault = "none", files: Mapping[str, bytes] = FILES, *, held: bool = False) -> Iterator[Hub]:
    """A hub with one repository, org/name. held: its weights wait for `open`."""
    handler = type("Handler", (_Handler,), {})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        hub = Hub(url=f"http://127.0.0.1:{server.server_address[1]}", fault=fault, files=files)
        if not held:
            hub.open.set()
        handler.hub = hub  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield hub
        finally:
            hub.open.set()
            server.shutdown()
            thread.join()
