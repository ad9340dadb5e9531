"""Writes the files that Envoy reads, each by an atomic rename, so that Envoy never reads a partial one."""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from kvasir_gateway.envoy import bootstrap, edge_tls, routes


def write_bootstrap(settings: bootstrap.BootstrapSettings) -> None:
    """Everything that Envoy needs to start, but for the clusters."""
    directory = Path(settings.directory)
    directory.mkdir(parents=True, exist_ok=True)
    if settings.serves_without_picker:
        _write_routes(directory, settings.routes)
    else:
        (directory / bootstrap.ROUTES).unlink(missing_ok=True)
    if settings.tls_directory is not None:
        replace(directory / edge_tls.SECRET_FILE, msgspec.json.encode(edge_tls.secret(settings.tls_directory)))
    replace(directory / bootstrap.BOOTSTRAP, msgspec.json.format(msgspec.json.encode(bootstrap.bootstrap(settings))))


def write_authority(directory: Path, certificates: str) -> str:
    """Path of a file with these certificates, which clusters name. Files of earlier ones stay: Envoy may read them."""
    content = certificates.encode()
    path = directory / f"pod-ca-{hashlib.sha256(content).hexdigest()[:16]}.crt"
    if not path.exists():
        replace(path, content)
    return str(path)


def write_model_routes(directory: Path, models: Mapping[str, str]) -> None:
    """The routes that apply while no picker answers; nothing where the bootstrap did not ask for them.

    models: cluster by the name of the model.
    """
    path = directory / bootstrap.ROUTES
    if path.exists():
        (before,) = msgspec.json.decode(path.read_bytes())["resources"]
        _write_routes(directory, routes.with_models(before, models))


def _write_routes(directory: Path, configuration: routes.Config) -> None:
    resource = {"@type": f"{bootstrap.TYPES}.config.route.v3.RouteConfiguration", **configuration}
    replace(directory / bootstrap.ROUTES, msgspec.json.encode({"resources": [resource]}))


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
