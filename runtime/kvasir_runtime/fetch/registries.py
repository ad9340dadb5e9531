"""Models in OCI registries, by the distribution specification: artifacts whose layers are files (as ORAS and ModelPack
write them), and images whose layers hold a model in any directory.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import urlencode

from kvasir_api import model_uri
from kvasir_runtime import gguf
from kvasir_runtime.errors import ModelError, ModelUnavailableError
from kvasir_runtime.fetch.docker_login import DockerLogin, docker_login
from kvasir_runtime.fetch.http_client import HttpClient, HttpStatusError, origin
from kvasir_runtime.fetch.model_files import (
    BrokenTransferError,
    Checksum,
    RemoteFile,
    RemoteModel,
    Transfer,
    checked_names,
    is_needed,
)
from kvasir_runtime.fetch.settings import SECRET, SourceSettings

_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_INDEX: Final = "application/vnd.oci.image.index.v1+json"
_DOCKER: Final = "application/vnd.docker.distribution.manifest.v2+json"
_DOCKER_LIST: Final = "application/vnd.docker.distribution.manifest.list.v2+json"
_ACCEPTED: Final = f"{_MANIFEST}, {_INDEX}, {_DOCKER}, {_DOCKER_LIST}, */*"
_NAMES: Final = ("org.opencontainers.image.title", "org.cncf.model.filepath")
_PACKED: Final = "io.deis.oras.content.unpack"
_MOST_BYTES: Final = 4 * 2**20
"""Of a manifest: what the specification has registries take at least."""
_LOOPBACK: Final = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?")
_REFERENCE: Final = re.compile(
    r"(?P<host>[A-Za-z0-9.-]+(:\d+)?|\[[0-9a-f:]+\](:\d+)?)/"
    r"(?P<repository>[a-z0-9]+([._/-]+[a-z0-9]+)*)(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?"
)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_PUSH: Final = "push the model again"
_PARAMETER: Final = re.compile(r'(\w+)="([^"]*)"')


class Registry:
    """One repository, by tag or digest."""

    def __init__(self, uri: str, settings: SourceSettings) -> None:
        """uri: oci://HOST/REPOSITORY:TAG@sha256:DIGEST. Raises ModelError for another form."""
        self._uri, self._settings = model_uri.unpinned(uri), settings
        found = _REFERENCE.fullmatch(self._uri.removeprefix(model_uri.OCI))
        if found is None:
            raise ModelError(f"model {uri} is not of the form oci://HOST/REPOSITORY:TAG or oci://…@sha256:DIGEST")
        self._host, self._repository = found["host"], found["repository"]
        version = model_uri.version(uri)
        self._reference = f"sha256:{version}" if version else found["tag"] or "latest"
        scheme = "http" if _LOOPBACK.fullmatch(self._host) else "https"
        self._base = f"{settings.url('endpoint') or f'{scheme}://{self._host}'}/v2/{self._repository}"
        self._client = HttpClient(settings, self._uri)
        self._authorization, self._login = "", DockerLogin()

    def model(self) -> RemoteModel:
        """The layers that are files of a model. Raises BrokenTransferError, ModelUnavailableError."""
        version, manifest = self._manifest(self._reference)
        if "manifests" in manifest:
            _, manifest = self._manifest(self._of_platform(manifest["manifests"]))
        layers = manifest.get("layers")
        if not isinstance(layers, list):
            raise self._broken("its manifest has no layers")
        files = dict[tuple[str, str], RemoteFile]()
        for layer in layers:
            if (file := self._file(layer)) is not None:
                named = file.name, layer["digest"]
                files.pop(named, None)  # of equal layers the last one has the last word on each path
                files[named] = file
        given = [name for name, _ in files]
        if twice := next((name for name in given if given.count(name) > 1), ""):
            raise self._broken(f"two of its layers have the name {twice!r:.100}")
        checked_names(self._uri, given)
        return RemoteModel(uri=self._uri, version=version, files=tuple(files.values()))

    def _manifest(self, reference: str) -> tuple[str, dict[str, Any]]:
        """Digest and content of a manifest or an index; one that was named by its digest has that."""
        with self._errors(f"it has no {reference} (404); name a tag or a digest that it has"):
            body, _ = self._asked(f"{self._base}/manifests/{reference}")
        digest = hashlib.sha256(body).hexdigest()
        if reference.startswith("sha256:") and reference != f"sha256:{digest}":
            raise self._broken(f"its manifest has the digest sha256:{digest} and not {reference}")
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._broken("its manifest is no JSON object")
        return digest, found

    def _of_platform(self, manifests: Sequence[Mapping[str, Any]]) -> str:
        """The digest of the manifest to take: a model is the same on every processor."""
        digests = [str(one.get("digest", "")) for one in manifests if isinstance(one, dict)]
        linux = [
            str(one.get("digest", ""))
            for one in manifests
            if isinstance(one, dict) and (one.get("platform") or {}).get("os", "linux") == "linux"
        ]
        found = next((digest for digest in (*linux, *digests) if _DIGEST.fullmatch(digest)), None)
        if found is None:
            raise self._broken("its index names no manifest")
        return found

    def _file(self, layer: Mapping[str, Any]) -> RemoteFile | None:
        """A layer as a file or an archive; None for what serving does not need."""
        digest, size, kind = str(layer.get("digest", "")), layer.get("size"), str(layer.get("mediaType", ""))
        if not _DIGEST.fullmatch(digest) or not isinstance(size, int) or size < 0:
            raise self._broken(f"a layer has digest {digest!r:.80} and size {size!r:.20}")
        notes = layer.get("annotations") or {}
        name = next((str(notes[key]) for key in _NAMES if notes.get(key)), "")
        archive: Literal["", "tar"] = "tar" if ".tar" in kind or notes.get(_PACKED) == "true" else ""
        if "zstd" in kind and not archive:
            raise self._broken(
                "a layer is one file that is compressed with zstd; push it as it is, or as a tar archive"
            )
        if not archive and not name and "gguf" in kind:
            name = "model.gguf"
        name = name or digest.removeprefix("sha256:")
        if not archive and not (is_needed(name) or name.lower().endswith(gguf.SUFFIX)):
            return None
        stated = Checksum(algorithm="sha256", value=digest.removeprefix("sha256:"))
        opened = partial(self._opened, digest)
        return RemoteFile(name=name, size=size, opened=opened, checksum=partial(_same, stated), archive=archive)

    @contextlib.contextmanager
    def _opened(self, digest: str, offset: int) -> Iterator[Transfer]:
        url = f"{self._base}/blobs/{digest}"
        with self._errors(f"it has no {digest} (404); {_PUSH}"), contextlib.ExitStack() as opened:
            try:
                transfer = opened.enter_context(self._client.opened(url, self._headers(), offset))
            except HttpStatusError as error:
                if error.status != 401 or not self._sign_in(error):
                    raise
                transfer = opened.enter_context(self._client.opened(url, self._headers(), offset))  # tokens are short
            yield transfer

    def _asked(self, url: str) -> tuple[bytes, Mapping[str, str]]:
        try:
            return self._client.text(url, self._headers(), _MOST_BYTES)
        except HttpStatusError as error:
            if error.status != 401 or not self._sign_in(error):
                raise
        return self._client.text(url, self._headers(), _MOST_BYTES)

    def _headers(self) -> dict[str, str]:
        return {"Accept": _ACCEPTED} | ({"Authorization": self._authorization} if self._authorization else {})

    def _sign_in(self, refusal: HttpStatusError) -> bool:
        """Whether there is a new authorization, as the registry's challenge has it: Basic, or a token of the server it
        names. Another server, to which it redirects, gets neither."""
        if refusal.origin != origin(self._base):
            return False
        kind, _, rest = refusal.challenge.partition(" ")
        self._login = docker_login(self._settings, self._host, self._uri)
        basic, before = self._login.basic, self._authorization
        if kind.lower() == "basic":
            self._authorization = basic
            return bool(basic) and basic != before
        asked = dict(_PARAMETER.findall(rest))
        realm = asked.pop("realm", "")
        if kind.lower() != "bearer" or not realm.startswith(("https://", "http://")):
            return False
        if realm.startswith("http://") and self._base.startswith("https://"):
            raise self._broken("it asks to send the password over a connection that is not protected")
        asked.setdefault("scope", f"repository:{self._repository}:pull")
        query = urlencode({key: asked[key] for key in ("service", "scope") if key in asked})
        body, _ = self._client.text(f"{realm}?{query}", {"Authorization": basic} if basic else {}, _MOST_BYTES)
        try:
            found = json.loads(body)
            token = str(found.get("token") or found.get("access_token") or "")
        except (ValueError, AttributeError):
            token = ""
        self._authorization = f"Bearer {token}" if token else ""
        return bool(token)

    def _broken(self, why: str) -> ModelUnavailableError:
        return ModelUnavailableError(f"model {self._uri} is not fetched from the registry: {why}")

    @contextlib.contextmanager
    def _errors(self, absent: str) -> Iterator[None]:
        try:
            yield
        except HttpStatusError as error:
            if error.status == 416:
                raise BrokenTransferError("it is shorter than its manifest states", _PUSH) from error
            if error.status in (401, 403):
                advice = f"put a key .dockerconfigjson for it into {SECRET}"
                if not self._settings.of_pod:
                    advice = "; ".join(filter(None, (self._login.trouble, "sign in with `docker login`")))
                why = f"{self._host} refuses access ({error.status}); {advice}"
            else:
                why = absent if error.status == 404 else f"it answers {error.status}; check that it is a registry"
            raise self._broken(why) from error


def _same(stated: Checksum) -> Checksum:
    return stated
