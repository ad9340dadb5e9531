"""The CNCF's registry as a process on loopback, what pushes to it, and a server of tokens before it.

The binary is built once per user from its Go module; see kvasir_local.binaries.
"""

import base64
import hashlib
import http.server
import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fakes.file_server import answering

DEADLINE_S: Final = 60.0
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
INDEX: Final = "application/vnd.oci.image.index.v1+json"
EMPTY: Final = "application/vnd.oci.empty.v1+json"
ISSUER: Final = "tokens.example"
SERVICE: Final = "registry.example"
_KEY_ID: Final = "key-1"


def basic(user: str, password: str) -> str:
    """As Docker's file has a user, and behind `Basic ` a request."""
    return base64.b64encode(f"{user}:{password}".encode()).decode()


class Distribution:
    """A running registry. url: http://127.0.0.1:PORT; log: of its process; authorization: what pushes send."""

    def __init__(self, url: str, storage: Path, authorization: str) -> None:
        self.url, self._storage, self.authorization = url, storage, authorization

    @property
    def host(self) -> str:
        """As a uri names it."""
        return self.url.removeprefix("http://")

    def stored(self, digest: str) -> Path:
        """The file of a blob."""
        algorithm, _, value = digest.partition(":")
        return self._storage / "docker/registry/v2/blobs" / algorithm / value[:2] / value / "data"

    def blob(self, repository: str, content: bytes, kind: str, title: str = "") -> dict[str, Any]:
        """Push a blob. Returns its descriptor, with the name that ORAS gives a file."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        opened = self._send("POST", f"/v2/{repository}/blobs/uploads/", b"")["Location"]
        separator = "&" if "?" in opened else "?"
        self._send("PUT", f"{opened}{separator}{urllib.parse.urlencode({'digest': digest})}", content)
        notes = {"annotations": {"org.opencontainers.image.title": title}} if title else {}
        return {"mediaType": kind, "digest": digest, "size": len(content), **notes}

    def image(self, repository: str, tag: str, layers: Sequence[Mapping[str, Any]]) -> str:
        """Push a manifest of layers that are there. Returns its digest."""
        document = {"schemaVersion": 2, "mediaType": MANIFEST, "config": self.blob(repository, b"{}", EMPTY)}
        return self.manifest(repository, tag, document | {"layers": list(layers)})

    def manifest(self, repository: str, tag: str, document: Mapping[str, Any]) -> str:
        """Push a manifest or an index. Returns its digest."""
        kind, body = str(document["mediaType"]), json.dumps(document).encode()
        return self._send("PUT", f"/v2/{repository}/manifests/{tag}", body, kind)["Docker-Content-Digest"]

    def _send(self, method: str, at: str, body: bytes, kind: str = "application/octet-stream") -> Mapping[str, str]:
        headers = {"Content-Type": kind} | ({"Authorization": self.authorization} if self.authorization else {})
        url = urllib.parse.urljoin(self.url, at)
        request = urllib.request.Request(url, body, headers, method=method)
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return dict(answer.headers)


@contextmanager
def running(
    binary: Path, folder: Path, auth: Mapping[str, Mapping[str, str]] | None = None, authorization: str = ""
) -> Iterator[Distribution]:
    """Start a registry with its files in a new folder.

    auth: as its configuration has it; for a file of passwords that is not there it makes a user, with whose name pushes
    are then sent. authorization: what pushes send else.
    """
    storage, log = folder / "storage", folder / "registry.log"
    storage.mkdir(parents=True)
    config = {
        "version": "0.1",
        "log": {"formatter": "json", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(storage)}},
        "http": {"addr": "127.0.0.1:0"},
    } | ({"auth": dict(auth)} if auth else {})
    (folder / "config.yml").write_text(json.dumps(config))
    with log.open("wb") as sink:
        command = [str(binary), "serve", str(folder / "config.yml")]
        process = subprocess.Popen(command, stdout=sink, stderr=sink, env={"OTEL_TRACES_EXPORTER": "none"})
    try:
        said = _started(process, log)
        port = re.search(r"listening on 127\.0\.0\.1:(\d+)", said)
        made = re.search(r'"password":"([^"]+)"', said)
        assert port, said
        own = f"Basic {basic('docker', made[1])}" if made else ""
        yield Distribution(f"http://127.0.0.1:{port[1]}", storage, own or authorization)
    finally:
        process.kill()
        process.wait(DEADLINE_S)


def _started(process: subprocess.Popen[bytes], log: Path) -> str:
    """Its log, when it has its port."""
    deadline = time.monotonic() + DEADLINE_S
    while "listening on" not in (said := log.read_text()):
        assert process.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.01)
    return said


class TokenServer:
    """Gives tokens for the registry of `auth`. rights: what each user, as `basic` writes one, may do with which
    repository; a user that is not in it is refused with 401, one with None with 403. asked: the scopes."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self._key = url, Ed25519PrivateKey.generate()
        self.rights: dict[str, Mapping[str, Sequence[str]] | None] = {}
        self.asked: list[str] = []
        key = {"kty": "OKP", "crv": "Ed25519", "x": _b64(self._key.public_key().public_bytes_raw())}
        jwks = folder / "jwks.json"
        jwks.write_text(json.dumps({"keys": [key | {"kid": _KEY_ID, "alg": "EdDSA", "use": "sig"}]}))
        realm = {"realm": f"{url}/token", "service": SERVICE, "issuer": ISSUER, "jwks": str(jwks)}
        self.auth = {"token": realm}

    def token(self, rights: Mapping[str, Sequence[str]]) -> str:
        """Signed, for an hour. rights: actions by repository."""
        access = [{"type": "repository", "name": name, "actions": list(actions)} for name, actions in rights.items()]
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": SERVICE, "nbf": now - 60, "exp": now + 3600, "jti": str(now), "access": access}
        parts = ({"alg": "EdDSA", "typ": "JWT", "kid": _KEY_ID}, claims)
        signed = ".".join(_b64(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{_b64(self._key.sign(signed.encode()))}"

    def answer(self, key: str, path: str) -> tuple[int, bytes]:
        """Status and body for an Authorization and a path."""
        self.asked += urllib.parse.parse_qs(urllib.parse.urlsplit(path).query).get("scope", [])
        user = key.removeprefix("Basic ")
        if user not in self.rights:
            return 401, b""
        rights = self.rights[user]
        return (403, b"") if rights is None else (200, json.dumps({"token": self.token(rights)}).encode())


@contextmanager
def tokens(folder: Path) -> Iterator[TokenServer]:
    """A server of tokens on loopback; it writes the key that its registry trusts into the folder."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Nothing."""

        def do_GET(self) -> None:
            status, body = found.answer(self.headers.get("Authorization", ""), self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = TokenServer(f"http://127.0.0.1:{server.server_address[1]}", folder)
        with answering(server):
            yield found


def _b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
