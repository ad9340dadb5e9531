"""A model hub on loopback that fails as networks do: it cuts, refuses, lies about sizes and leads in circles."""

import contextlib
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

Fault = Literal[
    "none", "cut once", "cut always", "too long", "refused", "gated", "absent", "busy", "circle", "elsewhere"
]
COMMIT: Final = "c" * 40
LARGE: Final = 200_000
FILES: Final = {"config.json": b'{"model_type": "llama"}', "model.safetensors": bytes(range(256)) * (LARGE // 256)}


@dataclass(slots=True)
class Hub:
    """files: of the repository, by name. fault: of the weights, or of the whole repository.

    asked: method, path and authorization of each request. open: the weights are sent once it is set.
    """

    url: str
    fault: Fault = "none"
    files: Mapping[str, bytes] = field(default_factory=lambda: FILES)
    open: threading.Event = field(default_factory=threading.Event)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    elsewhere: str = ""

    def env(self, home: Path) -> dict[str, str]:
        """What leads the hub's library here. home: where it keeps what it fetched."""
        off = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        return {"HF_HOME": str(home), "HF_ENDPOINT": self.url, **off}

    def of(self, method: str) -> list[str]:
        """Paths that were asked for by a method."""
        return [path for how, path, _ in self.asked if how == method]


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
        if hub.fault in ("refused", "gated", "absent", "busy"):
            return self._refuse(hub.fault)
        if "/tree/" in self.path:
            tree = [{"type": "file", "path": name, "size": len(file), "oid": name} for name, file in hub.files.items()]
            return self._send(json.dumps(tree).encode(), {})
        if self.path.startswith("/api/"):
            siblings = [{"rfilename": name, "size": len(content)} for name, content in hub.files.items()]
            return self._send(json.dumps({"id": "org/name", "sha": COMMIT, "siblings": siblings}).encode(), {})
        name = self.path.rsplit("/", 1)[-1].partition("?")[0]
        of_weights = name == "model.safetensors"
        if of_weights and body:
            hub.open.wait(100)
        if of_weights and hub.fault == "circle":
            return self._lead(self.path)
        if of_weights and hub.fault == "elsewhere" and body:
            return self._lead(f"{hub.elsewhere}{self.path}")
        return self._file(name, body=body, fault=hub.fault if of_weights else "none")

    def _file(self, name: str, *, body: bool, fault: Fault) -> None:
        content = self.hub.files[name]
        first = int((self.headers.get("range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        claimed = len(content) + (1000 if fault == "too long" else 0)
        if not body:
            return self._send(b"", headers, length=claimed)
        rest, status = content[first:], 206 if first else 200
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        first_time = self.hub.of("GET").count(self.path) == 1
        cut = fault == "cut always" or (fault == "cut once" and first_time)
        self._send(rest[: len(rest) // 2] if cut else rest, headers, length=len(rest), status=status)
        if cut:
            self.close_connection = True
        return None

    def _refuse(self, fault: Fault) -> None:
        status = {"refused": 403, "gated": 403, "absent": 404, "busy": 503}[fault]
        codes = {"gated": {"X-Error-Code": "GatedRepo"}, "absent": {"X-Error-Code": "RepoNotFound"}}
        self._send(b"{}", codes.get(fault, {}), status=status)

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
