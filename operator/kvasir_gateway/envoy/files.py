"""Writes the files that Envoy reads, each by an atomic rename, so that Envoy never reads a partial one."""

import os
import tempfile
from pathlib import Path

import msgspec

from kvasir_gateway.envoy import bootstrap, clusters


def write_bootstrap(settings: bootstrap.BootstrapSettings) -> None:
    """Everything that Envoy needs to start. An existing clusters file stays: the picker may have written it."""
    directory = Path(settings.directory)
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / bootstrap.CLUSTERS).exists():
        write_clusters(directory, clusters.clusters_file({}))
    replace(directory / bootstrap.BOOTSTRAP, msgspec.json.format(msgspec.json.encode(bootstrap.bootstrap(settings))))


def write_clusters(directory: Path, document: clusters.ClustersFile) -> None:
    """The clusters file; Envoy picks it up within milliseconds."""
    replace(directory / bootstrap.CLUSTERS, document.content)


def replace(path: Path, content: bytes) -> None:
    """Replace a file atomically. The group that both containers share may read it."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(name).chmod(0o640)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
