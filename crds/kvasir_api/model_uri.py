"""Models that a replica fetches before it serves them: the forms of their uri, and the version that such a uri names.

Read by the operator, which pins a uri to the version that was found, and by the runtime, which fetches it. A version is
Git's commit on a hub, else a SHA-256: of a manifest in a registry, of an archive, or of the list of a bucket's objects.
"""

import re
from typing import Final

HUB: Final = "hf://"
S3: Final = "s3://"
GCS: Final = "gs://"
OCI: Final = "oci://"
HTTPS: Final = "https://"
FETCHED: Final = (HUB, S3, GCS, OCI, HTTPS)
BUCKETS: Final = (S3, GCS)

ARCHIVES: Final = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".zip")
VERSION: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_PIN: Final = "@sha256:"
_CHECKSUM: Final = "#sha256="


def is_fetched(uri: str) -> bool:
    """Whether replicas fetch the model, so that it is on no volume of the cluster."""
    return uri.startswith(FETCHED)


def version(uri: str) -> str:
    """The version that a uri itself names, in hexadecimal; empty where it has to be looked for."""
    _, _, named = _parts(uri)
    return named if VERSION.fullmatch(named) else ""


def unpinned(uri: str) -> str:
    """The uri without a version, a branch or a tag of a hub included."""
    base, _, _ = _parts(uri)
    return base


def pinned(uri: str, found: str) -> str:
    """The uri of one version, which stands for the same files wherever it is read."""
    base, mark, _ = _parts(uri)
    return f"{base}{mark}{found}"


def file_name(uri: str) -> str:
    """The last part of the path, without version and tag: of a hub's name, a prefix, a repository or an archive."""
    name = unpinned(uri).rstrip("/").rpartition("/")[2]
    if uri.startswith(OCI):
        return name.partition(":")[0]
    return name.partition("?")[0]


def _parts(uri: str) -> tuple[str, str, str]:
    """A uri without its version, what stands before one, and the version or the branch or tag in its place."""
    mark = {HUB: "@", HTTPS: _CHECKSUM}.get(uri[: uri.find("://") + 3], _PIN)
    base, _, named = uri.partition(mark)
    return base, mark, named
