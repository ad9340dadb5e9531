"""How a pod reaches the source of its model: the keys of the Secret of spec.model.secretName, as files of a folder.

Outside of a pod there is none, and the libraries' own variables and files count. No value is ever part of a message.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from kvasir_api import names
from kvasir_runtime.errors import ModelUnavailableError

SECRET: Final = "the Secret of spec.model.secretName"


class SourceSettings:
    """The files of a folder, or nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> "SourceSettings":
        """Of a process."""
        given = environment.get(names.ENV_SOURCE_SETTINGS)
        return cls(Path(given) if given else None)

    @property
    def of_pod(self) -> bool:
        """Whether a message for a person may speak of the Secret."""
        return self._folder is not None

    def named(self, key: str, variable: str) -> str:
        """How a message for a person names a setting: a key of the Secret, or a variable of the process."""
        return f"key {key} of {SECRET}" if self.of_pod else variable

    @property
    def unreached(self) -> str:
        """What to do where a source is not reached."""
        if self.of_pod:
            return f"it is tried again; check the network, and the keys endpoint, proxy and ca.crt of {SECRET}"
        return "check the network and the variables of proxies, and try again"

    def check_online(self, model: str) -> None:
        """Raises ModelUnavailableError where the key offline is true, so that no source is asked for a model."""
        if (given := self.value("offline").lower()) not in ("", "false", "true"):
            raise ModelUnavailableError(f"key offline of {SECRET} is neither true nor false")
        if given == "true":
            raise ModelUnavailableError(
                f"no source is asked for model {model}, as key offline of {SECRET} is true; name a version in"
                " spec.model.uri that is whole in its cache, or remove that key"
            )

    def value(self, key: str) -> str:
        """A key's text without space around it; empty without one."""
        path = self.file(key)
        return path.read_text(errors="replace").strip() if path else ""

    def file(self, key: str) -> Path | None:
        """Where a key's value lies."""
        path = self._folder / key if self._folder else None
        return path if path is not None and path.is_file() else None

    def proxy(self, url: str) -> str:
        """For a URL: the key proxy, else of the process's variables; empty for a host that NO_PROXY names.

        Raises ModelUnavailableError.
        """
        from urllib.request import getproxies, proxy_bypass

        at = urlsplit(url)
        if proxy_bypass(at.netloc.rpartition("@")[2]):
            return ""
        return self.url("proxy") or getproxies().get(at.scheme, "")

    def url(self, key: str) -> str:
        """A key that has to be a URL. Raises ModelUnavailableError where it is none."""
        url = self.value(key)
        if url and not (url.startswith(("http://", "https://")) and urlsplit(url).hostname):
            raise ModelUnavailableError(f"key {key} of {SECRET} is no http:// or https:// URL")
        return url.rstrip("/")
