"""A model that pods fetch: the version that all of them load, and what they need to fetch it.

Called by `template` and `inspection`, and by `revision` for the version. The operator itself never reaches a source.
"""

from collections.abc import Mapping
from typing import Final

from kvasir_api import model_uri, names
from kvasir_kube.kinds import Json
from kvasir_operator.desired.source import ModelSource, model_source
from kvasir_operator.observed.service import Observed
from kvasir_operator.observed.settings import OperatorSettings

CACHE_EXTRA_BYTES: Final = 256 * 2**20
"""Beside a model's files: a file that is fetched again while the damaged one is still there, and lists."""
_UNPACKED_TIMES: Final = {model_uri.HTTPS: 3, model_uri.OCI: 2}
"""Disk for what is unpacked, in sizes of the archive, which lies beside it meanwhile; layers are unpacked in turn."""


def pinned_source(seen: Observed) -> ModelSource:
    """The source of a service's model, of the one version once it is known."""
    return model_source(_pinned(seen))


def replica_source(seen: Observed, settings: OperatorSettings) -> ModelSource:
    """The same as replicas have it: an image that their node mounts is a volume."""
    if not is_mounted(seen, settings):
        return pinned_source(seen)
    reference = _pinned(seen).removeprefix(model_uri.OCI)
    return ModelSource(kind="image", volume=reference, path=names.MODEL_MOUNT)


def is_mounted(seen: Observed, settings: OperatorSettings) -> bool:
    """Whether the kubelet pulls the model as an image and mounts it."""
    model = seen.spec.model
    return settings.model_image_volumes and model.uri.startswith(model_uri.OCI) and not model.cache_claim


def _pinned(seen: Observed) -> str:
    uri, found = seen.spec.model.uri, commit(seen)
    return model_uri.pinned(uri, found) if found else uri


def commit(seen: Observed) -> str:
    """The version that a model's uri stands for: the one that it names, that was read of its source for this spec, or
    that replicas of the same uri load. Empty while it is not known, and for a model that is not fetched."""
    uri = seen.spec.model.uri
    if not model_uri.is_fetched(uri):
        return ""
    if named := model_uri.version(uri):
        return named
    if seen.model is not None and seen.model.uri == uri and seen.model.commit:
        return seen.model.commit
    running = {workload.revision for workload in seen.workloads}
    models = [r.inputs.get("model") or {} for r in seen.revisions if r.id in running]
    return next((str(model.get("commit", "")) for model in reversed(models) if model.get("uri") == uri), "")


def is_unresolved(seen: Observed) -> bool:
    """Whether the model is fetched and its version is not known, so that no replica may start."""
    return model_uri.is_fetched(seen.spec.model.uri) and not commit(seen)


def secret(name: str) -> list[Json]:
    """The Secret by which a pod reaches the source, if there is one. The operator never reads it. Optional: without it
    the runtime says what is missing, while a pod would wait."""
    return [{"name": "source", "secret": {"secretName": name, "optional": True}}] if name else []


def variables(uri: str, settings: OperatorSettings, *, drafts: bool = False) -> list[Json]:
    """How a container reaches the source and where it keeps what it fetches; none for a model that is not fetched.

    drafts: it may fetch a draft model too, which is always one of a hub.
    """
    if not model_uri.is_fetched(uri):
        return []
    given = {names.ENV_SOURCE_SETTINGS: names.SOURCE_MOUNT}
    of_hub = uri.startswith(model_uri.HUB)
    if of_hub or drafts:
        given |= {
            "HF_HUB_CACHE": names.MODEL_MOUNT,
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        if settings.hub_endpoint:
            given["HF_ENDPOINT"] = settings.hub_endpoint
    if not of_hub:
        given[names.ENV_MODEL_CACHE] = names.MODEL_MOUNT
    return _environment(given)


def serving_variables(seen: Observed, settings: OperatorSettings) -> list[Json]:
    """Those of a replica: it fetches by itself, or waits for what a pod of its node fetches. And where it finds what a
    start on its node has measured: beside the models that pods share; what it keeps for itself goes with the pod."""
    if node_cache(seen, settings):
        shared = {names.ENV_MODEL_CACHE_READ_ONLY: names.MODEL_MOUNT}
        return _environment({**shared, names.ENV_STARTUP_CACHE: names.STARTUP_CACHE_MOUNT})
    found = [] if is_mounted(seen, settings) else variables(seen.spec.model.uri, settings)
    if not seen.spec.model.cache_claim:
        return found
    return found + _environment({names.ENV_STARTUP_CACHE: f"{names.MODEL_MOUNT}/{names.STARTUP_CACHE}"})


def startup_volume(seen: Observed, settings: OperatorSettings) -> list[Json]:
    """The part of a node's cache that replicas write."""
    if not (directory := node_cache(seen, settings)):
        return []
    where = {"path": f"{directory}/{names.STARTUP_CACHE}", "type": "DirectoryOrCreate"}
    return [{"name": "start", "hostPath": where}]


def _environment(given: Mapping[str, str]) -> list[Json]:
    return [{"name": name, "value": value} for name, value in given.items()]


def node_cache(seen: Observed, settings: OperatorSettings) -> str:
    """Directory of the node where pods of the namespace share what they fetch, empty where a model lies elsewhere."""
    model = seen.spec.model
    if not settings.model_cache_dir or model.cache_claim or not model_uri.is_fetched(model.uri):
        return ""
    if is_mounted(seen, settings):
        return ""
    return f"{settings.model_cache_dir.rstrip('/')}/{seen.namespace}"


def cache_bytes(seen: Observed, settings: OperatorSettings) -> int:
    """Disk of the node for the files of a model that is fetched, of this pod alone; 0 while their size is not known,
    and where pods share them."""
    if node_cache(seen, settings) or is_mounted(seen, settings):
        return 0
    uri = seen.spec.model.uri
    size = download_bytes(seen) * _UNPACKED_TIMES.get(uri[: uri.find("://") + 3], 1)
    return size + CACHE_EXTRA_BYTES if size and not seen.spec.model.cache_claim else 0


def download_bytes(seen: Observed) -> int:
    """Bytes of a model that is fetched, 0 while they are not known."""
    known = seen.model
    return (known.download_bytes or 0) if known is not None and known.uri == seen.spec.model.uri else 0
