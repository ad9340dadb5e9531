"""A model hub on loopback with one repository, as huggingface_hub speaks to one: the listing, the tree, and files by
their name, also from an offset on.

For `kvasir demo --hub`. Tests have one that fails, on the same handler.
"""

import contextlib
import functools
import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import unquote, urlsplit

from kvasir_api.forecast import readable

BRANCH: Final = "main"
_LARGE: Final = ".safetensors"
_ASKED: Final = re.compile(
    r"(?P<api>/api/models)?/(?P<name>[^/]+/[^/]+?)(/(?P<what>revision|tree|resolve)/(?P<revision>[^/]+)(/(?P<file>.+))?)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubRepository:
    """name: ORG/NAME. files: content by path."""

    name: str
    files: Mapping[str, bytes]

    @classmethod
    def of_folder(cls, name: str, folder: Path) -> "HubRepository":
        """With the files of a directory, those of directories in it left out."""
        return cls(name=name, files={path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})

    @property
    def commit(self) -> str:
        """40 hexadecimal digits that differ between contents."""
        listed = [(name, git_object(content)) for name, content in sorted(self.files.items())]
        return hashlib.sha1(json.dumps(listed).encode(), usedforsecurity=False).hexdigest()


@dataclass(slots=True)
class ServedHub:
    """A hub that runs. commit: of its repository. sent: of each file the bytes of the longest answer with it, since the
    header of weights is asked for once more."""

    commit: str
    url: str = ""
    sent: dict[str, int] = field(default_factory=dict)

    def outcome(self, model: Mapping[str, Any]) -> str:
        """What a service with this status.model has done with the hub, in words."""
        size, sent = model["downloadBytes"], sum(self.sent.values())
        came = f"{readable(sent)} were fetched from the hub"
        if sent < size:  # no more than its listing and config.json
            came = f"{readable(size)} are on the claim since an earlier run"
        later = "" if model["commit"] == self.commit else f"; the hub now has {self.commit}"
        return f"{came}; every replica loads commit {model['commit']}{later}"


class HubHandler(http.server.BaseHTTPRequestHandler):
    """Answers GET and HEAD. Subclasses replace `answer`."""

    repository: ClassVar[HubRepository]
    served: ClassVar[ServedHub]
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_HEAD(self) -> None:
        """What a file is."""
        self.answer()

    def do_GET(self) -> None:
        """A file, or the list of them."""
        self.answer()

    def answer(self) -> None:
        """What the path names, or 404 with the hub's code for what is not there."""
        found, asked = self.repository, _ASKED.fullmatch(unquote(urlsplit(self.path).path))
        if asked is None or asked["name"] != found.name:
            return self.reply(b"", {"X-Error-Code": "RepoNotFound"}, status=404)
        if asked["revision"] not in (None, BRANCH, found.commit):
            return self.reply(b"", {"X-Error-Code": "RevisionNotFound"}, status=404)
        if asked["api"] and asked["what"] == "tree":
            return self.reply(json.dumps([file_entry(*file) for file in found.files.items()]).encode(), {})
        if asked["api"]:
            siblings = [listed_file(file_entry(*file)) for file in found.files.items()]
            return self.reply(model_listing(found.name, found.commit, siblings), {})
        if (content := found.files.get(asked["file"] or "")) is None:
            return self.reply(b"", {"X-Error-Code": "EntryNotFound"}, status=404)
        first = self.first_byte()
        given = {"ETag": f'"{file_digest(asked["file"], content)}"', "X-Repo-Commit": found.commit}
        if first:
            given["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        if self.command == "GET":
            sent = self.served.sent
            sent[asked["file"]] = max(sent.get(asked["file"], 0), len(content) - first)
        return self.reply(content[first:], given, status=206 if first else 200)

    def first_byte(self) -> int:
        """Of a file: the offset from which on it is asked for."""
        part = re.fullmatch(r"bytes=(\d+)-\d*", self.headers.get("range") or "")
        return int(part[1]) if part else 0

    def reply(self, content: bytes, headers: Mapping[str, str], *, length: int = -1, status: int = 200) -> None:
        """An answer; to HEAD without its content. length: what is stated, if it is not that of the content."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content) if length < 0 else length))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(b"" if self.command == "HEAD" else content)


@functools.lru_cache(maxsize=32)
def git_object(content: bytes) -> str:
    """The id of a file in a Git repository."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@functools.lru_cache(maxsize=32)
def file_digest(name: str, content: bytes) -> str:
    """What a hub states of a file: the SHA-256 of a large one, Git's id of another."""
    return hashlib.sha256(content).hexdigest() if name.endswith(_LARGE) else git_object(content)


def file_entry(name: str, content: bytes) -> dict[str, Any]:
    """A file as /api/models/NAME/tree lists it."""
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": git_object(content)}
    if name.endswith(_LARGE):
        entry["lfs"] = {"oid": file_digest(name, content), "size": len(content), "pointerSize": 134}
    return entry


def listed_file(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of a tree as /api/models/NAME lists it with blobs=true."""
    found = {"rfilename": entry["path"], "size": entry["size"], "blobId": entry["oid"]}
    if stored := entry.get("lfs"):
        found["lfs"] = {"size": stored["size"], "sha256": stored["oid"], "pointerSize": stored["pointerSize"]}
    return found


def model_listing(name: str, commit: str, siblings: list[dict[str, Any]]) -> bytes:
    """What /api/models/NAME answers."""
    return json.dumps({"id": name, "sha": commit, "siblings": siblings}).encode()


@contextlib.contextmanager
def listening(handler: type[HubHandler], address: str = "127.0.0.1") -> Iterator[str]:
    """A server on a free port of an address of this machine, in a thread; its URL."""
    with http.server.ThreadingHTTPServer((address, 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="hub")
        thread.start()
        try:
            yield f"http://{address}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def serving(repository: HubRepository) -> Iterator[ServedHub]:
    """A hub with one repository."""
    served = ServedHub(commit=repository.commit)
    with listening(type("_Handler", (HubHandler,), {"repository": repository, "served": served})) as served.url:
        yield served
