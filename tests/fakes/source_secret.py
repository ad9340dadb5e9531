"""The Secret that a pod has mounted for the source of its model, in tests of fetching: a directory of files."""

from pathlib import Path

import pytest

from kvasir_api import names

REACH = (
    "it is tried again; check the network, and the keys endpoint, proxy and ca.crt of the Secret of"
    " spec.model.secretName"
)
"""What a message advises where a source is not reached."""
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def mounted(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one, with an empty cache of models beside it and without the proxies of the machine."""
    secret = directory / "secret"
    secret.mkdir()
    monkeypatch.setenv(names.ENV_SOURCE_SETTINGS, str(secret))
    monkeypatch.setenv(names.ENV_MODEL_CACHE, str(directory / "models"))
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    return secret
