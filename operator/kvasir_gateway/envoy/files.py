"""Writes the files that Envoy reads, each by an atomic rename, so that it never sees half of one."""

import os
import tempfile
from pathlib import Path

import msgspec

from kvasir_gateway.envoy import bootstrap, clusters


def write_bootstrap(settings: bootstrap.Settings) -> None:
    """Everything that Envoy needs to start. Clusters that are there already stay: the picker may have written them."""
    directory = Path(settings.directory)
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / bootstrap.CLUSTERS).exists():
        write_clusters(directory, clusters.document({}))
    replace(directory / bootstrap.BOOTSTRAP, msgspec.json.format(msgspec.json.encode(bootstrap.bootstrap(settings))))


def write_clusters(directory: Path, document: clusters.Document) -> None:
    """The clusters file; Envoy picks it up within milliseconds."""
    replace(directory / bootstrap.CLUSTERS, document.content)


def replace(path: Path, content: bytes) -> None:
    """Put a whole file in the place of another one, readable by the group that both containers share."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(name).chmod(0o640)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
