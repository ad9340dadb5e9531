"""Reads a model's uri: which volume holds it, under which path the container sees it."""

from dataclasses import dataclass
from posixpath import normpath
from typing import Literal

from kvasir_api import model_uri, names

CLAIM_SCHEME = "pvc://"
FILE_SCHEME = "file://"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """kind pvc: volume is the claim's name. kind file: volume is a directory of the node. kind image: volume is the
    reference of an image that the kubelet mounts. kind remote: there is none, each pod fetches what path names. path:
    the argument MODEL of the container."""

    kind: Literal["pvc", "file", "remote", "image"]
    volume: str
    path: str


def model_source(uri: str) -> ModelSource:
    """Parse a uri that the CRD's rules let pass. Raises ValueError for any other."""
    if uri.startswith(CLAIM_SCHEME):
        claim, _, path = uri.removeprefix(CLAIM_SCHEME).strip("/").partition("/")
        return ModelSource(kind="pvc", volume=claim, path=f"{names.MODEL_MOUNT}/{path}".rstrip("/"))
    if uri.startswith(FILE_SCHEME + "/"):
        return ModelSource(kind="file", volume=normpath(uri.removeprefix(FILE_SCHEME)), path=names.MODEL_MOUNT)
    if model_uri.is_fetched(uri):
        return ModelSource(kind="remote", volume="", path=uri)
    known = ", ".join(model_uri.FETCHED)
    raise ValueError(f"model.uri {uri} is none of {known}, pvc://CLAIM/PATH and file:///PATH")


def variable(uri: str) -> dict[str, str]:
    """The environment variable with which a container names the model in its messages; $(…) is not expanded."""
    return {"name": names.ENV_MODEL_URI, "value": uri.replace("$", "$$")}


def allowed(directory: str, roots: tuple[str, ...]) -> bool:
    """Whether an absolute, normalised directory is one of the roots or lies below one."""
    return any(directory == root or directory.startswith(f"{root.rstrip('/')}/") for root in map(normpath, roots))
