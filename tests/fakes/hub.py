"""A model hub on loopback that fails as networks do: it cuts, refuses, lies about sizes and leads in circles."""

import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from kvasir_local.demo.hub_server import HubHandler, file_digest, file_entry, listed_file, listening, model_listing

Fault = Literal[
    "none",
    "cut once",
    "cut always",
    "reset always",
    "stalls",
    "trickles",
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
    """files: of the repository, by name. fault: of weights, also in a GGUF file, or of the whole repository. commit: of
    every revision; after a listing of one that "moves" it is LATER. digest: what is said to be that of the weights.

    asked: method, path and authorization of each request. open: the weights are sent once it is set. ended: of what
    "stalls" the second half is sent then. What "trickles" comes byte by byte until `open` is set, behind the bytes that
    come `at_once`. weights: the file that all of this is about. damaged: the byte of it that is wrong in what is
    "damaged", by default the last one. times: what happens "once" happens so often. silent: a file of which the hub
    says nothing, and closes the connection. plain: what it lacks it refuses as a mirror does, without the hub's code.
    """

    url: str
    fault: Fault = "none"
    files: Mapping[str, bytes] = field(default_factory=lambda: FILES)
    open: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    elsewhere: str = ""
    commit: str = COMMIT
    digest: str = ""
    weights: str = WEIGHTS
    at_once: int = 0
    damaged: int = -1
    times: int = 1
    silent: str = ""
    plain: bool = False

    def env(self, home: Path) -> dict[str, str]:
        """What leads the hub's library here. home: where it keeps what it fetched."""
        off = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        return {"HF_HOME": str(home), "HF_ENDPOINT": self.url, **off}

    def of(self, method: str) -> list[str]:
        """Paths that were asked for by a method."""
        return [path for how, path, _ in self.asked if how == method]


class _Handler(HubHandler):
    hub: Hub

    def answer(self) -> None:
        hub, body = self.hub, self.command == "GET"
        hub.asked.append((self.command, self.path, self.headers.get("authorization", "")))
        if hub.fault in REFUSALS:
            return self._refuse(*REFUSALS[hub.fault])
        if "/tree/" in self.path:
            # A hub that means harm names them in the other listing alone: the library refuses to fetch them.
            tree = [self._entry(name, file) for name, file in hub.files.items() if ".." not in name]
            return self.reply(json.dumps(tree).encode(), {})
        if self.path.startswith("/api/"):
            siblings = [self._sibling(name, content) for name, content in hub.files.items()]
            listed = model_listing("org/name", self._commit(), siblings)
            if hub.fault == "moves":
                hub.commit = LATER
            return self.reply(listed, {})
        name = self.path.rsplit("/", 1)[-1].partition("?")[0]
        of_weights = name == hub.weights or name.endswith(".gguf")
        if name == hub.silent:
            self.close_connection = True
            return None
        if name not in hub.files:
            return self._refuse(404, "" if hub.plain else "EntryNotFound", {"X-Repo-Commit": self._commit()})
        if of_weights and body and hub.fault != "trickles":
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
        """A file of the listing, of whose weights what `digest` has may be said."""
        found = listed_file(self._entry(name, content))
        if self.hub.digest and "lfs" in found:
            found["lfs"]["sha256"] = self.hub.digest
        return found

    def _entry(self, name: str, content: bytes) -> dict[str, Any]:
        entry = file_entry(name, content)
        if self.hub.fault == "huge" and name == WEIGHTS:
            entry["size"] = entry["lfs"]["size"] = 10**17
        return entry

    def _file(self, name: str, *, body: bool, fault: Fault) -> None:
        content = self.hub.files[name]
        digest = file_digest(name, content)
        times = self.hub.of("GET").count(self.path)
        if fault == "damaged always" or (fault == "damaged once" and times <= self.hub.times):
            damaged = bytearray(content)
            damaged[self.hub.damaged] ^= 1
            content = bytes(damaged)
        first = self.first_byte()
        headers = {"ETag": f'"{digest}"', "X-Repo-Commit": self._commit()}
        if not body:
            return self.reply(b"", headers, length=len(content))
        rest, status = content[first:], 206 if first else 200
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        if fault == "trickles":
            return self._trickle(rest, headers, status)
        cut = fault in ("cut always", "reset always", "stalls") or (fault == "cut once" and times <= self.hub.times)
        self.reply(rest[: len(rest) // 2] if cut else rest, headers, length=len(rest), status=status)
        if fault == "stalls":
            self.hub.ended.wait(100)
        if fault == "reset always":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        if cut:
            self.close_connection = True
        return None

    def _trickle(self, rest: bytes, headers: dict[str, str], status: int) -> None:
        """Slow enough to last until `open` is set, and never silent, which clients accept for seconds only."""
        sent = min(self.hub.at_once, len(rest))
        self.reply(rest[:sent], headers, length=len(rest), status=status)
        with contextlib.suppress(OSError):
            while sent < len(rest) - 1 and not self.hub.open.wait(0.2):
                self.wfile.write(rest[sent : sent + 1])
                sent += 1
            self.wfile.write(rest[sent:])

    def _refuse(self, status: int, code: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        body = b"{}" if self.command == "GET" else b""
        self.reply(body, {**headers, **({"X-Error-Code": code} if code else {})}, status=status)

    def _lead(self, where: str) -> None:
        self.reply(b"", {"Location": where}, status=302)


@contextlib.contextmanager
def serving(
    fault: Fault = "none", files: Mapping[str, bytes] = FILES, *, held: bool = False, address: str = "127.0.0.1"
) -> Iterator[Hub]:
    """A hub with one repository, org/name. held: its weights wait for `open`. address: of this machine."""
    handler = type("Handler", (_Handler,), {})
    with listening(handler, address) as url:
        hub = Hub(url=url, fault=fault, files=files)
        handler.hub = hub  # type: ignore[attr-defined]
        if not held:
            hub.open.set()
        try:
            yield hub
        finally:
            hub.open.set()
            hub.ended.set()


def planned(found: Hub, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`kvasir plan` in a process of its own, since the hub's library reads its environment when it is imported."""
    command = [sys.executable, "-c", "from kvasir_runtime.commands.plan import plan; plan()", *arguments]
    env = {**os.environ, **found.env(home)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
