"""Models as one file of a web server: a tar or zip archive, or a GGUF file, whose SHA-256 the uri has."""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Final, Literal
from urllib.parse import urlsplit

from kvasir_api import model_uri
from kvasir_runtime import gguf
from kvasir_runtime.errors import ModelError, ModelUnavailableError
from kvasir_runtime.fetch.http_client import HttpClient, HttpStatusError, origin
from kvasir_runtime.fetch.model_files import (
    BrokenTransferError,
    Checksum,
    RemoteFile,
    RemoteModel,
    Transfer,
    checked_names,
)
from kvasir_runtime.fetch.settings import SECRET, SourceSettings

_OWN_ADDRESS: Final = "name an address that takes them, or needs none"


class WebFile:
    """One file behind an https:// URL."""

    def __init__(self, uri: str, settings: SourceSettings) -> None:
        """Raises ModelError for a uri without a checksum or of a file that holds no model."""
        self._url, self._settings = model_uri.unpinned(uri), settings
        self._digest, self._name = model_uri.version(uri), model_uri.file_name(uri)
        if "?" in self._url or "@" in urlsplit(self._url).netloc:
            raise ModelError(
                f"model {self._url.partition('?')[0].rpartition('@')[2]}: a uri is written to logs, so it has no query"
                f" and no password; put a token under the key token into {SECRET}"
            )
        if len(self._digest) != 64:
            raise ModelError(
                f"model {uri} has no checksum: append #sha256= and the 64 hexadecimal digits that sha256sum prints"
            )
        if not self._name.lower().endswith((*model_uri.ARCHIVES, gguf.SUFFIX)):
            kinds = ", ".join((*model_uri.ARCHIVES, gguf.SUFFIX))
            raise ModelError(f"model {uri} is none of the files that can be served: {kinds}")
        self._client = HttpClient(settings, self._url)

    def model(self) -> RemoteModel:
        """The file, of which the server states the length. Raises BrokenTransferError, ModelUnavailableError."""
        checked_names(self._url, [self._name])
        with self._errors():
            size = self._client.size(self._url, self._headers())
        stated = Checksum(algorithm="sha256", value=self._digest)
        file = RemoteFile(
            name=self._name, size=size, opened=self._opened, checksum=partial(_same, stated), archive=self._archive()
        )
        return RemoteModel(uri=self._url, version=self._digest, files=(file,))

    def _archive(self) -> Literal["", "tar", "zip"]:
        name = self._name.lower()
        if name.endswith(gguf.SUFFIX):
            return ""
        return "zip" if name.endswith(".zip") else "tar"

    @contextlib.contextmanager
    def _opened(self, offset: int) -> Iterator[Transfer]:
        with self._errors(), self._client.opened(self._url, self._headers(), offset) as transfer:
            yield transfer

    def _headers(self) -> dict[str, str]:
        token = self._settings.value("token")
        return {"Authorization": f"Bearer {token}"} if token else {}

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except HttpStatusError as error:
            is_led, where = error.origin != origin(self._url), urlsplit(error.origin).netloc
            where += ", to which it redirects," if is_led else ""
            if error.status == 416:
                raise BrokenTransferError(
                    "it is shorter than it was before", "put the whole file there again"
                ) from error
            if error.status in (401, 403):
                own = f"put a token that may read it under the key token into {SECRET}"
                advice = f"credentials are not sent there: {_OWN_ADDRESS}" if is_led else own
                why = f"{where} refuses access ({error.status}); {advice}"
            elif error.status in (404, 410):
                why = f"{where} does not have it ({error.status}); check the address"
            else:
                why = f"{where} answers {error.status}; check the address"
            raise ModelUnavailableError(f"model {self._url} could not be fetched: {why}") from error


def _same(stated: Checksum) -> Checksum:
    return stated
